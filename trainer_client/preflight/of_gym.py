"""Whether the gym is the one that it was taken for: over the contract alone, with the tokenizer of the trainer.

For every task of the batch the gym grades what it knows (`CheckTask`). Of every group one episode is opened again, with
the seed that it was played with, and its first turn is said again.
"""

import asyncio
import json
import unicodedata
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from trainer_client.errors import EpisodeLost
from trainer_client.gym import GymClient
from trainer_client.models.load import LoadedModel
from trainer_client.preflight.check import Check
from trainer_client.rollout import RolloutSettings
from trainer_client.trajectory import Trajectory
from trainer_client.wire import Created, Stepped, Tokenizer

_COMMAND = "Bash"
"""What a command prints may depend on the clock: `ls -l`, for one. Turns with one are no test of the gym."""


@dataclass(frozen=True, slots=True)
class Replay:
    """An episode that was opened again."""

    episode: Trajectory
    """As it was played."""
    created: Created
    stepped: Stepped


async def check_gym(
    gym: GymClient,
    loaded: LoadedModel,
    tokenizer: Tokenizer,
    settings: RolloutSettings,
    episodes: Sequence[Trajectory],
) -> list[Check]:
    """Carries out all checks of the gym. Raises GymError where it fails to answer."""
    chosen = {episode.group: episode for episode in sorted(episodes, key=_is_telling)}
    verdicts, replays = await asyncio.gather(
        check_verdicts(gym, list(dict.fromkeys(episode.task_id for episode in episodes))),
        asyncio.gather(*(replay(gym, settings, episode) for episode in chosen.values())),
    )
    return [*verdicts, rendering(loaded, tokenizer, replays), seeds(replays)]


async def check_verdicts(gym: GymClient, task_ids: Sequence[str]) -> list[Check]:
    """The reference solution is worth 1, what an episode starts from 0, and grading again changes nothing."""
    checked = await asyncio.gather(*map(gym.check_task, task_ids))
    found = dict(zip(task_ids, checked, strict=True))

    return [
        _all("gold", found, {task for task, each in found.items() if each.gold.status != "resolved"}),
        _all(
            "untouched", found, {task for task, each in found.items() if each.untouched.status == "resolved"}
        ),
        _all("regrade", found, {task for task, each in found.items() if each.gold_again != each.gold}),
    ]


async def replay(gym: GymClient, settings: RolloutSettings, episode: Trajectory) -> Replay:
    """Opens an episode again, says its first turn again, and ends it. Raises EpisodeLost after several tries."""
    for _ in range(settings.tries - 1):
        try:
            return await _replay_once(gym, settings, episode)
        except EpisodeLost:
            continue
    return await _replay_once(gym, settings, episode)


def seeds(replays: Sequence[Replay]) -> Check:
    """The same seed gives the same prompt, and the same turn the same answer."""
    tasks = [each.episode.task_id for each in replays]
    wrong = {each.episode.task_id for each in replays if not is_repeated(each)}
    return _all("seeds", tasks, wrong, "episodes")


def is_repeated(replay: Replay) -> bool:
    """Compares what an episode begins with and what its first turn is answered with."""
    episode, stepped = replay.episode, replay.stepped
    if _ids(replay.created.prompt) != episode.prompt_ids:
        return False
    first = episode.turns[0]
    answer = _ids(stepped.delta), stepped.tool_results
    return _has_command(episode) or answer == (first.observation_ids, first.tool_results)


def rendering(loaded: LoadedModel, tokenizer: Tokenizer, replays: Sequence[Replay]) -> Check:
    """Prompt and observations are what the model's own template and tokenizer make of the messages.

    The sampled ids are no matter here, as they need not be what their text would be encoded to. Where the template is
    known to rewrite the past, the prompt alone is compared.
    """
    end_id, whole = tokenizer.stop_token_ids[0], tokenizer.append_only
    tasks = [each.episode.task_id for each in replays]
    wrong = {each.episode.task_id for each in replays if not is_rendered(loaded, end_id, each, whole=whole)}
    return _all("rendering", tasks, wrong, "episodes" if whole else "prompts")


def is_rendered(loaded: LoadedModel, end_id: int, replay: Replay, *, whole: bool) -> bool:
    """Renders the conversation with a mark for each turn of the policy, and compares what is between the marks."""
    answered = [turn for turn in replay.episode.turns if turn.observation_ids] if whole else []
    messages = [{"role": each.role, "content": each.content} for each in replay.created.messages]
    for number, turn in enumerate(answered):
        messages.append({"role": "assistant", "content": _mark(number)})
        messages += [{"role": "tool", "content": result.text} for result in turn.tool_results]
    rest = _render(loaded, replay.created, messages)
    expected: list[str] = []
    for number in range(len(answered)):
        before, _, rest = rest.partition(_mark(number))
        expected.append(before)
    expected.append(rest)
    given = [replay.episode.prompt_ids]
    for turn in answered:
        # The template ends a turn that the policy has ended itself.
        ended = turn.action_ids[-1:] == (end_id,)
        given.append((*([end_id] if ended else []), *turn.observation_ids))
    # What spells a control token in a text is encoded in pieces by the gym, so that it does not become one.
    control = [
        token.content for token in loaded.tokenizer.added_tokens_decoder.values() if len(token.content) > 1
    ]
    if any(token.strip() and token in message["content"] for token in control for message in messages):
        return [_normal(loaded.tokenizer.decode(list(ids))) for ids in given] == list(map(_normal, expected))
    return given == [tuple(loaded.tokenizer.encode(text, add_special_tokens=False)) for text in expected]


def _all(name: str, tasks: Collection[str], wrong: set[str], what: str = "tasks") -> Check:
    named = f": {', '.join(sorted(wrong))}" if wrong else ""
    return Check(name, not wrong, f"{len(tasks) - len(wrong)} of {len(tasks)} {what}{named}", "all")


async def _replay_once(gym: GymClient, settings: RolloutSettings, episode: Trajectory) -> Replay:
    created = await gym.create(
        episode.task_id,
        settings.toolset,
        run_seed=settings.run_seed,
        group=episode.group,
        index=episode.index,
        fingerprint=settings.fingerprint,
        max_turns=settings.max_turns,
        max_edits=settings.max_edits,
    )
    turn = episode.turns[0]
    try:
        stepped = await gym.step(
            created.episode_id, 0, turn.action_ids, turn.logprobs, policy_version="preflight"
        )
    finally:
        await gym.end(created.episode_id, "cancelled")
    return Replay(episode, created, stepped)


def _render(loaded: LoadedModel, created: Created, messages: list[dict[str, str]]) -> str:
    schemas: list[Any] = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters_json),
            },
        }
        for tool in created.tools
    ]
    rendered: Any = loaded.tokenizer.apply_chat_template(
        messages,
        tools=schemas or None,
        tokenize=False,
        add_generation_prompt=True,
        **loaded.template_arguments,
    )
    return str(rendered)


def _is_telling(episode: Trajectory) -> tuple[bool, bool]:
    """Orders episodes by how much of the gym their first turn shows."""
    return not _has_command(episode), bool(episode.turns[0].observation_ids)


def _has_command(episode: Trajectory) -> bool:
    return any(result.tool == _COMMAND for result in episode.turns[0].tool_results)


def _ids(delta: Any) -> tuple[int, ...]:
    return delta.token_ids if delta else ()


def _mark(number: int) -> str:
    return chr(0xE000 + number)


def _normal(text: object) -> str:
    # Some tokenizers compose what they encode.
    return unicodedata.normalize("NFC", str(text))
