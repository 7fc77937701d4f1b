"""The gym for TRL: an `environment_factory` of its `GRPOTrainer` (pip install 'trl==1.16.0').

    with BlockingGym.connect() as gym:
        GRPOTrainer(
            model="Qwen/Qwen3-0.6B",
            environment_factory=environments(gym, "coding"),
            train_dataset=Dataset.from_list(rows(gym.list_tasks("bugfix", "train"))),
            args=GRPOConfig(max_completion_length=4096, ...),
        ).train()

TRL samples, parses calls and appends the answers by the model's own template; each call is a turn of the episode. An
environment is used for one episode after another. TRL does not ask whether an episode is over: a call that comes after
the end is answered so. What the gym could not grade has no reward, and TRL leaves it out of the baseline. To learn from
ids that are the gym's, use `trainer_client.adapters.trl`.
"""

import inspect
import json
import os
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from trainer_client.blocking import BlockingGym
from trainer_client.episode import Episode, observation_text
from trainer_client.errors import EpisodeLost
from trainer_client.wire import Task, Tool

OVER = "[episode over]"
_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool, "number": float}
_openings = count()


def rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Returns the rows of a data set. `reset` writes the task into the empty prompt."""
    return [{"prompt": [{"role": "user", "content": ""}], "task_id": task.task_id} for task in tasks]


def environments(gym: BlockingGym, toolset: str, **options: Any) -> "Callable[[], GymEnvironment]":
    """Returns the factory for a toolset: menu or coding. Its tools are what the gym says that they are.

    `options` are those of `GymClient.create`, such as max_turns.
    """
    tools = next(each.tools for each in gym.get_info().toolsets if each.name == toolset)
    # TRL finds the tools on the class: each public function of it but `reset` and `get_reward`.
    methods = {tool.name: _method(tool) for tool in tools}
    made: type[GymEnvironment] = type("GymEnvironment", (GymEnvironment,), methods)
    return lambda: made(gym, toolset, options)


class GymEnvironment:
    """Plays one episode after another."""

    def __init__(self, gym: BlockingGym, toolset: str, options: dict[str, Any]) -> None:
        self._gym = gym
        self._toolset = toolset
        self._options = options
        self._episode: Episode | None = None

    def reset(self, task_id: str, **_: Any) -> str:
        """Opens an episode, after the end of the one before, and returns its task."""
        before, self._episode = self._episode, None
        if before:
            self._gym.run(lambda _: before.close())
        # Processes of one run must not play the same episodes.
        group = f"trl/{os.environ.get('RANK', '0')}/{task_id}"
        opening = {"group": group, "index": next(_openings), **self._options}
        self._episode = self._gym.run(lambda client: Episode.open(client, task_id, self._toolset, **opening))
        # Those before it tell how to call, which the model's template does here.
        return self._episode.opened.messages[-1].content

    def get_reward(self) -> float | None:
        """Returns 1 where every hidden test passes, else 0; None where the gym could not tell."""
        episode = self._episode
        return self._gym.run(lambda _: episode.reward("cancelled")) if episode else None

    def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        episode = self._episode
        if episode is None or episode.outcome:
            return OVER
        try:
            stepped = self._gym.run(lambda _: episode.call((tool, arguments)))
        except EpisodeLost:
            # What TRL would make an answer of. Asked for its reward, the episode has none.
            return OVER
        said = observation_text(stepped)
        return f"{said}\n{OVER}" if stepped.outcome else said


def _method(tool: Tool) -> Callable[..., str]:
    """Makes a tool a method with the types and the docstring that TRL describes it to the model by."""

    def call(self: GymEnvironment, **arguments: Any) -> str:
        return self._call(tool.name, arguments)

    schema = json.loads(tool.parameters_json)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    hints: dict[str, Any] = {"return": str}
    described = []
    for name, each in schema["properties"].items():
        type_, needed = _TYPES[each["type"]], name in schema["required"]
        hint = type_ if needed else type_ | None
        default = inspect.Parameter.empty if needed else None
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )
        hints[name] = hint
        choices = f" (choices: {json.dumps(each['enum'])})" if "enum" in each else ""
        described.append(f"    {name}: {each.get('description', 'What it says.')}{choices}")
    call.__name__, call.__annotations__ = tool.name, hints
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    call.__doc__ = "\n".join([tool.description, "", *(["Args:", *described] if described else [])])
    return call
