"""The page of a service: who gets to see it, what it tells of episodes, and that nothing else acts in it."""

import asyncio
import http.client
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import replace

import pytest
from gym_contract.v1 import gym_pb2 as pb

from gym_service import control
from gym_service.callers import OWNER, Bearers, TokenBook
from gym_service.errors import Unauthenticated
from gym_service.state import Endpoint, StateFolder
from gym_service.values import Action
from gym_service.viewer import http as viewer_http
from gym_service.viewer.access import LINK_SECONDS, SESSION_SECONDS, Access
from gym_service.viewer.http import parse
from gym_service.viewer.views import SHOWN_CHARACTERS
from tests.browser import dump_page
from tests.conftest import fake_sandbox, gym_over
from tests.test_server import MENU_SOLUTION, play
from tests.tokenizers import gym_tokenizer

HOSTILE = (
    "</script></pre><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    "<a href=javascript:alert(1)>x</a>'\"& \u202e\u0007\x1b[31m\u2028<!--"
)


@pytest.fixture
async def gym(tmp_path):
    async with gym_over(fake_sandbox, tmp_path, viewer_port=0) as gym:
        yield gym


async def ask(gym, path, method="GET", host=None, **fields):
    """Makes a request and gives status, header and body."""
    address = gym.running.viewer.removeprefix("http://")

    def request():
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", address if host is None else host)
        for name, value in fields.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        answer = response.status, dict(response.getheaders()), response.read()
        connection.close()
        return answer

    return await asyncio.to_thread(request)


def bearer(gym, token=None):
    return {"Authorization": f"Bearer {token or gym.running.token}"}


async def read(gym, path, **fields):
    status, _, body = await ask(gym, path, **(fields or bearer(gym)))
    assert status == 200, body
    return json.loads(body)


async def listed(gym, query="", **fields):
    return [row["id"] for row in (await read(gym, f"/api/episodes?{query}", **fields))["episodes"]]


async def link(gym):
    status, _, body = await ask(gym, "/link", "POST", **bearer(gym))
    assert status == 200
    return json.loads(body)["path"]


async def session(gym):
    """Opens a link as a browser does, and gives the cookie."""
    status, header, _ = await ask(gym, await link(gym))
    assert (status, header["Location"]) == (303, "/")
    return header["Set-Cookie"].split(";")[0]


async def played(gym, turns=MENU_SOLUTION, request_id="r1", **fields):
    episode = await gym.create(request_id, **fields)
    await play(gym, episode.episode_id, turns)
    await gym.grade(episode.episode_id)
    return episode.episode_id


@pytest.mark.parametrize("path", ["/", "/api/episodes", "/api/episode?id=x", "/metrics"])
async def test_nothing_is_shown_without_a_token_of_this_gym(gym, path):
    assert (await ask(gym, path))[0] == 401
    assert (await ask(gym, path, **bearer(gym, "x" * 43)))[0] == 401
    assert (await ask(gym, path, Cookie=f"{(await session(gym)).split('=')[0]}=x"))[0] == 401
    assert (await ask(gym, path, **bearer(gym)))[0] in (200, 404)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:{port}.evil", ""]
)
async def test_a_name_of_somebody_else_that_resolves_to_this_machine_is_refused(gym, host):
    port = gym.running.viewer.rpartition(":")[2]

    assert (await ask(gym, "/", host=host.format(port=port), **bearer(gym)))[0] == 421
    assert (await ask(gym, "/", host=f"localhost:{port}", **bearer(gym)))[0] == 200


async def test_two_hosts_are_none(gym):
    port = gym.running.viewer.rpartition(":")[2]

    assert (await ask(gym, "/", host="evil.example", HOST=f"127.0.0.1:{port}", **bearer(gym)))[0] == 421


async def test_a_link_opens_the_page_once(gym):
    path = await link(gym)
    _, header, _ = await ask(gym, path)
    cookie = header["Set-Cookie"]
    own = {"Cookie": cookie.split(";")[0]}

    assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
    assert (await ask(gym, "/", **own))[0] == 200
    assert (await read(gym, "/api/episodes", **own))["total"] == 0
    assert (await ask(gym, path))[0] == 401


async def test_a_link_takes_a_token_and_no_cookie(gym):
    assert (await ask(gym, "/link", "POST", Cookie=await session(gym)))[0] == 401
    assert (await ask(gym, "/link", **bearer(gym)))[0] == 405


async def test_another_page_in_the_same_browser_gets_nothing(gym):
    cookie = {"Cookie": await session(gym)}

    for site in ("cross-site", "same-site"):
        status, header, _ = await ask(gym, "/api/episodes", Sec_Fetch_Site=site, **cookie)
        assert status == 403
        assert not any(name.lower().startswith("access-control") for name in header)
    assert (await ask(gym, "/api/episodes", Sec_Fetch_Site="same-origin", **cookie))[0] == 200


async def test_links_and_sessions_come_to_their_end(tmp_path):
    now = 0.0
    access = Access(Bearers("token", TokenBook(tmp_path / "tokens.json")), lambda: now)
    late, code = (access.make_link(["Bearer token"]) for _ in range(2))
    request = parse(f"GET / HTTP/1.1\r\nCookie: c={access.open_link(code)}\r\n\r\n".encode())

    assert access.caller_of(request, "c").name == "owner"
    now = LINK_SECONDS
    with pytest.raises(Unauthenticated):
        access.open_link(late)
    now = SESSION_SECONDS
    with pytest.raises(Unauthenticated):
        access.caller_of(request, "c")


async def test_who_opens_very_many_links_pushes_nobody_else_out(tmp_path):
    book = TokenBook(tmp_path / "tokens.json")
    other = f"Bearer {book.issue('other', 'observe', 1.0)}"
    access = Access(Bearers("token", book))
    waiting = access.make_link(["Bearer token"])
    first, *_ = [
        parse(f"GET / HTTP/1.1\r\nCookie: c={access.open_link(access.make_link([each]))}\r\n\r\n".encode())
        for each in ("Bearer token", *[other] * 200)
    ]
    for _ in range(200):
        access.make_link([other])

    assert access.caller_of(first, "c").name == "owner"
    assert access.open_link(waiting)
    assert len(access._links) + len(access._sessions) < 40


async def test_a_cookie_is_found_beside_those_of_other_servers_and_quotes_take_no_time(tmp_path):
    access = Access(Bearers("token", TokenBook(tmp_path / "tokens.json")))
    own = f"c={access.open_link(access.make_link(['Bearer token']))}"

    for other in ('x={"a": [1]}', "a name=1", "=", 'x="' + "\\" * 15_000 + '"'):
        for cookies in (f"{other}; {own}", f"{own}; {other}"):
            began = time.perf_counter()
            request = parse(f"GET / HTTP/1.1\r\nCookie: {cookies}\r\n\r\n".encode())
            assert access.caller_of(request, "c").name == "owner"
            assert time.perf_counter() - began < 0.1


async def test_who_does_not_take_an_answer_is_dropped_with_it(monkeypatch):
    monkeypatch.setattr(viewer_http, "_WRITING_SECONDS", 0.1)
    size = 50 << 20

    async def answer(request):
        return viewer_http.Response(200, b"x" * size)

    server = await viewer_http.listen(0, answer)
    reader, writer = await asyncio.open_connection(viewer_http.HOST, server.port, limit=1 << 10)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await asyncio.sleep(0.5)

    taken = 0
    with suppress(ConnectionError):
        while piece := await reader.read(1 << 20):
            taken += len(piece)
    assert taken < size
    writer.close()
    await server.close()


async def test_a_session_ends_with_the_token_that_it_stands_for(gym, tmp_path):
    book = TokenBook(tmp_path / "tokens.json")
    _, _, body = await ask(gym, "/link", "POST", **bearer(gym, book.issue("ann", "observe", 1)))
    _, header, _ = await ask(gym, json.loads(body)["path"])
    own = {"Cookie": header["Set-Cookie"].split(";")[0]}

    assert (await ask(gym, "/metrics", **own))[0] == 200
    book.revoke("ann")
    assert (await ask(gym, "/metrics", **own))[0] == 401


async def test_a_trainer_sees_its_own_episodes_and_an_observer_all(gym, tmp_path):
    book = TokenBook(tmp_path / "tokens.json")
    trainer, observer = (bearer(gym, book.issue(role, role, 1)) for role in ("train", "observe"))
    episode_id = await played(gym)

    assert await listed(gym, **observer) == [episode_id]
    assert await listed(gym, **trainer) == []
    assert (await ask(gym, f"/api/episode?id={episode_id}", **trainer))[0] == 404
    assert (await ask(gym, "/metrics", **trainer))[0] == 403


async def test_the_command_asks_for_the_link_and_says_what_to_do_without_a_page(gym, tmp_path, monkeypatch):
    state = StateFolder(tmp_path)
    assert state.lock()
    # Of the process that serves another one would be told; here they are the same.
    monkeypatch.setattr(control, "StateFolder", lambda folder: state)
    endpoint = Endpoint(gym.running.address, gym.running.token, os.getpid(), "", viewer=gym.running.viewer)
    state.publish(endpoint)
    found = await asyncio.to_thread(control.viewer_link, tmp_path)

    assert (await ask(gym, found.removeprefix(gym.running.viewer)))[0] == 303
    state.publish(replace(endpoint, viewer=""))
    with pytest.raises(control.ControlError, match="--viewer-port 0"):
        control.viewer_link(tmp_path)
    state.unlock()


async def test_a_gym_without_the_option_serves_no_page(tmp_path):
    async with gym_over(fake_sandbox, tmp_path) as gym:
        assert gym.running.viewer == ""


async def test_a_port_that_is_taken_is_named_with_what_to_do(gym, tmp_path):
    port = int(gym.running.viewer.rpartition(":")[2])

    with pytest.raises(RuntimeError, match=f"--viewer-port {port}: .*choose another"):
        async with gym_over(fake_sandbox, tmp_path, viewer_port=port):
            pass


async def test_a_connection_that_says_nothing_does_not_hold_up_the_end(tmp_path, caplog):
    async with gym_over(fake_sandbox, tmp_path, viewer_port=0) as gym:
        host, _, port = gym.running.viewer.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        assert (await ask(gym, "/", **bearer(gym)))[0] == 200

    assert await reader.read() == b""
    assert caplog.messages == []
    writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_request_is_refused_and_the_next_one_answered(gym, sent, status):
    host, _, port = gym.running.viewer.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)

    assert int((await reader.readline()).split()[1]) == status
    writer.close()
    assert (await ask(gym, "/", **bearer(gym)))[0] == 200


async def test_the_page_may_run_its_own_script_alone(gym):
    _, header, body = await ask(gym, "/", **bearer(gym))
    policy = header["Content-Security-Policy"]

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert b"http://" not in body
    assert b"https://" not in body
    assert header["Cache-Control"] == "no-store"


async def test_an_episode_is_shown_turn_by_turn_with_its_verdict(gym):
    episode_id = await played(gym)
    shown = await read(gym, f"/api/episode?id={episode_id}")
    first, *_, last = shown["turns"]

    assert [call["tool"] for call in first["calls"]] == ["read"]
    assert "return total // count" in first["results"][0]["text"]
    assert 0 < first["seconds"] < last["began_seconds"]
    assert [message["role"] for message in shown["messages"]] == ["system", "user"]
    assert shown["verdict"]["status"] == "resolved"
    assert shown["verdict"]["grading_seconds"] > 0
    assert shown["row"]["stop_reason"] == "submitted"
    assert "if count == 0" in shown["submission"]["files"][0]["text"]


async def test_sampled_ids_have_the_mask_and_the_pieces_join(gym):
    tokenizer = gym_tokenizer("tiny", {})
    gym.running.episodes.tokenizers.add(tokenizer, OWNER)
    episode_id = (await gym.create(tokenizer_fingerprint=tokenizer.facts.fingerprint)).episode_id
    sampled = tokenizer.ids_of(Action(text=MENU_SOLUTION[0]))
    for turn in range(2):
        await gym.step(episode_id, turn, pb.Action(token_ids=pb.TokenIds(ids=sampled)))
    shown = await read(gym, f"/api/episode?id={episode_id}")
    pieces = [shown["prompt_ids"], *(turn[name] for turn in shown["turns"] for name in ("ids", "delta"))]

    assert [piece["mask"] for piece in pieces] == [0, 1, 0, 1, 0]
    assert [piece["position"] for piece in pieces] == [
        sum(each["count"] for each in pieces[:number]) for number in range(len(pieces))
    ]
    assert tuple(pieces[1]["ids"]) == sampled
    assert shown["turns"][0]["calls"][0]["tool"] == "read"


async def test_what_only_the_grader_knows_is_not_shown(gym):
    episode_id = await played(gym, ("<call> submit </call>",))
    verdict = (await gym.running.episodes.grade(episode_id))[0]
    _, _, body = await ask(gym, f"/api/episode?id={episode_id}", **bearer(gym))

    assert verdict.evidence
    assert b"evidence" not in body
    for line in verdict.evidence:
        assert json.dumps(line).encode()[1:-1] not in body


async def test_filters_find_failed_tampered_slow_and_live_ones(gym):
    good = await played(gym, request_id="good")
    hack = await played(
        gym, ("<call> edit hardcode_tests </call>", "<call> submit </call>"), request_id="hack"
    )
    live = (await gym.create("live")).episode_id

    assert await listed(gym) == [live, hack, good]
    assert await listed(gym, "show=live") == [live]
    assert await listed(gym, "show=failed") == [hack]
    assert await listed(gym, "show=tampered") == [hack]
    assert await listed(gym, "show=slow&slow_seconds=60") == []
    assert await listed(gym, "show=slow&slow_seconds=0.0000001") == [hack, good]
    assert await listed(gym, f"text={good}") == [good]
    assert (await ask(gym, "/api/episodes?show=nonsense", **bearer(gym)))[0] == 400
    assert (await ask(gym, "/api/episodes?slow_seconds=nan", **bearer(gym)))[0] == 400


async def test_episodes_are_counted_by_run(gym):
    await played(gym)
    other = (await gym.create("r2", seed=pb.EpisodeSeed(run_seed=7, group="g"))).episode_id
    runs = {run["run"]: run for run in (await read(gym, "/api/episodes"))["runs"]}

    assert (runs["owner/1"]["graded"], runs["owner/1"]["resolved"], runs["owner/1"]["live"]) == (1, 1, 0)
    assert (runs["owner/7"]["episodes"], runs["owner/7"]["live"]) == (1, 1)
    assert await listed(gym, "run=owner/7") == [other]


async def test_an_episode_that_has_not_changed_is_not_sent_again(gym):
    episode_id = (await gym.create()).episode_id
    version = (await read(gym, f"/api/episode?id={episode_id}"))["version"]
    path = f"/api/episode?id={episode_id}&known={version}"

    assert (await ask(gym, path, **bearer(gym)))[0] == 204
    await gym.step(episode_id, 0, MENU_SOLUTION[0])
    assert (await ask(gym, path, **bearer(gym)))[0] == 200


async def test_characters_that_do_not_show_are_named_and_long_texts_cut(gym):
    episode_id = (await gym.create(toolset="coding")).episode_id
    await gym.step(episode_id, 0, HOSTILE + "x" * SHOWN_CHARACTERS)
    (turn,) = (await read(gym, f"/api/episode?id={episode_id}"))["turns"]

    assert "\\u{202E}\\u{0007}\\u{001B}[31m\\u{2028}" in turn["text"]
    assert turn["text"].endswith(f"[{len(HOSTILE)} more characters]")


async def test_in_a_browser_an_episode_is_shown_and_what_it_wrote_does_not_act(gym, tmp_path):
    episode_id = await played(
        gym, (HOSTILE, *MENU_SOLUTION), seed=pb.EpisodeSeed(run_seed=1, group=HOSTILE[:60])
    )
    address = f"{gym.running.viewer}{await link(gym)}#episode={episode_id}"
    page = await dump_page(address, tmp_path / "browser")

    assert "<title>coding-gym</title>" in page
    assert "&lt;img src=x onerror=" in page
    assert "\\u{202E}" in page
    assert "every hidden test passes" in page
    assert "return total // count" in page
    assert "[object" not in page
    assert "<img" not in page


async def test_in_a_browser_an_address_that_was_cut_short_is_told(gym, tmp_path):
    page = await dump_page(f"{gym.running.viewer}{await link(gym)}#episode=%", tmp_path / "browser")

    assert re.search('<p id="problem">[^<]*episode', page)


async def test_in_a_browser_the_list_has_every_episode(gym, tmp_path):
    ids = [await played(gym, request_id=name) for name in ("a", "b")]
    page = await dump_page(f"{gym.running.viewer}{await link(gym)}", tmp_path / "browser")

    assert all(f"#episode={each}" in page for each in ids)
    assert "2 of 2" in page
