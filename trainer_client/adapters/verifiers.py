"""The gym as an environment of verifiers, and so of prime-rl (pip install 'verifiers==0.4.0').

    vf-eval coding-gym --env.taskset.suite bugfix --env.toolset menu

The environment has the model's program, verifiers' own, answer turn by turn, and is its user: what the gym answers is
the next message. Ids and log-probabilities are verifiers' own affair. What the gym could not grade is an error of the
episode, which verifiers can play again, and has no reward.
"""

from collections.abc import Iterator
from typing import Literal

import verifiers.v1 as vf

from trainer_client.blocking import process_gym
from trainer_client.episode import Episode, observation_text


class GymTaskData(vf.TaskData):
    """A task, by its name."""

    task_id: str


class GymTask(vf.Task[GymTaskData]):
    """A task of the gym."""


class GymTasksetConfig(vf.TasksetConfig):
    """Which tasks."""

    suite: str = "bugfix"
    split: Literal["train", "validation", "test"] = "train"


class GymTaskset(vf.Taskset[GymTask, GymTasksetConfig]):
    """The tasks of a suite that are of one split."""

    def load(self) -> Iterator[GymTask]:
        """Yields them in the gym's order."""
        for task in process_gym().list_tasks(self.config.suite, self.config.split):
            data = GymTaskData(name=task.task_id, prompt=None, task_id=task.task_id)
            yield GymTask(data, self.config.task)


class GymEnvConfig(vf.EnvConfig):
    """How episodes are played."""

    player: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    """The policy. It needs no sandbox of verifiers: what it writes runs in the gym's."""
    toolset: Literal["menu", "coding"] = "menu"
    max_turns: int = 0
    """0 for the toolset's own."""


class GymEnv(vf.Env[GymEnvConfig]):
    """Plays an episode of the gym."""

    async def run(self, task: GymTask, agents: vf.Agents) -> None:
        """Plays to the end and records the reward.

        Raises:
            EpisodeLost: The gym lost the episode or could not grade it.
        """
        gym = process_gym()
        episode = await gym.do(
            Episode.open(gym.client, task.data.task_id, self.config.toolset, max_turns=self.config.max_turns)
        )
        try:
            system, *opening = episode.opened.messages
            seat = GymTask(task.data.model_copy(update={"system_prompt": system.content}), task.config)
            said = "\n\n".join(message.content for message in opening)
            async with agents.player.interaction(seat) as interaction:
                while episode.outcome is None:
                    segment = await interaction.turn(said)
                    if segment.terminated:
                        break
                    reply = segment.last_reply
                    said = observation_text(await gym.do(episode.say(reply)))
            reward = await gym.do(episode.reward_or_raise())
        finally:
            await gym.do(episode.close())
        interaction.trace.record_reward("hidden_tests", reward)
        interaction.trace.record_metric("turns", float(episode.turn))
