"""Verifiers' own engine over a gym in this process; a stub is the endpoint of the model."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, ClassVar

import pytest

from tests.adapters.place import machine_with_a_gym
from trainer_client.blocking import BlockingGym
from trainer_client.errors import EpisodeLost
from trainer_client.gym import GymClient

pytest.importorskip("verifiers", reason="verifiers is not installed: make test-adapters")

import httpx
import verifiers.v1 as vf
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.client import EvalClientConfig
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import env_config_type, load_environment

ZERO = "bugfix/zero/share"
REPAIR = ("<call> read </call>", "<call> edit add_zero_guard </call>", "<call> submit </call>")


class OnceConfig(HarnessConfig):
    pass


class Once(Harness[OnceConfig]):
    """The smallest program: one request. Those of verifiers are installed from the network at each start."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None
    ) -> ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages += [message_to_wire(message) for message in prompt or []]
        async with httpx.AsyncClient(timeout=30) as http:
            answer = await http.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": messages},
                headers={"authorization": f"Bearer {secret}"},
            )
        return ProgramResult(0 if answer.is_success else 1, "", answer.text)


class Model(BaseHTTPRequestHandler):
    """An endpoint that says the next line of a script, and remembers what it was asked."""

    script: ClassVar[tuple[str, ...]] = REPAIR
    asked: ClassVar[list[list[dict[str, Any]]]] = []

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"]
        self.asked.append(messages)
        turn = sum(message["role"] == "assistant" for message in messages)
        message = {"role": "assistant", "content": self.script[turn]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice]}
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch):
    """The address of the endpoint."""
    monkeypatch.setattr(Model, "asked", [])
    module = ModuleType("once")
    module.__dict__.update(Once=Once, __all__=["Once"])
    monkeypatch.setitem(sys.modules, "once", module)
    monkeypatch.setenv("STUB_KEY", "none")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


@pytest.fixture
async def gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BlockingGym]:
    async with machine_with_a_gym(tmp_path, monkeypatch) as gym:
        yield gym


def play(url: str, player: dict[str, Any] | None = None, **options: Any) -> vf.Episode:
    """Plays an episode as verifiers does; in a thread, as the gym has its loop in this one."""

    async def play() -> vf.Episode:
        config_class = env_config_type("coding-gym")
        config = config_class(
            taskset={"id": "coding-gym"},
            player={"harness": {"id": "once"}, "runtime": {"type": "subprocess"}, **(player or {})},
            **options,
        )
        env = load_environment(config)
        task = next(task for task in env.taskset if task.data.task_id == ZERO)
        client = EvalClientConfig(base_url=url, api_key_var="STUB_KEY")
        async with env.serving():
            return await env.run_episode(task, ModelContext(model="stub", client=client))

    return asyncio.run(play())


async def test_a_repair_is_worth_1(gym: BlockingGym, model: str) -> None:
    episode = await asyncio.to_thread(play, model)

    assert episode.ok, episode.errors
    (trace,) = episode.traces
    assert (trace.reward, trace.num_turns, trace.metrics["turns"]) == (1.0, 3, 3.0)
    first, *_, last = Model.asked
    assert [message["role"] for message in first] == ["system", "user"]
    assert "//" in last[3]["content"]


async def test_what_verifiers_cuts_off_is_graded_as_it_stands(gym: BlockingGym, model: str) -> None:
    episode = await asyncio.to_thread(play, model, {"max_turns": 2})

    (trace,) = episode.traces
    assert (trace.reward, trace.num_turns) == (1.0, 2)
    assert (await asyncio.to_thread(gym.get_info)).live_episodes == 0


async def test_what_the_gym_could_not_grade_is_an_error_and_no_reward(
    gym: BlockingGym, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is not the same as 0."""

    async def lost(*_: Any) -> Any:
        raise EpisodeLost("NOT_FOUND")

    monkeypatch.setattr(GymClient, "grade", lost)

    episode = await asyncio.to_thread(play, model)

    assert not episode.ok
    assert "The episode is lost" in episode.errors[0].message
    assert "hidden_tests" not in episode.traces[0].rewards


async def test_its_tasks_are_those_of_a_split(gym: BlockingGym) -> None:
    def tasks(split: str) -> list[str]:
        config = env_config_type("coding-gym")(taskset={"id": "coding-gym", "split": split})
        return [task.data.task_id for task in load_environment(config).taskset]

    train, test = await asyncio.to_thread(tasks, "train"), await asyncio.to_thread(tasks, "test")
    assert ZERO in train
    assert (len(train), len(test), set(train) & set(test)) == (20, 5, set())
