"""Tasks that bring an environment: their sandboxes share the places of the pool with those of the gym's own image."""

import asyncio
from dataclasses import replace

import pytest

from gym_service.grading.cache import VerdictCache
from gym_service.proof import Proof, ProofBook
from gym_service.sandbox.base import EnvironmentRefused, SandboxLost
from gym_service.sandbox.fake import FakeSandbox
from gym_service.sandbox.isolation import Isolation
from gym_service.sandbox.policy import SandboxLimits
from gym_service.sandbox.pool import Pool
from gym_service.tasks.environment import PLAIN, Environment
from gym_service.tasks.repository import RepositoryTask
from gym_service.values import Submission
from tests.test_certificate import sign

LIMITS = SandboxLimits()
SMALL = replace(LIMITS, memory_bytes=64 << 20)
RED, BLUE = Environment("sha256:red"), Environment("sha256:blue")


class Fakes:
    """Starts fake sandboxes, of the gym's own image and elsewhere, and remembers them with their environment."""

    def __init__(self):
        self.started = []
        self.opened = []
        self.refused = {}
        self.failing = set()

    async def start(self, limits=LIMITS):
        return await self._start(PLAIN, limits)

    async def open(self, environment):
        self.opened.append(environment)
        if environment in self.refused:
            raise EnvironmentRefused(self.refused[environment])

        async def start(limits=LIMITS):
            return await self._start(environment, limits)

        return start

    def image_of(self, environment):
        return f"made of {environment.image}"

    def isolation_of(self, environment):
        return (
            Isolation("fake", image_digest=self.image_of(environment)) if environment in self.opened else None
        )

    async def _start(self, environment, limits):
        await asyncio.sleep(0)
        if environment in self.failing:
            raise SandboxLost("it does not start")
        sandbox = FakeSandbox()
        sandbox.environment, sandbox.asked = environment, limits
        self.started.append(sandbox)
        alive = sum(each.alive for each in self.started)
        assert alive <= self.size, "there are more containers than places"
        return sandbox

    def of(self, environment):
        return [each for each in self.started if each.environment == environment]


@pytest.fixture
async def make():
    pools = []

    async def make(size=2, reuse=True):
        fakes = Fakes()
        fakes.size = size
        pools.append(Pool(fakes.start, LIMITS, size=size, reuse=reuse, elsewhere=fakes))
        pools[-1].open()
        # Full, so that whoever wants something else has to take another's place.
        await asyncio.sleep(0.05)
        assert pools[-1].warm == size
        return pools[-1], fakes

    yield make
    for pool in pools:
        await pool.close()


async def test_a_task_gets_a_sandbox_of_its_environment_in_the_place_of_another(make):
    pool, _ = await make()

    async with pool.lend(RED) as red, pool.lend(BLUE) as blue:
        assert (red.environment, blue.environment) == (RED, BLUE)

    assert pool.retired == {"own_image": 2}
    assert pool.status.misses == 2


async def test_a_sandbox_of_an_environment_serves_again_once_it_is_empty(make):
    pool, _ = await make(size=1)
    async with pool.lend(RED) as first:
        await first.write_file("trace", b"x")
    await asyncio.sleep(0.05)

    async with pool.lend(RED) as second:
        assert second is first
        assert second.files == {}
    assert pool.status.hits == 1


async def test_a_sandbox_that_serves_once_leaves_its_place_empty_until_somebody_waits(make):
    pool, fakes = await make(size=1, reuse=False)
    for _ in range(2):
        async with pool.lend(RED):
            pass
        await asyncio.sleep(0.05)
        assert pool.warm == 0

    async with pool.lend() as plain:
        assert plain.environment == PLAIN
    assert len(fakes.of(RED)) == 2


async def test_who_needs_nothing_else_takes_no_notice(make):
    pool, fakes = await make()

    for commands in (Environment(), replace(PLAIN)):
        async with pool.lend(commands) as sandbox:
            assert sandbox.environment == PLAIN

    assert fakes.opened == []
    assert pool.image_of(PLAIN) == ""
    assert pool.isolation_of(PLAIN) is None


async def test_many_that_want_different_things_all_get_theirs(make):
    pool, _ = await make(size=3)
    served = []

    async def use(environment):
        async with pool.lend(environment) as sandbox:
            await asyncio.sleep(0.001)
            served.append(sandbox.environment == environment)

    await asyncio.wait_for(asyncio.gather(*(use([PLAIN, RED, BLUE][n % 3]) for n in range(90))), 30)

    assert served == [True] * 90


async def test_many_that_want_different_things_once_all_get_theirs(make):
    pool, fakes = await make(size=3, reuse=False)

    async def use(environment):
        async with pool.lend(environment) as sandbox:
            assert sandbox.environment == environment

    await asyncio.wait_for(asyncio.gather(*(use([PLAIN, RED, BLUE][n % 3]) for n in range(60))), 30)

    # Each start is somebody's, but for those that were given up for another.
    assert len(fakes.started) <= 60 + pool.retired["own_image"] + 3


async def test_an_environment_with_limits_of_its_own_gets_both(make):
    pool, _ = await make()

    sandbox = await pool.acquire(SMALL, RED)

    assert (sandbox.environment, sandbox.asked, sandbox.limits) == (RED, SMALL, SMALL)
    await pool.release(sandbox)
    await asyncio.sleep(0.05)
    async with pool.lend(RED) as again:
        assert again is not sandbox


async def test_an_environment_that_is_refused_takes_no_place(make):
    pool, fakes = await make(size=1)
    fakes.refused[RED] = "take VOLUME out"

    with pytest.raises(EnvironmentRefused, match="take VOLUME out"):
        await pool.acquire(environment=RED)

    assert pool.warm == 1


@pytest.mark.parametrize("reuse", [True, False])
async def test_an_environment_that_does_not_start_fails_those_who_want_it_and_nobody_else(make, reuse):
    pool, fakes = await make(size=1, reuse=reuse)
    async with pool.lend(RED):
        pass
    await asyncio.sleep(0.05)
    fakes.failing.add(RED)
    for each in fakes.started:
        await each.close()

    for _ in range(2):
        with pytest.raises(SandboxLost, match="does not start"):
            await asyncio.wait_for(pool.acquire(environment=RED), 10)
    async with asyncio.timeout(10), pool.lend() as plain:
        assert plain.environment == PLAIN


async def test_a_pool_without_environments_says_so():
    pool = Pool(Fakes().start, LIMITS, size=1, reuse=True)

    with pytest.raises(EnvironmentRefused, match="nothing here has sandboxes"):
        await pool.acquire(environment=RED)


# What is written down of an image


def task_in(environment):
    empty = {"fail_to_pass": (), "pass_to_pass": (), "twins": {}, "plain": ()}
    return RepositoryTask("s/a", "s", "train", "", "", {}, {}, {}, environment=environment, **empty)


def test_a_proof_holds_for_the_image_that_the_task_ran_in(tmp_path):
    def book(image):
        return ProofBook(tmp_path / "proofs.json", "gym", lambda environment: image)

    book("first").add([Proof(task_in(RED), ()), Proof(task_in(PLAIN), ())])

    assert book("first").holds(task_in(RED))
    assert not book("second").holds(task_in(RED))
    assert not book("").holds(task_in(RED))
    assert book("second").holds(task_in(PLAIN))
    assert not ProofBook(tmp_path / "proofs.json", "first").holds(task_in(RED))


def test_an_image_that_is_not_there_proves_nothing(tmp_path):
    book = ProofBook(tmp_path / "proofs.json", "gym", lambda environment: "")
    book.add([Proof(task_in(RED), ())])

    assert not book.holds(task_in(RED))


def test_a_verdict_is_of_the_image_that_it_was_reached_in():
    cache = VerdictCache("gym", "profile")
    keys = {cache.key(task_in(RED), "1", Submission(), "seed", image) for image in ("", "first", "second")}

    assert len(keys) == 3
    assert sign().image_digest == "sha256:image"
    assert sign(image="sha256:own").image_digest == "sha256:own"


def test_an_environment_names_the_same_sandboxes_whatever_else_it_says():
    assert RED.place == RED
    assert {Environment("a", variables={"A": "1"}), Environment("a", variables={"A": "1"})} == {
        Environment("a", variables={"A": "1"})
    }
    assert Environment("a", variables={"A": "1"}) != Environment("a", variables={"A": "2"})


async def test_a_sandbox_goes_to_who_wants_it_as_it_is_but_not_for_long(make, monkeypatch):
    """Else each use would throw away the sandbox of the one before."""
    pool, fakes = await make(size=1)
    served = []

    async def use(environment):
        async with pool.lend(environment):
            served.append(environment)

    async with pool.lend(RED):
        waiting = [asyncio.create_task(use(each)) for each in (BLUE, RED, RED)]
        await asyncio.sleep(0.05)
    await asyncio.gather(*waiting)
    assert served == [RED, RED, BLUE]
    assert len(fakes.of(RED)) == len(fakes.of(BLUE)) == 1

    monkeypatch.setattr("gym_service.sandbox.pool._PATIENCE_SECONDS", 0.01)
    async with pool.lend(RED):
        waiting = [asyncio.create_task(use(each)) for each in (BLUE, RED)]
        await asyncio.sleep(0.05)
    await asyncio.gather(*waiting)
    assert served[3:] == [BLUE, RED]
