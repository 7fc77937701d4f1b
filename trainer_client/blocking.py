"""The client without async, for trainers that step through episodes call by call.

It lives in an event loop in a thread of its own, which also renews leases while the trainer is busy. Any thread may
call; what many threads call at once leaves in one message.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from trainer_client.endpoint import Endpoint
from trainer_client.gym import GymClient

_P = ParamSpec("_P")
_T = TypeVar("_T")
_starting = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []
"""The event loop of all clients of this process, once there is one; never closed, which gRPC would complain of."""


_forked_from: list[asyncio.AbstractEventLoop] = []
"""The event loop of the process that this one was forked from, if it had one."""
_FORKED = (
    "this process was forked from one that had a connection to a gym, where gRPC hangs or crashes: connect in the "
    "children alone, or start them by spawn (multiprocessing.set_start_method('spawn'))"
)


def _background_loop() -> asyncio.AbstractEventLoop:
    with _starting:
        if _forked_from:
            raise RuntimeError(_FORKED)
        if not _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="gym", daemon=True).start()
            _loops.append(loop)
        return _loops[0]


def _forget_loop() -> None:
    _forked_from.extend(_loops)
    _loops.clear()
    _starting.release()


# A thread does not survive a fork.
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_forget_loop)


def _wait(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _T:
    waited = _start(loop, work)
    try:
        return waited.result()
    except BaseException:
        # Ctrl-C while it waits: nobody is there for the answer any more.
        waited.cancel()
        raise


def _start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> Future[_T]:
    problem = ""
    if loop not in _loops:
        problem = _FORKED
    elif _is_running(loop):
        problem = (
            "called in the client's own event loop, which would wait for itself: await the GymClient there"
        )
    if problem:
        work.close()
        raise RuntimeError(problem)
    return asyncio.run_coroutine_threadsafe(work, loop)


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this thread is the loop's own."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _waiting(
    method: Callable[Concatenate[GymClient, _P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate["BlockingGym", _P], _T]:
    """Turns a method of the client into one that waits for its answer."""

    @wraps(method)
    def call(self: "BlockingGym", /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return _wait(self._loop, method(self._client, *args, **kwargs))

    return call


class BlockingGym:
    """Talks to one gym, from any thread. Made by `connect`; methods, arguments and errors are those of `GymClient`.

    A process that forks connects in its children alone: gRPC does not survive the fork of a process that has connected.
    """

    def __init__(self, client: GymClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop

    @classmethod
    @contextmanager
    def connect(cls, endpoint: Endpoint | None = None, **options: Any) -> Iterator[Self]:
        """Connects to a gym; takes, raises and does at the end what `GymClient.connect` does."""
        loop = _background_loop()
        connection = GymClient.connect(endpoint, **options)
        gym = cls(_wait(loop, connection.__aenter__()), loop)
        try:
            yield gym
        finally:
            # In a child that left the block as well, the connection is its parent's.
            if loop in _loops:
                _wait(loop, connection.__aexit__(None, None, None))

    def run(self, work: Callable[[GymClient], Coroutine[Any, Any, _T]]) -> _T:
        """Does something with the client itself, in its event loop, and waits for what comes of it."""
        return _wait(self._loop, work(self._client))

    @property
    def client(self) -> GymClient:
        """The client itself, for work that is given to `run` or `do`."""
        return self._client

    async def do(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Does something with `client` in its event loop, awaited in another one, that of the caller."""
        return await asyncio.wrap_future(_start(self._loop, work))

    get_info = _waiting(GymClient.get_info)
    list_tasks = _waiting(GymClient.list_tasks)
    check_task = _waiting(GymClient.check_task)
    register_tokenizer = _waiting(GymClient.register_tokenizer)
    create = _waiting(GymClient.create)
    step = _waiting(GymClient.step)
    step_text = _waiting(GymClient.step_text)
    step_calls = _waiting(GymClient.step_calls)
    end = _waiting(GymClient.end)
    cancel_group = _waiting(GymClient.cancel_group)
    grade = _waiting(GymClient.grade)
    get_episode = _waiting(GymClient.get_episode)


def process_gym() -> BlockingGym:
    """Returns a connection to the gym of this machine that lasts as long as this process.

    For trainers that make an environment, or call a function, for each episode and have no place to close anything.
    Raises as `GymClient.connect`.
    """
    with _connecting:
        return _connected()


_connecting = threading.Lock()


@cache
def _connected() -> BlockingGym:
    connection = BlockingGym.connect()
    gym = connection.__enter__()
    atexit.register(connection.__exit__, None, None, None)
    return gym
