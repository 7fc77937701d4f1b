"""Imports point downward only, and the two halves meet in the contract alone."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the top floor to the bottom; a module may import from its own floor and from those below.
SERVICE_FLOORS = [
    {"__main__"},
    {"task_commands", "evaluate_command", "record_check"},
    {"import_commands"},
    {"task_proving"},
    {"swebench_authoring", "harbor_authoring"},
    {"authoring"},
    {"synthesis", "command_authoring", "control", "server"},
    {"proof", "trials", "listener"},
    {"certificates"},
    {"servicer", "state", "config", "viewer"},
    {"rollout"},
    {"wire"},
    {"episodes"},
    {"play", "record_folder", "admission", "ended", "evaluation"},
    {"record"},
    {"episode"},
    {"toolsets", "tokens"},
    {"grading"},
    {"sandbox"},
    {"tasks", "values", "callers", "fairness", "bind"},
    {"errors", "hardening", "private_file", "visible", "accounts"},
]

TRAINER_FLOORS = [
    {"ablate", "power", "replay", "preflight.__main__", "adapters.trl_example"},
    {
        "adapters.trl",
        "adapters.trl_environment",
        "adapters.gymnasium",
        "adapters.openenv",
        "adapters.skyrl",
        "adapters.verifiers",
        "adapters.examples.areal",
        "adapters.examples.openrlhf",
        "adapters.examples.slime",
        "adapters.examples.verl",
    },
    {"side_by_side"},
    {"run", "describe", "evaluate"},
    {"frozen", "portrait", "preflight.gate"},
    {"step", "preflight.of_trainer", "preflight.of_gym"},
    {"live"},
    {"flags", "session", "report", "forest"},
    {"models.start", "report_parts"},
    {"models.sft_base"},
    {
        "run_folder",
        "tracking",
        "console",
        "dashboard",
        "evaluation",
        "cold_start",
        "models.base",
        "curriculum",
        "ablation",
        "stopping",
    },
    {"result"},
    {"metrics", "transcripts"},
    {"sequences"},
    {
        "behaviour",
        "statistics",
        "update",
        "supervised",
        "distributed",
        "rollout",
        "credit",
        "blocking",
        "episode",
    },
    {"gym", "collate", "objective"},
    {
        "link",
        "models.sampler",
        "models.vllm",
        "models.find",
        "models.load",
        "models.lora",
        "models.smollm",
        "models.tiny",
        "checkpoint",
        "models.demonstrator",
        "optimizer",
    },
    {"models.generation"},
    {"models.slots"},
    {"wire", "endpoint", "models.policy", "models.packed", "models.corpus", "models.cache"},
    {"config", "exit_codes"},
    {"trajectory", "errors", "presets", "preflight.check"},
]


def imports_of(path):
    """Gives the modules that a file imports, with their names from the top."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def floor_of(part, floors=SERVICE_FLOORS):
    return next((number for number, floor in enumerate(floors) if part in floor), None)


@pytest.mark.parametrize("path", sources("gym_service"), ids=str)
def test_a_module_of_the_service_imports_from_below(path):
    part = path.relative_to(ROOT / "gym_service").parts[0].removesuffix(".py")
    if part == "__init__":
        return
    own = floor_of(part)
    assert own is not None, f"{part} stands on no floor"
    for name in imports_of(path):
        if name.startswith("gym_service.") and name != "gym_service.__version__":
            below = name.split(".")[1]
            assert floor_of(below) is not None, f"{below} stands on no floor"
            assert floor_of(below) >= own, f"{path.name} imports {name} from above"


@pytest.mark.parametrize("path", sources("trainer_client"), ids=str)
def test_a_module_of_the_trainer_imports_from_below(path):
    part = ".".join(path.relative_to(ROOT / "trainer_client").with_suffix("").parts)
    if part.endswith("__init__"):
        return
    own = floor_of(part, TRAINER_FLOORS)
    assert own is not None, f"{part} stands on no floor"
    for name in imports_of(path):
        # The longest module name that the import starts with; the rest is what it takes from there.
        words = name.removeprefix("trainer_client.").split(".")
        below = floor_of(".".join(words[:2]), TRAINER_FLOORS) or floor_of(words[0], TRAINER_FLOORS)
        if name.startswith("trainer_client.") and part != ".".join(words[:2]):
            assert below is not None, f"{name} stands on no floor"
            assert below >= own, f"{path.name} imports {name} from above"


@pytest.mark.parametrize(
    ("package", "foreign"),
    [
        ("gym_service", ("trainer_client", "torch", "tests")),
        ("trainer_client", ("gym_service", "sandbox_images", "docker", "tests")),
        ("sandbox_images", ("gym_service", "trainer_client", "grpc", "torch", "tests")),
    ],
)
def test_packages_meet_in_the_contract_alone(package, foreign):
    for path in sources(package):
        for name in imports_of(path):
            assert name.split(".")[0] not in foreign, f"{path.name} imports {name}"


def test_the_warden_needs_nothing_but_python_and_pytest():
    allowed = {"_pytest", "pytest", "warden"}
    for path in sources("sandbox_images/warden"):
        outside = {name.split(".")[0] for name in imports_of(path)} - set(sys.stdlib_module_names)
        assert outside <= allowed, f"{path.name} imports {outside}"


def test_grpc_is_spoken_at_the_edge_alone():
    edge = {"server", "servicer", "control", "listener", "hardening"}
    for path in sources("gym_service"):
        uses = any(name.split(".")[0] == "grpc" for name in imports_of(path))
        assert not uses or path.stem in edge, f"{path.name} imports grpc"
    for path in sources("trainer_client"):
        uses = any(name.split(".")[0] == "grpc" for name in imports_of(path))
        assert not uses or path.stem == "link", f"{path.name} imports grpc"
