"""The pool: warm, lent to one at a time, taken back only when it is as it was."""

import asyncio

import pytest

from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.pool import Pool


class Factory:
    """Starts fake sandboxes and remembers them."""

    def __init__(self, failures=0):
        self.started = []
        self.failures = failures

    async def __call__(self):
        if self.failures:
            self.failures -= 1
            raise SandboxLost("the engine is gone")
        self.started.append(FakeSandbox())
        return self.started[-1]


@pytest.fixture
async def opened():
    pools = []

    def open_pool(factory, size=2, reuse=True):
        pool = Pool(factory, size=size, reuse=reuse)
        pool.open()
        pools.append(pool)
        return pool

    yield open_pool
    for pool in pools:
        await pool.close()


async def test_a_sandbox_serves_again_once_it_is_empty(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    async with pool.lend() as first:
        await first.write_file("trace", b"x")

    async with pool.lend() as second:
        assert second is first
        assert second.files == {}


async def test_every_use_has_a_uid_of_its_own(opened):
    pool = opened(Factory(), size=1)

    uids = []
    for _ in range(5):
        async with pool.lend() as sandbox:
            uids.append(sandbox.uid)

    assert len(set(uids)) == 5


async def test_without_reuse_every_use_has_a_sandbox_of_its_own(opened):
    factory = Factory()
    pool = opened(factory, size=1, reuse=False)

    for _ in range(3):
        async with pool.lend():
            pass

    assert pool.retired["single_use"] >= 2
    assert len(factory.started) >= 3


async def test_a_sandbox_that_is_not_clean_is_thrown_away(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    async with pool.lend() as first:
        first.scrub = lambda: asyncio.sleep(0, "workspace: a trace")

    async with pool.lend() as second:
        assert second is not first

    assert pool.retired == {"not_clean": 1}


async def test_a_user_that_fails_leaves_a_sandbox_that_nobody_gets(opened):
    pool = opened(Factory(), size=1)
    with pytest.raises(RuntimeError):
        async with pool.lend() as first:
            raise RuntimeError

    async with pool.lend() as second:
        assert second is not first


async def test_a_sandbox_that_died_while_it_waited_is_given_to_nobody(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    async with pool.lend() as first:
        pass
    await asyncio.sleep(0.05)
    await first.close()

    async with pool.lend() as second:
        assert second is not first

    assert pool.retired == {"died": 1}


async def test_who_waits_gets_the_next_one(opened):
    pool = opened(Factory(), size=1)
    first = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.05)
    assert not waiting.done()

    await pool.release(first)

    assert await asyncio.wait_for(waiting, 5) is first


async def test_who_gives_up_waiting_takes_nothing(opened):
    pool = opened(Factory(), size=1)
    first = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.05)
    waiting.cancel()

    await pool.release(first)

    assert await asyncio.wait_for(pool.acquire(), 5) is first


async def test_who_gives_up_at_the_moment_of_the_handover_loses_no_sandbox(opened):
    pool = opened(Factory(), size=1)
    first = await pool.acquire()
    waiting = asyncio.create_task(pool.acquire())
    await asyncio.sleep(0.05)
    pool._offer(first)
    waiting.cancel()
    await asyncio.sleep(0.05)

    assert await asyncio.wait_for(pool.acquire(), 5) is first


async def test_a_failing_engine_is_told_and_asked_again(opened):
    factory = Factory(failures=3)
    pool = opened(factory, size=1)

    with pytest.raises(SandboxLost, match="engine is gone"):
        await pool.acquire()
    await asyncio.sleep(1.2)

    async with pool.lend() as sandbox:
        assert sandbox in factory.started


async def test_closing_closes_what_is_lent_too(opened):
    factory = Factory()
    pool = opened(factory, size=2)
    await pool.acquire()

    await pool.close()

    assert all(sandbox._closed for sandbox in factory.started)


async def test_a_defect_while_starting_or_scrubbing_costs_no_place(opened):
    factory = Factory()
    defects = iter([True, True, True])

    async def start():
        if next(defects, False):
            raise ZeroDivisionError
        return await factory()

    pool = opened(start, size=1)
    with pytest.raises(SandboxLost):
        await pool.acquire()
    await asyncio.sleep(2.0)
    async with pool.lend() as first:
        first.scrub = None

    async with pool.lend() as second:
        assert second is not first


async def test_a_closed_pool_lends_nothing(opened):
    pool = opened(Factory())
    await pool.close()

    with pytest.raises(SandboxLost, match="stops"):
        await pool.acquire()
