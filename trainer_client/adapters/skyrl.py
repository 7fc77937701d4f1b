"""The gym as an environment of SkyRL-gym (pip install 'skyrl-gym==0.4.0').

    skyrl_gym.register(id="coding_gym", entry_point="trainer_client.adapters.skyrl:GymTextEnv")

A row of the data set has `env_class: coding_gym`, any prompt, and the name of a task as `task_id` in its extras; the
prompt is replaced by the gym's. Environments share the connection of their process to the gym of this machine.
"""

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from trainer_client.blocking import BlockingGym, process_gym
from trainer_client.episode import Episode


class GymTextEnv(BaseTextEnv):
    """One episode. A step is what the policy said in a turn; the last one has the reward.

    SkyRL cannot leave an episode without a reward out of its group, so a step raises EpisodeLost where the gym could
    not tell: the batch fails, and nothing is learned from a 0 that nobody gave.
    """

    def __init__(
        self, env_config: Mapping[str, Any] | None = None, extras: Mapping[str, Any] | None = None
    ) -> None:
        """Takes `toolset` (menu or coding) and `max_turns` from the configuration, and `task_id` from the extras."""
        super().__init__()
        config, row = env_config or {}, extras or {}
        self._toolset = str(config.get("toolset", "menu"))
        self._task_id = str(row["task_id"])
        # SkyRL's own name for it; 0 for the toolset's.
        self.max_turns = int(row.get("max_turns", config.get("max_turns", 0)))
        self._gym: BlockingGym = process_gym()
        self._episode: Episode | None = None

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Opens the episode and returns the messages that open it."""
        self.close()
        self._episode = self._gym.run(
            lambda client: Episode.open(client, self._task_id, self._toolset, max_turns=self.max_turns)
        )
        messages = [{"role": each.role, "content": each.content} for each in self._episode.opened.messages]
        return messages, {"task_id": self._task_id}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Plays a turn. Raises EpisodeLost where the gym lost the episode or could not grade it."""
        episode = self._episode
        if episode is None:
            raise RuntimeError("there is no episode: call init first")
        stepped = self._gym.run(lambda _: episode.say(action))
        self.turns = episode.turn
        reward = 0.0
        metadata: dict[str, Any] = {}
        if stepped.outcome:
            reward = self._gym.run(lambda _: episode.reward_or_raise())
            metadata = {"stop_reason": stepped.outcome.stop_reason, "truncated": stepped.outcome.truncated}
        return BaseTextEnvStepOutput(
            # An answer to a call, for which templates have a role.
            observations=[{"role": "tool", "content": result.text} for result in stepped.tool_results],
            reward=reward,
            done=stepped.outcome is not None,
            metadata=metadata,
        )

    def get_metrics(self) -> dict[str, Any]:
        """Returns what SkyRL averages over episodes."""
        return {"turns": self.turns}

    def close(self) -> None:
        """Gives up the episode if it goes on."""
        episode, self._episode = self._episode, None
        if episode:
            self._gym.run(lambda _: episode.close())
