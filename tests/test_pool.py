"""The pool: warm, lent to one at a time, taken back only when it is as it was."""

import asyncio
from dataclasses import replace

import pytest

from gym_service.sandbox.base import SandboxLost
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import Pool

LIMITS = SandboxLimits()
SMALL = replace(LIMITS, memory_bytes=64 << 20)


class Factory:
    """Starts fake sandboxes and remembers them."""

    def __init__(self, failures=0, start_seconds=0.0):
        self.started = []
        self.started_with = []
        self.failures = failures
        self.start_seconds = start_seconds
        self.running = self.most_at_once = self.most_alive = 0

    async def __call__(self, limits=LIMITS):
        if self.failures:
            self.failures -= 1
            raise SandboxLost("the engine is gone")
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(self.start_seconds)
        self.running -= 1
        self.started.append(FakeSandbox())
        self.started_with.append(limits)
        self.most_alive = max(self.most_alive, sum(sandbox.alive for sandbox in self.started))
        return self.started[-1]


@pytest.fixture
async def opened():
    pools = []

    def open_pool(factory, size=2, reuse=True):
        pool = Pool(factory, LIMITS, size=size, reuse=reuse)
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
    factory = Factory(failures=1)
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
    defects = iter([True])

    async def start():
        if next(defects, False):
            raise ZeroDivisionError
        return await factory()

    pool = opened(start, size=1)
    with pytest.raises(SandboxLost):
        await pool.acquire()
    await asyncio.sleep(1.2)
    async with pool.lend() as first:
        first.scrub = None

    async with pool.lend() as second:
        assert second is not first


async def test_a_closed_pool_lends_nothing(opened):
    pool = opened(Factory())
    await pool.close()

    with pytest.raises(SandboxLost, match="stops"):
        await pool.acquire()


# --- starting in the background ---


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # Conditions of any kind, which tell nobody.
            await asyncio.sleep(0.005)


async def test_while_nobody_waits_one_sandbox_is_started_at_a_time(opened):
    factory = Factory(start_seconds=0.01)
    pool = opened(factory, size=6)

    await until(lambda: pool.warm == 6)

    assert factory.most_at_once == 1


@pytest.mark.parametrize(("waiting", "at_once"), [(2, 2), (6, 3)])
async def test_who_waits_has_more_started_at_once_but_never_more_than_three(opened, waiting, at_once):
    factory = Factory(start_seconds=0.01)
    pool = opened(factory, size=6)

    await asyncio.gather(*(pool.acquire() for _ in range(waiting)))

    assert factory.most_at_once == at_once


async def test_what_ended_is_replaced_one_by_one_while_others_are_in_use(opened):
    factory = Factory(start_seconds=0.01)
    pool = opened(factory, size=6, reuse=False)
    sandboxes = await asyncio.gather(*(pool.acquire() for _ in range(6)))
    factory.most_at_once = 0

    for sandbox in sandboxes[:5]:
        await pool.release(sandbox)
    await until(lambda: pool.warm == 5)

    assert factory.most_at_once == 1


# --- limits of one's own ---


async def test_limits_of_ones_own_have_a_container_that_serves_once(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    warm = await pool.acquire()
    await pool.release(warm)

    own = await pool.acquire(SMALL)
    await pool.release(own)
    after = await pool.acquire()

    assert factory.started_with == [LIMITS, SMALL, LIMITS]
    assert [own.limits, after.limits] == [SMALL, LIMITS]
    assert not warm.alive
    assert not own.alive
    assert pool.retired == {"own_limits": 1, "single_use": 1}


async def test_output_and_time_of_ones_own_need_no_other_container_and_hold_for_one_use(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    tight = replace(LIMITS, output_bytes=5000, command_timeout_seconds=2.0)

    first = await pool.acquire(tight)
    seen = first.limits
    await pool.release(first)
    second = await pool.acquire()

    assert second is first
    assert [seen, second.limits] == [tight, LIMITS]


async def test_of_sandboxes_with_limits_of_their_own_three_are_started_at_once(opened):
    factory = Factory(start_seconds=0.01)
    pool = opened(factory, size=6)
    await until(lambda: pool.warm == 6)

    await asyncio.gather(*(pool.acquire(SMALL) for _ in range(6)))

    assert factory.most_at_once == 3


async def test_sandboxes_with_limits_of_their_own_never_grow_the_pool_and_all_get_theirs(opened):
    factory = Factory(start_seconds=0.01)
    pool = opened(factory, size=5)

    async def use(limits):
        sandbox = await pool.acquire(limits)
        await asyncio.sleep(0.01)
        await pool.release(sandbox)

    async with asyncio.timeout(10):
        await asyncio.gather(*(use(SMALL if number % 2 else LIMITS) for number in range(40)))
    await until(lambda: pool.warm == 5)

    assert factory.most_alive <= 5
    assert pool.status.lent == 0


async def test_a_sandbox_with_limits_of_its_own_that_cannot_start_gives_its_place_back(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    await until(lambda: pool.warm == 1)
    factory.failures = 1

    with pytest.raises(SandboxLost, match="engine is gone"):
        await pool.acquire(SMALL)

    assert await asyncio.wait_for(pool.acquire(), 5)


async def test_who_gives_up_waiting_for_limits_of_its_own_leaves_no_sandbox_and_no_gap(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    await until(lambda: pool.warm == 1)
    factory.start_seconds = 0.05

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.acquire(SMALL), 0.02)
    await until(lambda: pool.warm == 1)

    assert [sandbox.alive for sandbox in factory.started] == [False, False, True]


async def test_closing_ends_the_wait_for_limits_of_ones_own(opened):
    factory = Factory()
    pool = opened(factory, size=1)
    await until(lambda: pool.warm == 1)
    factory.start_seconds = 60
    waiting = asyncio.create_task(pool.acquire(SMALL))
    await asyncio.sleep(0.01)

    await pool.close()

    with pytest.raises(SandboxLost, match="stops"):
        await asyncio.wait_for(waiting, 1)


# --- what is told about it ---


async def test_hits_misses_and_the_time_waited_are_counted(opened):
    pool = opened(Factory(start_seconds=0.05), size=1)

    first = await pool.acquire()
    await pool.release(first)
    await until(lambda: pool.warm == 1)
    await pool.acquire()

    status = pool.status
    assert (status.size, status.warm, status.lent, status.started) == (1, 0, 1, 1)
    assert (status.hits, status.misses) == (1, 1)
    assert 0.04 < status.waited_seconds < 1


async def test_a_sandbox_that_served_often_enough_is_worn(opened, monkeypatch):
    monkeypatch.setattr("gym_service.sandbox.pool._USES_AT_MOST", 2)
    pool = opened(Factory(), size=1)

    for _ in range(2):
        async with pool.lend():
            pass
    await until(lambda: pool.warm == 1)

    assert pool.retired == {"worn": 1}


async def test_a_sandbox_that_dies_while_it_is_scrubbed_died(opened):
    pool = opened(Factory(), size=1)
    async with pool.lend() as sandbox:
        await sandbox.close()

    await until(lambda: pool.warm == 1)

    assert pool.retired == {"died": 1}


async def test_the_log_says_what_was_not_clean(opened, caplog):
    caplog.set_level("INFO")
    pool = opened(Factory(), size=1)
    async with pool.lend() as sandbox:
        sandbox.scrub = lambda: asyncio.sleep(0, "/tmp: a trace")

    await until(lambda: pool.retired)

    assert "/tmp: a trace" in caplog.text
