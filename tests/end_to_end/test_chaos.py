"""A short chaos: each kind of fault once in a run of a few dozen episodes. The long one is `make chaos`."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.bench.chaos import KINDS, chaos
from tests.bench.private_engine import PrivateEngine

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(PrivateEngine.lacks()), reason=PrivateEngine.lacks()),
]

SMALL = {
    "seed": 1,
    "steps": 8,
    "tasks-per-step": 2,
    "group-size": 4,
    "cohort-size": 4,
    "validate-every": 2,
    "validation-episodes": 1,
    "test-episodes": 1,
    "learning-rate": 0.01,
}


def test_a_run_whose_parts_are_killed_one_after_the_other_ends_as_if_nothing_had_been():
    # Not the folder of the test: the paths of an engine's sockets have 107 bytes at most.
    with TemporaryDirectory(prefix="chaos-") as folder:
        storm, claims = asyncio.run(chaos(Path(folder), SMALL, seed=1, episodes_per_fault=4, rounds=1))

    assert set(storm.faults) == set(KINDS)
    assert [claim for claim in claims if not claim.holds] == []
