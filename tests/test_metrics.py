"""Metrics, read by the parser of Prometheus: they count what was played, and the board asks for no others."""

import json
import re
from importlib.resources import files

import grpc
import pytest
from gym_contract.v1 import gym_pb2 as pb
from prometheus_client.parser import text_string_to_metric_families

from gym_service.accounts import OTHERS, Accounts, Latencies
from tests.conftest import fake_sandbox, gym_over
from tests.test_viewer import ask, bearer, played


@pytest.fixture
async def gym(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, viewer_port=0) as gym:
        yield gym


async def samples(gym):
    """Gives the metrics of a gym, by name and labels."""
    status, header, body = await ask(gym, "/metrics", **bearer(gym))
    assert status == 200
    assert header["Content-Type"].startswith("text/plain")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def test_metrics_count_what_was_played(gym):
    await played(gym, request_id="good")
    await played(gym, ("<call> edit hardcode_tests </call>", "<call> submit </call>"), request_id="hack")
    live = await gym.create("live")
    with pytest.raises(grpc.aio.AioRpcError):
        await gym.step(live.episode_id, 5, "x")
    found = await samples(gym)

    assert found["gym_episodes_live",] == 1
    assert found["gym_episodes_kept",] == 2
    assert found["gym_episodes_created_total", "owner"] == 3
    assert found["gym_episodes_ended_total", "SUBMITTED"] == 2
    assert found["gym_episodes_ended_total", "INFRASTRUCTURE"] == 0
    assert found["gym_verdicts_total", "RESOLVED"] == found["gym_verdicts_total", "UNRESOLVED"] == 1
    assert found["gym_flags_total", "public_only"] == 1
    assert found["gym_turn_seconds_count",] == found["gym_turn_seconds_bucket", "+Inf"] == 5
    assert found["gym_turn_seconds_sum",] > 0
    assert found["gym_grading_seconds_count",] == 2
    assert found["gym_errors_total", "TURN_NOT_DUE"] == 1
    assert found["gym_sandboxes_size",] == 6
    assert found["gym_sandboxes_started_total",] >= 1
    assert found["gym_sandbox_takes_total", "at_once"] + found["gym_sandbox_takes_total", "after_wait"] == 5


async def test_a_call_without_a_token_is_counted_as_an_error(gym):
    with pytest.raises(grpc.aio.AioRpcError):
        await gym.stub.GetGymInfo(pb.GetGymInfoRequest())

    assert (await samples(gym))["gym_errors_total", "TOKEN_INVALID"] == 1


async def test_every_query_of_the_board_names_a_metric_that_there_is(gym):
    board = json.loads(files("gym_service.viewer").joinpath("grafana.json").read_text())
    await played(gym, ("<call> edit hardcode_tests </call>", "<call> submit </call>"))
    with pytest.raises(grpc.aio.AioRpcError):
        await gym.step("none", 0, "x")
    families = await families_of(gym)
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\b(?:gym|process)_\w+", query)}

    assert len(asked) > 20
    assert asked <= families


async def families_of(gym):
    """Gives every name that a query may have, also of what was not counted yet."""
    _, _, body = await ask(gym, "/metrics", **bearer(gym))
    names = set()
    for family in text_string_to_metric_families(body.decode()):
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        )
        names |= {family.name + suffix for suffix in suffixes}
    return names


def test_a_latency_is_counted_in_the_class_of_its_bound():
    latencies = Latencies((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        latencies.add(seconds)

    assert list(latencies.up_to()) == [(0.1, 2), (1.0, 3), (float("inf"), 4)]
    assert latencies.seconds == pytest.approx(7.65)


def test_callers_beyond_a_hundred_are_counted_together():
    accounts = Accounts()
    for number in range(150):
        accounts.count_created(f"caller-{number}")
    accounts.count_created("caller-3")

    assert len(accounts.created) == 101
    assert accounts.created[OTHERS] == 50
    assert accounts.created["caller-3"] == 2
