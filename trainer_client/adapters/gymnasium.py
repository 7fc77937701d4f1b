"""The gym as an environment of Gymnasium (pip install gymnasium): text in, text out, the reward at the end.

    with BlockingGym.connect() as gym:
        env = CodingEnv(gym, gym.list_tasks("bugfix", "train"))
        observation, info = env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step("<call> read </call>")

For many at a time: `gymnasium.vector.SyncVectorEnv`, or threads. Not `AsyncVectorEnv`: its processes would each need a
connection of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium

from trainer_client.blocking import BlockingGym
from trainer_client.episode import Episode, observation_text
from trainer_client.wire import Task


class AnyText(gymnasium.Space[str]):
    """All texts. Gymnasium's own `Text` wants its characters listed, and sources have any."""

    def contains(self, x: Any) -> bool:
        """Tells whether it is a text."""
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Returns the empty text: a random one would be no action that means anything."""
        return ""


class CodingEnv(gymnasium.Env[str, str]):
    """An episode at a time. An action is what the policy says in a turn, an observation what it is answered.

    The reward is 0 before the end, and 1 at the end where every hidden test passes. `info` of the last step has the
    `verdict` and the `outcome`, so that a reward of one's own can be made of them.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012, it is an instance variable there
    observation_space = AnyText()
    action_space = AnyText()

    def __init__(self, gym: BlockingGym, tasks: Sequence[Task], toolset: str = "menu") -> None:
        """Plays the tasks, drawn by the environment's own generator, with a toolset: menu or coding."""
        self._gym = gym
        self._task_ids = [task.task_id for task in tasks]
        self._toolset = toolset
        self._episode: Episode | None = None

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Opens an episode, after the end of one that is still open.

        Args:
            seed: Begins the draws anew: equal seeds give equal episodes.
            options: {"task_id": ...} for a certain task.
        """
        super().reset(seed=seed)
        self.close()
        drawn = self._task_ids[int(self.np_random.integers(len(self._task_ids)))]
        task_id = str((options or {}).get("task_id", drawn))
        run_seed = int(self.np_random.integers(2**31))
        self._episode = self._gym.run(
            lambda client: Episode.open(
                client, task_id, self._toolset, group=f"gymnasium/{task_id}", run_seed=run_seed
            )
        )
        opened = self._episode.opened
        # The last message is the task; those before it say how to call.
        info = {"task_id": task_id, "messages": opened.messages, "max_turns": opened.max_turns}
        return "\n\n".join(message.content for message in opened.messages), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays a turn.

        Raises:
            EpisodeLost: The gym lost the episode, or could not grade it: it has no reward, not 0. Reset, and go on.
        """
        episode = self._episode
        if episode is None:
            raise RuntimeError("there is no episode: reset first")
        stepped = self._gym.run(lambda _: episode.say(action))
        observation = observation_text(stepped)
        info: dict[str, Any] = {"tool_results": stepped.tool_results}
        if stepped.outcome is None:
            return observation, 0.0, False, False, info
        reward = self._gym.run(lambda _: episode.reward_or_raise())
        info |= {"verdict": episode.verdict, "outcome": stepped.outcome}
        return observation, reward, stepped.outcome.terminated, stepped.outcome.truncated, info

    def close(self) -> None:
        """Gives up the episode that is open, if one is."""
        episode, self._episode = self._episode, None
        if episode:
            self._gym.run(lambda _: episode.close())
