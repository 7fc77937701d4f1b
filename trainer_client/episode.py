"""An episode that another trainer plays: it samples elsewhere, and brings what was said turn by turn.

What the adapters share is here: counting turns, ending what the trainer cuts off, the reward that is None where the gym
itself failed, and, for an episode with a tokenizer, the sequence of ids with its mask.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, Self

from trainer_client.blocking import BlockingGym, process_gym
from trainer_client.errors import ContractBroken, EpisodeLost
from trainer_client.gym import GymClient, ToolCall
from trainer_client.trajectory import Outcome, Verdict
from trainer_client.wire import Created, Delta, Stepped, Tokenizer


class TextTokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    chat_template: Any
    eos_token: Any
    backend_tokenizer: Any

    def __hash__(self) -> int: ...
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(
        self, token_ids: list[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> Any: ...


@dataclass(slots=True)
class Episode:
    """One episode. Made by `open`; belongs to the event loop of its client."""

    client: GymClient
    opened: Created
    token_ids: list[int]
    """The sequence so far; stays the prompt where turns are not brought as ids, and empty without a tokenizer."""
    mask: list[int]
    """1 for each of these ids that the policy sampled."""
    logprobs: list[float]
    """The sampler's log-probability of each of these ids, 0 where it is not sampled."""
    turn: int = 0
    """The turns that were played."""
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    """What grading found, once the reward was asked for."""

    @classmethod
    async def open(
        cls,
        client: GymClient,
        task_id: str,
        toolset: str,
        *,
        group: str = "",
        index: int = 0,
        **options: Any,
    ) -> Self:
        """Opens an episode; `options` are those of `GymClient.create`.

        The same group and index give the same episode in each run; without a group every episode is another one.
        """
        options = {"run_seed": 0, **options}
        opened = await client.create(
            task_id, toolset, group=group or uuid.uuid4().hex, index=index, **options
        )
        ids = list(opened.prompt.token_ids) if opened.prompt else []
        return cls(client, opened, ids, [0] * len(ids), [0.0] * len(ids))

    @property
    def prompt_length(self) -> int:
        """The ids before the first turn."""
        return len(self.opened.prompt.token_ids) if self.opened.prompt else 0

    async def say(self, text: str) -> Stepped:
        """Plays a turn given as text. Raises as `GymClient.step`."""
        return self._played(await self.client.step_text(self.opened.episode_id, self.turn, text))

    async def call(self, *calls: tuple[str, Mapping[str, Any]]) -> Stepped:
        """Plays a turn given as calls, each a tool and its arguments; none is an answer. Raises as `GymClient.step`."""
        encoded = [ToolCall.of(tool, arguments) for tool, arguments in calls]
        return self._played(await self.client.step_calls(self.opened.episode_id, self.turn, encoded))

    async def sampled(
        self, token_ids: Sequence[int], logprobs: Sequence[float] = (), **options: Any
    ) -> Stepped:
        """Plays a turn of sampled ids, and appends to the sequence those and what the gym answers.

        Raises:
            EpisodeLost: The gym has lost the episode.
            ContractBroken: The gym's ids do not continue the sequence.
        """
        stepped = await self.client.step(self.opened.episode_id, self.turn, token_ids, logprobs, **options)
        self._append(token_ids, 1, logprobs or [0.0] * len(token_ids))
        if stepped.delta:
            if stepped.delta.position != len(self.token_ids):
                raise ContractBroken(
                    f"The gym's ids go to position {stepped.delta.position}, but {len(self.token_ids)} is due"
                )
            self._append(stepped.delta.token_ids, 0, [0.0] * len(stepped.delta.token_ids))
        return self._played(stepped)

    async def reward(self, stop_reason: str = "max_tokens") -> float | None:
        """Returns 1 where every hidden test passes, else 0; None where the gym could not tell, which is not 0.

        Args:
            stop_reason: Why the trainer goes no further, where the episode has not ended by itself: max_tokens,
                context_overflow or cancelled.
        """
        try:
            if self.outcome is None:
                self.outcome = await self.client.end(self.opened.episode_id, stop_reason)
            graded = await self.client.grade(self.opened.episode_id)
        except EpisodeLost:
            return None
        self.verdict = graded.verdict
        if graded.outcome.errored or not graded.verdict.valid:
            return None
        return float(graded.verdict.status == "resolved")

    async def reward_or_raise(self, stop_reason: str = "max_tokens") -> float:
        """Returns the reward as `reward` does, for trainers that cannot leave an episode without one out.

        Raises:
            EpisodeLost: The gym could not tell.
        """
        reward = await self.reward(stop_reason)
        if reward is None:
            raise EpisodeLost(self.verdict.reason if self.verdict else "it was not graded")
        return reward

    async def close(self) -> None:
        """Gives up the episode if it goes on, and its sandbox with it."""
        if self.outcome is None:
            try:
                self.outcome = await self.client.end(self.opened.episode_id, "cancelled")
            except EpisodeLost:
                pass

    def _played(self, stepped: Stepped) -> Stepped:
        self.turn += 1
        self.outcome = stepped.outcome
        return stepped

    def _append(self, token_ids: Sequence[int], sampled: int, logprobs: Sequence[float]) -> None:
        self.token_ids += token_ids
        self.mask += [sampled] * len(token_ids)
        self.logprobs += logprobs


def observation_text(stepped: Stepped) -> str:
    """Returns what the policy is told of a turn, for trainers that take one text."""
    return "\n".join(result.text for result in stepped.tool_results)


async def open_with_ids(tokenizer: TextTokenizer, task_id: str, toolset: str, **options: Any) -> Episode:
    """Opens an episode of token ids on the connection of this process, to whose event loop it belongs.

    The tokenizer is made known to the gym when it is used for the first time. `options` are those of `Episode.open`.
    """
    gym = process_gym()
    fingerprint = _fingerprint(gym, tokenizer)
    return await gym.do(Episode.open(gym.client, task_id, toolset, fingerprint=fingerprint, **options))


@cache
def _fingerprint(gym: BlockingGym, tokenizer: TextTokenizer) -> str:
    return gym.run(lambda client: register(client, tokenizer)).fingerprint


async def register(
    client: GymClient, tokenizer: TextTokenizer, template_arguments: Mapping[str, object] | None = None
) -> Tokenizer:
    """Makes a tokenizer of transformers known to the gym, with its chat template and its end-of-turn."""
    return await client.register_tokenizer(
        tokenizer.backend_tokenizer.to_str().encode(),
        tokenizer.chat_template,
        tokenizer.eos_token,
        template_arguments=template_arguments,
    )


def render_suffix(delta: Delta, tokenizer: TextTokenizer) -> str:
    """Returns what the gym appends as text with the template's markup, for trainers that encode it themselves.

    The text is exact: the tokenizer encodes it to the ids of the delta, which is tried.

    Raises:
        ValueError: No text is. So it is where a file or an output spells a control token such as <|im_end|>, which
            the gym keeps from becoming one: end the episode, or learn from the ids.
    """
    ids = list(delta.token_ids)
    text = str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
    if tokenizer.encode(text, add_special_tokens=False) != ids:
        raise ValueError(
            f"the observation has no text that the tokenizer encodes to its ids; the nearest begins {text[:80]!r}"
        )
    return text
