"""The scripted policy: what it makes of a source, and that the gym finds its episodes resolved."""

from collections.abc import AsyncIterator

import pytest
from transformers import PreTrainedTokenizerFast

from tests.conftest import Gym
from trainer_client.cold_start import Demonstrations, play_demonstrations
from trainer_client.distributed import ALONE
from trainer_client.endpoint import Endpoint
from trainer_client.gym import GymClient
from trainer_client.models.demonstrator import Demonstrator, Repair, find_repair
from trainer_client.models.tiny import CHAT_TEMPLATE, END_OF_TURN, build_tokenizer
from trainer_client.rollout import RolloutSettings


@pytest.mark.parametrize(
    ("body", "repair"),
    [
        ("    return min(a, max(b, c))", Repair("swap_minmax", "", "    return max(a, min(b, c))")),
        (
            "    return a * 2 // len(b)",
            Repair("add_zero_guard", "", "    if len(b) == 0:\n        return 0\n    return a * 2 // len(b)"),
        ),
        ("    for i in range(n):", Repair("fix_range", "", "    for i in range(n + 1):")),
        ("    for i in range(1, n + 1):", Repair("fix_range", "", "    for i in range(1, n):")),
        ("    for i in range(len(x) - 1):", Repair("fix_range", "", "    for i in range(len(x)):")),
        ("    return a + 3 <= b", Repair("fix_comparison", "", "    return a + 3 < b")),
        ("    return a > 18", Repair("fix_comparison", "", "    return a >= 18")),
        ("    total = 2", Repair("fix_init", "", "    total = 0")),
        ("    total = 0", Repair("fix_init", "", "    total = 1")),
    ],
)
def test_a_fault_is_repaired_by_its_sign(body: str, repair: Repair) -> None:
    found = find_repair(f"def f(a, b, c):\n{body}\n")

    assert found == Repair(repair.operation, body, repair.new)


def test_without_a_sign_there_is_no_repair() -> None:
    assert find_repair("def f(a):\n    return a") is None


@pytest.fixture
async def client(docker_gym: Gym) -> AsyncIterator[GymClient]:
    endpoint = Endpoint(docker_gym.running.address, docker_gym.running.token)
    async with GymClient.connect(endpoint) as client:
        yield client


async def demonstrate(
    client: GymClient,
    toolset: str,
    *,
    tests_first: bool = False,
    max_new_tokens: int = 400,
    max_turns: int = 0,
) -> tuple[list[str], Demonstrations]:
    """Plays every training task twice; returns them and what came of it."""
    tokenizer: PreTrainedTokenizerFast = build_tokenizer()
    registered = await client.register_tokenizer(
        tokenizer.backend_tokenizer.to_str().encode(), CHAT_TEMPLATE, END_OF_TURN
    )
    demonstrator = Demonstrator(
        tokenizer, END_OF_TURN, toolset=toolset, tests_first=tests_first, max_new_tokens=max_new_tokens
    )
    settings = RolloutSettings(
        3, toolset, registered.fingerprint, max_context_tokens=1 << 16, max_turns=max_turns, cohort_size=4
    )
    task_ids = [task.task_id for task in await client.list_tasks("bugfix", "train")]
    return task_ids, await play_demonstrations(ALONE, client, demonstrator, task_ids, settings, 2)


@pytest.mark.docker
@pytest.mark.parametrize("toolset", ["menu", "coding"])
@pytest.mark.parametrize("tests_first", [False, True])
async def test_every_training_task_is_resolved_without_a_mistake(
    client: GymClient, toolset: str, tests_first: bool
) -> None:
    """Twice each, and with tests, where they are asked for, in every single episode."""
    task_ids, shown = await demonstrate(client, toolset, tests_first=tests_first)

    assert [episode.task_id for episode in shown.kept] == [task for task in task_ids for _ in range(2)]
    assert shown.rejected == {}
    for episode in shown.kept:
        results = [result for turn in episode.turns for result in turn.tool_results]
        assert not any(result.is_error for result in results)
        tools = [result.tool.lower() for result in results]
        assert tools[:2] == ["read", "edit"]
        assert any(tool in ("test", "bash") for tool in tools) is tests_first
    # Function names differ between the two episodes of a task.
    assert len({episode.prompt_ids for episode in shown.kept}) > len(task_ids)


@pytest.mark.docker
async def test_what_is_not_resolved_is_not_kept(client: GymClient) -> None:
    """Two turns suffice to read and to edit, one does not."""
    task_ids, shown = await demonstrate(client, "coding", max_turns=2)
    assert len(shown.kept) == 2 * len(task_ids)

    with pytest.raises(ValueError, match=r"none of the 40 demonstrations is resolved \(unresolved\): set"):
        await demonstrate(client, "coding", max_turns=1)


@pytest.mark.docker
async def test_a_turn_that_does_not_fit_says_what_to_change(client: GymClient) -> None:
    with pytest.raises(ValueError, match=r"max_new_tokens is 9: .* set it to that or more"):
        await demonstrate(client, "coding", max_new_tokens=9)
