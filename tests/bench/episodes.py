"""The work that is measured: whole episodes with deltas, played by a scripted policy over the Rollout stream."""

import itertools
import json
from dataclasses import dataclass

from trainer_client.gym import GymClient, ToolCall
from trainer_client.models.tiny import CHAT_TEMPLATE, END_OF_TURN, build_tokenizer
from trainer_client.wire import Created, Stepped

TASK = "bugfix/zero/share"
FAULTY_LINE = "    return total // count"
REPAIRED_LINES = "    if count == 0:\n        return 0\n    return total // count"


def function_name(episode: Created) -> str:
    """Reads off the prompt of the coding toolset what the function is called, and with it its file."""
    return episode.messages[1].content.split("test_")[1].split(".py")[0]


def tool_call(tool: str, **arguments: object) -> ToolCall:
    """Gives a call of a coding tool."""
    return ToolCall(tool, json.dumps(arguments))


@dataclass(frozen=True)
class Player:
    """A client with a tokenizer of its own, so that every turn is answered with ids."""

    gym: GymClient
    fingerprint: str
    numbers: "itertools.count[int]"

    @classmethod
    async def over(cls, gym: GymClient) -> "Player":
        """Registers the tokenizer."""
        tokenizer_json = build_tokenizer().backend_tokenizer.to_str().encode()
        tokenizer = await gym.register_tokenizer(tokenizer_json, CHAT_TEMPLATE, END_OF_TURN)
        return cls(gym, tokenizer.fingerprint, itertools.count())

    async def create(self, toolset: str, task_id: str = TASK) -> Created:
        """Opens an episode under a seed that no other has."""
        episode = await self.gym.create(
            task_id,
            toolset,
            run_seed=0,
            group="bench",
            index=next(self.numbers),
            fingerprint=self.fingerprint,
        )
        assert episode.prompt is not None
        assert episode.prompt.token_ids
        return episode

    async def call(self, episode: Created, turn: int, tool: str, **arguments: object) -> Stepped:
        """Plays a turn of one call of a coding tool, which does not end the episode."""
        answer = await self.gym.step_calls(episode.episode_id, turn, [tool_call(tool, **arguments)])
        return _with_delta(answer)

    async def play_menu(self) -> None:
        """Read, edit, test, submit, hidden grading."""
        episode = await self.create("menu")
        for turn, call in enumerate(("read", "edit add_zero_guard", "test")):
            _with_delta(await self.gym.step_text(episode.episode_id, turn, f"<call> {call} </call>"))
        await self.gym.step_text(episode.episode_id, 3, "<call> submit </call>")
        await self._expect_resolved(episode)

    async def play_coding(self) -> None:
        """Read, Edit, pytest by Bash, answer, hidden grading."""
        episode = await self.solve()
        tested = await self.call(episode, 2, "Bash", command="pytest")
        assert " passed" in tested.tool_results[0].text, tested
        await self.gym.step_text(episode.episode_id, 3, "Done.")
        await self._expect_resolved(episode)

    async def solve(self) -> Created:
        """Read, Edit; the episode goes on."""
        episode = await self.create("coding")
        path = f"{function_name(episode)}.py"
        await self.call(episode, 0, "Read", file_path=path)
        await self.call(episode, 1, "Edit", file_path=path, old_string=FAULTY_LINE, new_string=REPAIRED_LINES)
        return episode

    async def hand_in(self, episode: Created) -> None:
        """Ends an episode that is solved; hidden grading."""
        await self.gym.end(episode.episode_id, "cancelled")
        await self._expect_resolved(episode)

    async def _expect_resolved(self, episode: Created) -> None:
        verdict = (await self.gym.grade(episode.episode_id)).verdict
        assert verdict.status == "resolved", verdict


def _with_delta(answer: Stepped) -> Stepped:
    assert answer.delta is not None, answer
    assert answer.delta.token_ids, answer
    return answer
