"""A short soak: honest and hostile episodes side by side over real containers. The long one is `make soak`."""

import asyncio
from dataclasses import replace

import pytest

from tests.bench.footprint import Footprint, Process
from tests.bench.hostile import ATTACKS
from tests.bench.soak import Soak, soak

QUIET = Footprint(
    containers=20,
    processes=20,
    strangers=frozenset(),
    service=Process(50, 100.0),
    engine=Process(700, 150.0),
)


@pytest.fixture(scope="module")
def played():
    return asyncio.run(soak(episodes=200, at_once=16))


@pytest.mark.docker
@pytest.mark.timeout(400)
def test_neither_an_honest_nor_a_hostile_episode_gets_a_wrong_verdict(played):
    assert played.played.total() == 200
    assert set(ATTACKS) <= set(played.played)
    assert played.wrong == []


@pytest.mark.docker
@pytest.mark.timeout(400)
def test_episodes_leave_no_container_process_descriptor_or_memory(played):
    assert played.growth == []


def test_a_soak_that_only_warms_up_has_not_grown():
    assert Soak(20, footprints=[QUIET, QUIET, QUIET]).growth == []


def test_what_an_engine_holds_for_others_is_no_growth():
    end = replace(QUIET, strangers=frozenset({"theirs"}), engine=Process(800, 150.0))

    assert Soak(20, footprints=[QUIET, QUIET, end]).growth == []


@pytest.mark.parametrize(
    ("end", "grown"),
    [
        (replace(QUIET, containers=21), "containers"),
        (replace(QUIET, processes=21), "processes in containers"),
        (replace(QUIET, service=Process(100, 100.0)), "descriptors of the service"),
        (replace(QUIET, service=Process(50, 200.0)), "MiB of the service"),
        (replace(QUIET, engine=Process(800, 150.0)), "descriptors of the engine"),
        (replace(QUIET, engine=Process(700, 300.0)), "MiB of the engine"),
    ],
)
def test_a_soak_names_what_has_grown(end, grown):
    (sentence,) = Soak(20, footprints=[QUIET, QUIET, end]).growth

    assert sentence.startswith(f"{grown}: ")
