"""An agent of OpenRLHF that plays in the gym. It was run against a stub of OpenRLHF only, never with OpenRLHF itself.

    --train.agent_func_path trainer_client/adapters/examples/openrlhf.py

The prompt of a row is the name of a task. OpenRLHF takes what the environment says as text with the markup of the
model's template and encodes it: it is given the text that it encodes to the gym's own ids (`render_suffix`).
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from trainer_client.blocking import process_gym
from trainer_client.episode import Episode, open_with_ids, render_suffix
from trainer_client.wire import Delta

TOOLSET = "coding"


@dataclass
class _Seat:
    """What the executor and its agent know of each other."""

    tokenizer: Any
    episode: Episode | None = None


_seat: ContextVar[_Seat] = ContextVar("seat")


class GymAgent(AgentInstanceBase):
    """Plays one episode. OpenRLHF makes one for each."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._gym = process_gym()

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Opens the episode of a task and returns its prompt."""
        seat = _seat.get()
        seat.episode = await open_with_ids(seat.tokenizer, states["observation"], TOOLSET)
        return {"observation": _text(seat.episode.opened.prompt)}

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Plays a turn.

        Raises:
            EpisodeLost: The gym lost the episode or could not grade it: no reward, which is not 0.
        """
        episode, end_of_turn = _seat.get().episode, _seat.get().tokenizer.eos_token
        assert episode, "OpenRLHF resets an agent before its first step"
        said, ended, _rest = states["action_text"].partition(end_of_turn)
        stepped = await self._gym.do(episode.say(said))
        feedback = ""
        if stepped.outcome is None:
            try:
                # The gym closes what is said to it; the sequence of the trainer may be cut off.
                feedback = ("" if ended else end_of_turn) + _text(stepped.delta)
            except ValueError:
                # Told as text, a control token in a file would become one: the episode ends here, as it stands.
                await self._gym.do(episode.close())
        reward = await self._gym.do(episode.reward_or_raise()) if episode.outcome else 0.0
        return {
            "rewards": torch.tensor(reward),
            "scores": torch.tensor(reward),
            "environment_feedback": feedback,
            "done": episode.outcome is not None,
            "extra_logs": {"turns": torch.tensor(float(episode.turn))},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF looks for in the file. It has the tokenizer, which an agent is not given."""

    def __init__(self) -> None:
        super().__init__(GymAgent)

    async def execute(
        self,
        prompt: Any,
        label: Any,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
    ) -> Any:
        """Plays one episode with this tokenizer."""
        seat = _Seat(hf_tokenizer)
        _seat.set(seat)
        try:
            response = await super().execute(
                prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine
            )
            episode = seat.episode
            if episode and episode.outcome is None:
                # OpenRLHF stopped at its own limit: the episode is worth what it has come to.
                reward = await process_gym().do(episode.reward_or_raise("context_overflow"))
                response |= {"reward": reward, "scores": reward}
            return response
        finally:
            if seat.episode:
                await process_gym().do(seat.episode.close())


def _text(delta: Delta | None) -> str:
    return render_suffix(delta, _seat.get().tokenizer) if delta else ""
