"""Tasks of Harbor and terminal-bench: what fits is proven in an image of its own, the rest refused with the reason."""

import asyncio
import os
import shutil

import pytest

from gym_service.grading.changes import changes_of
from gym_service.harbor_authoring import draft_task, make_task
from gym_service.sandbox import image_files
from gym_service.state import StateFolder
from gym_service.tasks.harbor import is_harbor, paths_outside, read_harbor
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask
from gym_service.tasks.store import known_suites
from tests import own_images
from tests.imported import tasks_import
from tests.repositories import write

STARTER = """#!/bin/bash
set -e
apt-get update && apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
# Start it; then say how it went.
UV_CACHE=/tmp/uv uvx \\
  --with pytest==8.4.1 \\
  pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""
TESTS = """from pathlib import Path

FOLDER = Path("/app")
EXPECTED = Path(__file__).with_name("expected.txt")


def test_the_words_are_counted():
    assert (FOLDER / "count.txt").read_text() == EXPECTED.read_text()
    assert int((FOLDER / "count.txt").read_text()) == 3


def test_the_words_are_in_order():
    assert (FOLDER / "out/sorted.txt").read_text().split() == ["a", "b", "c"]


def test_the_words_stay():
    assert (FOLDER / "words.txt").read_text() == "b a c\\n"
"""
SOLUTION = """#!/bin/bash
set -euo pipefail
wc -w < words.txt > count.txt
mkdir out
tr ' ' '\\n' < words.txt | sort > out/sorted.txt
"""
DOCKERFILE = """FROM BASE
WORKDIR /app
COPY words.txt .
"""
HARBOR = {
    "task.toml": 'version = "1.0"\n[metadata]\ndifficulty = "easy"\n[environment]\ncpus = 1\n',
    "instruction.md": "Count the words of words.txt into count.txt, and sort them into out/sorted.txt.\n",
    "environment/Dockerfile": DOCKERFILE,
    "environment/words.txt": "b a c\n",
    "solution/solve.sh": SOLUTION,
    "tests/test.sh": STARTER,
    "tests/test_outputs.py": TESTS,
    "tests/expected.txt": "3\n",
}
COMPOSE = "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n"
TERMINAL_BENCH = {
    "task.yaml": "instruction: |-\n  Count the words of words.txt into count.txt,\n  and sort them.\n",
    "Dockerfile": DOCKERFILE.replace("COPY words.txt", "COPY ."),
    "words.txt": "b a c\n",
    "docker-compose.yaml": COMPOSE,
    "solution.sh": SOLUTION,
    "run-tests.sh": STARTER,
    "tests/test_outputs.py": TESTS,
    "tests/expected.txt": "3\n",
}


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "words", HARBOR)
    return tmp_path / "words"


@pytest.fixture
def old(tmp_path):
    write(tmp_path / "old-words", TERMINAL_BENCH)
    return tmp_path / "old-words"


def test_a_folder_of_harbor_is_read_with_all_its_parts(folder):
    read = read_harbor(folder)

    assert is_harbor(folder)
    assert (read.name, read.request, read.image) == ("words", HARBOR["instruction.md"], "")
    assert read.tests.keys() == {"test_outputs.py", "expected.txt"}
    assert read.solution == SOLUTION
    assert read.context == folder / "environment"


def test_a_folder_of_terminal_bench_is_read_with_all_its_parts(old):
    read = read_harbor(old)

    assert is_harbor(old)
    assert read.request == "Count the words of words.txt into count.txt,\nand sort them."
    assert read.tests.keys() == {"test_outputs.py", "expected.txt"}
    assert read.context == old
    assert {"tests", "solution.sh"} <= read.not_for_image


def test_an_image_may_be_named_in_the_place_of_a_dockerfile(folder):
    (folder / "task.toml").write_text('[environment]\ndocker_image = "words:1"\n')
    shutil.rmtree(folder / "environment")

    assert read_harbor(folder).image == "words:1"


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("task.toml", "x = ", r"^task\.toml cannot be read"),
        ("task.toml", "environment = 3", "environment is no table"),
        ("task.toml", "[[steps]]\nname = 'a'", "several steps"),
        ("task.toml", "[environment]\ngpus = 1", "needs a GPU"),
        ("task.toml", "[environment]\n[[environment.mcp_servers]]\nname = 'a'", "needs MCP servers"),
        ("task.toml", "[verifier]\nenvironment_mode = 'separate'", "a container of their own"),
        ("environment/docker-compose.yaml", COMPOSE, "a task has one container"),
        ("environment/Dockerfile", None, "no environment/Dockerfile"),
        ("solution/solve.sh", None, r"it has no solution/solve\.sh"),
        ("solution/solve.sh", "cp /solution/right.txt count.txt", "uses /solution/"),
        ("solution/solve.sh", "#" * 100_001, "more than 100000 bytes"),
        ("solution/more.txt", "3", "has to be one script"),
        ("tests/test_outputs.py", None, r"holds no test_\*\.py"),
        ("tests/test.sh", STARTER + "make -C /app\n", r"does more than to run pytest: 'make -C /app'"),
        ("tests/test.sh", "python3 /tests/check.py # pytest", "does more than to run pytest"),
        ("tests/test.sh", "cd /app && ./server &\npytest", "does more than to run pytest"),
        ("tests/test.sh", "echo 1 > /logs/verifier/reward.txt", "does not run pytest"),
        ("tests/data.bin", b"x" * 4_000_001, "too large"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_with_the_reason(folder, path, text, reason):
    (folder / path).unlink(missing_ok=True)
    if text is not None:
        write(folder, {path: text})

    with pytest.raises(ImportRefused, match=reason):
        read_harbor(folder)


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("task.yaml", "instruction: [", "cannot be read"),
        ("task.yaml", "- a", "is no table"),
        ("task.yaml", "difficulty: easy", "no instruction"),
        ("task.yaml", "!!python/object/apply:os.system [touch /tmp/x]", "cannot be read"),
        ("task.yaml", "instruction: a\nn: !!int ''", "cannot be read"),
        ("task.yaml", "instruction: a\nn: !!bool x", "cannot be read"),
        ("task.yaml", "instruction: a\nn: !!timestamp x", "cannot be read"),
        ("task.yaml", 'instruction: "\\ud800"', "cannot be read"),
        ("docker-compose.yaml", "services:\n  client: x\n", "client is no table"),
        ("docker-compose.yaml", f"{COMPOSE}  database:\n    image: x\n", "has 2 services"),
        ("docker-compose.yaml", f"{COMPOSE}    privileged: true\n", "asks for privileged"),
        ("Dockerfile", None, "no Dockerfile"),
        ("solution.sh", None, r"it has no solution\.sh"),
    ],
)
def test_a_folder_of_terminal_bench_that_does_not_fit_is_refused(old, path, text, reason):
    (old / path).unlink()
    if text is not None:
        (old / path).write_text(text)

    with pytest.raises(ImportRefused, match=reason):
        read_harbor(old)


def test_a_link_is_not_followed(folder):
    (folder / "environment/passwd").symlink_to("/etc/passwd")

    with pytest.raises(ImportRefused, match="a task has no links"):
        read_harbor(folder)


@pytest.mark.docker
def test_what_nobody_looked_through_gets_into_no_image(folder, base):
    """A link there would bring a file of this machine into it, or one without an end."""
    context = folder / "environment"
    (context / "Dockerfile").write_text(f"FROM {base}\nWORKDIR /app\nCOPY . .\n")
    (context / "deep/.git").mkdir(parents=True)
    (context / "deep/.git/config").symlink_to("/etc/passwd")
    (context / "__pycache__").symlink_to("/etc")
    assert read_harbor(folder)

    made = image_files.build(context, frozenset())

    with image_files.open_image(made, "tests-harbor") as image:
        found = {path for path in ("words.txt", "deep/.git", "__pycache__") if image.holds(f"/app/{path}")}
    assert found == {"words.txt"}


@pytest.mark.parametrize(
    ("text", "outside"),
    [
        ("/app/count.txt", False),
        ("/app", False),
        ("/apple", False),
        ("/applications", False),
        ("/bin/sh", False),
        ("/api/v1/words", False),
        ("a/etc/b", False),
        ("/etc/passwd", True),
        ("/tests/expected.txt", True),
        ("/app2/../etc", False),
        ("/root/x", True),
        ("/usr/local/bin/tool --version", True),
    ],
)
def test_tests_that_look_outside_of_the_workspace_are_seen(text, outside):
    tests = {"test_outputs.py": f"def test_a():\n    assert open({text!r})\n".encode(), "notes.txt": b"/etc"}

    assert list(paths_outside(tests, "/app")) == ([(text, "test_outputs.py")] if outside else [])


TASK = RepositoryTask(
    task_id="harbor/words",
    suite="harbor",
    split=Split.TEST,
    family="harbor",
    request="",
    base={"words.txt": b"b a c\n", "Makefile": b"all:\n"},
    gold={},
    test_files={"verifier/test_outputs.py": TESTS.encode(), "verifier/expected.txt": b"3\n"},
    fail_to_pass=("verifier/test_outputs.py::test_the_words_are_counted",),
    pass_to_pass=(),
    twins={},
    plain=(),
    roots=(),
    sources="all",
)


def test_where_all_is_source_any_file_is_graded_but_tests_and_configuration():
    files = {
        "count.txt": b"3\n",
        "words.txt": b"a\n",
        "out/a.csv": b"1\n",
        "verifier/expected.txt": b"4\n",
        "verifier/conftest.py": b"x\n",
        "conftest.py": b"x\n",
        "pytest.ini": b"x\n",
        "a/__pycache__/x.pyc": b"x\n",
    }

    taken = changes_of(TASK, files, ["Makefile"])

    assert taken.files.keys() == {"count.txt", "words.txt", "out/a.csv"}
    assert taken.deleted == ("Makefile",)


# With images of their own


@pytest.fixture
def base():
    return own_images.base()


@pytest.fixture
def draft(base):
    def draft(folder, python=""):
        """The draft of a folder, and the shell of its image."""
        for dockerfile in folder.rglob("Dockerfile"):
            dockerfile.write_text(dockerfile.read_text().replace("FROM BASE", f"FROM {base}"))
        read = read_harbor(folder)
        digest = image_files.build(read.context, read.not_for_image)
        with image_files.open_image(digest, f"tests-{os.getpid()}") as image:
            return read, *draft_task(read, image, python, "harbor", Split.TEST, "sha256:0")

    return draft


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_the_command_proves_a_task_that_fits_in_its_own_image(tmp_path, folder, base):
    (folder / "environment/Dockerfile").write_text(DOCKERFILE.replace("BASE", base))
    (tmp_path / "commands.toml").write_text('commands = ["wc", "head"]')
    options = ("--split", "train", "--commands", str(tmp_path / "commands.toml"))
    done = tasks_import(tmp_path / "state", folder, *options)

    assert done.returncode == 0, done.stdout + done.stderr
    [task] = known_suites(StateFolder(tmp_path / "state").suites).suite("harbor")
    assert task.base == {"words.txt": b"b a c\n"}
    assert task.gold == {"count.txt": b"3\n", "out/sorted.txt": b"a\nb\nc\n"}
    assert [test.rpartition("_")[2] for test in task.fail_to_pass] == ["counted", "order"]
    assert [test.rpartition("_")[2] for test in task.pass_to_pass] == ["stay"]
    assert (task.environment.workspace, task.split) == ("/app", Split.TRAIN)
    assert len(task.twins) == 3
    assert [each.name for each in task.environment.commands] == ["wc", "head"]


@pytest.mark.docker
def test_the_image_of_a_folder_of_terminal_bench_holds_neither_tests_nor_solution(old, draft):
    _, task, shell = draft(old)

    assert task.base.keys() == {"words.txt", "Dockerfile"}
    assert task.test_files.keys() == {"verifier/test_outputs.py", "verifier/expected.txt"}
    assert shell == "/bin/bash"


@pytest.mark.docker
def test_an_interpreter_that_the_image_has_not_is_refused(folder, draft):
    with pytest.raises(ImportRefused, match="its image holds no /x/python: say with --python"):
        draft(folder, "/x/python")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (
            "solution/solve.sh",
            "#!/bin/bash\nset -e\ncurl -sf http://example.com > count.txt\n",
            "it uses curl",
        ),
        ("solution/solve.sh", "#!/bin/bash\nset -e\necho 3 > /usr/count.txt\n", "Read-only file system"),
        ("solution/solve.sh", "echo 3 > /tmp/count.txt\n", "changes nothing in /app"),
        ("solution/solve.sh", f"{SOLUTION}rm words.txt\n", r"deletes words\.txt"),
        ("solution/solve.sh", f"{SOLUTION}ln -s /etc out/link\n", "is a symbolic link"),
        ("solution/solve.sh", "id -u > count.txt; wc -w < words.txt > count.txt\n", "in_order does not pass"),
        ("solution/solve.sh", "mkfifo count.txt\n", "is no regular file"),
        (
            "tests/test_outputs.py",
            f"{TESTS}\n\ndef test_b():\n    assert open('/etc/x')\n",
            "looks at /etc/x",
        ),
        ("tests/test_outputs.py", "def test_b():\n    assert 1 == 1\n", "all its tests pass before"),
        (
            "tests/test_outputs.py",
            "from pathlib import Path\n\n\ndef test_b():\n    assert Path('/app/count.txt').exists()\n",
            "no hidden test says what a value is",
        ),
        ("environment/Dockerfile", DOCKERFILE.replace("WORKDIR", "# "), "has no WORKDIR"),
        ("environment/Dockerfile", f"{DOCKERFILE}RUN false\n", "cannot be built"),
        ("environment/Dockerfile", f"{DOCKERFILE}RUN ln -s /etc/passwd x\n", "which is no plain file"),
    ],
)
async def test_what_does_not_fit_is_refused_with_what_was_seen(folder, draft, grounds, path, text, reason):
    (folder / path).write_text(text)

    async def make():
        read, task, shell = await asyncio.to_thread(draft, folder)
        return await make_task(task, shell, read, grounds)

    with pytest.raises(ImportRefused, match=reason):
        await make()
