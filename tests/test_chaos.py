"""What `make chaos` does and looks for, without an engine: its cuts, and claims that do not hold."""

import asyncio
from contextlib import suppress
from random import Random

import pytest

from tests.bench.chaos_claims import Kept, Recorded, Run, invented, other_places
from tests.bench.proxy import running_proxy
from tests.rows import make_history

ROW = {"group": "train/step-1/t", "index": 0, "episode_id": "g-1", "status": "resolved", "record_sha256": "a"}
RECORD = Recorded("train/step-1/t", 0, "step-0", "t", "resolved", "a", problem="")


async def test_a_connection_is_cut_in_the_middle_of_a_message():
    received = []

    async def take(reader, writer):
        received.append(await reader.read())

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with running_proxy(lambda: f"{host}:{port}", Random(0)) as proxy:
        reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
        writer.write(b"whole")
        await asyncio.sleep(0.1)
        cutting = asyncio.create_task(proxy.cut())
        await asyncio.sleep(0.1)
        writer.write(b"0123456789")

        assert await cutting
        with suppress(ConnectionError):
            assert await reader.read() == b""
    server.close()
    assert b"whole" <= received[0] < b"whole0123456789"


def test_a_record_that_is_written_again_is_noticed(tmp_path):
    kept = Kept(tmp_path)
    for _ in range(2):
        assert not kept.rewritten
        (tmp_path / "g-1.new").write_text("record")
        (tmp_path / "g-1.new").replace(tmp_path / "g-1.jsonl")
        assert kept.look() == 1

    assert kept.rewritten == {"g-1"}


def run_of(*rows):
    return Run(make_history(0), result={}, rows=list(rows), damaged=0)


@pytest.mark.parametrize(
    "row",
    [
        ROW | {"episode_id": "g-2"},
        ROW | {"status": "unresolved"},
        ROW | {"record_sha256": "b"},
        ROW | {"index": 1},
    ],
)
def test_a_reward_that_is_not_that_on_record_is_invented(row):
    assert invented(run_of(ROW), {"g-1": RECORD}) == []
    assert len(invented(run_of(row), {"g-1": RECORD})) == 1


def test_of_what_was_played_again_the_last_episode_counts():
    again = ROW | {"episode_id": "g-2"}
    records = {"g-1": RECORD, "g-2": RECORD}

    assert list(run_of(ROW, again).last(records).values()) == ["g-2"]
    assert other_places(run_of(ROW).last(records), run_of(ROW, again).last(records), run_of()) == []
    assert len(other_places(run_of(ROW).last(records), {}, run_of())) == 1
