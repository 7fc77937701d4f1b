"""The gym as an environment server of OpenEnv (pip install 'openenv==0.10.0').

    uvicorn --factory trainer_client.adapters.openenv:app

serves the gym of this machine; whoever has OpenEnv's client, and nothing of this project, plays by it:

    async with GenericEnvClient(base_url="http://127.0.0.1:8000") as env:
        result = await env.reset(task_id="bugfix/zero/share")
        result = await env.step({"text": "<call> read </call>"})

A session has one episode at a time. OpenEnv asks its clients for no credential: bind it to this machine alone. Its
client waits 60 seconds for an answer unless it is told to wait longer.
"""

from typing import Any

from fastapi import FastAPI
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

from trainer_client.blocking import BlockingGym, process_gym
from trainer_client.episode import Episode, observation_text
from trainer_client.errors import EpisodeLost


class TurnAction(Action):
    """What the policy says in a turn."""

    text: str = Field(
        description="The text of the turn, calls included, without the markup of a chat template."
    )


class TurnObservation(Observation):
    """What the policy is told.

    `reward` is 1 at the end where every hidden test passes and 0 where one does not; None before the end, and at the
    end where the gym could not tell (`metadata` has `lost`): leave such an episode out.
    """

    text: str = ""
    messages: list[dict[str, str]] = Field(default_factory=list, description="What opens the conversation.")


class GymEnvironment(Environment[TurnAction, TurnObservation, State]):
    """Plays one episode after another in a session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, gym: BlockingGym) -> None:
        super().__init__()
        self._gym = gym
        self._episode: Episode | None = None

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        task_id: str,
        toolset: str = "menu",
        **_: Any,
    ) -> TurnObservation:
        """Opens an episode, after the end of one that is still open; equal seeds give equal episodes."""
        self.close()
        group = "" if seed is None else f"openenv/{seed}/{task_id}"
        self._episode = self._gym.run(lambda client: Episode.open(client, task_id, toolset, group=group))
        opening = self._episode.opened.messages
        return TurnObservation(
            text="\n\n".join(message.content for message in opening),
            messages=[{"role": message.role, "content": message.content} for message in opening],
            metadata={"task_id": task_id, "max_turns": self._episode.opened.max_turns},
        )

    def step(self, action: TurnAction, timeout_s: float | None = None, **_: Any) -> TurnObservation:
        """Plays a turn; `timeout_s` has no effect, the gym's own limits hold."""
        episode = self._episode
        if episode is None:
            raise RuntimeError("there is no episode: reset first")
        if episode.outcome:
            raise RuntimeError("the episode is over: reset")
        try:
            stepped = self._gym.run(lambda _: episode.say(action.text))
            reward = self._gym.run(lambda _: episode.reward()) if stepped.outcome else None
        except EpisodeLost as loss:
            self._episode = None
            return TurnObservation(done=True, metadata={"lost": loss.reason})
        metadata: dict[str, Any] = {}
        if stepped.outcome:
            metadata = {"stop_reason": stepped.outcome.stop_reason, "truncated": stepped.outcome.truncated}
            if reward is None:
                metadata["lost"] = episode.verdict.reason if episode.verdict else "not graded"
        return TurnObservation(
            text=observation_text(stepped), done=stepped.outcome is not None, reward=reward, metadata=metadata
        )

    @property
    def state(self) -> State:
        """Returns the episode and its turns so far."""
        episode = self._episode
        return State(
            episode_id=episode.opened.episode_id if episode else None,
            step_count=episode.turn if episode else 0,
        )

    def close(self) -> None:
        """Gives up the episode if it goes on."""
        episode, self._episode = self._episode, None
        if episode:
            self._gym.run(lambda _: episode.close())


def app(gym: BlockingGym | None = None) -> FastAPI:
    """Returns the server, for as many sessions as the gym has room for episodes."""
    connected = gym or process_gym()
    return create_app(
        lambda: GymEnvironment(connected),
        TurnAction,
        TurnObservation,
        env_name="coding_gym",
        max_concurrent_envs=connected.get_info().capacity,
    )
