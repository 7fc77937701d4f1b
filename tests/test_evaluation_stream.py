"""EvaluateSubmissions over a real server in this process; sandboxes are fake, everything else is not."""

import asyncio

import grpc
from gym_contract.v1 import gym_pb2 as pb

from gym_service import servicer
from gym_service.callers import TokenBook
from gym_service.grading.submissions import MAX_CONTENT_BYTES, known_submissions
from gym_service.state import TOKENS_FILE
from gym_service.tasks.suites import built_in, open_task
from tests.conftest import fake_sandbox, gym_over
from tests.test_callers import calling, refused
from tests.test_certificate import content_sha256_of

SHARE, SPEED = "bugfix/zero/share", "bugfix/zero/speed"
RIGHT = "def quib(total, count):\n    return total // count if count else 0\n"
WRONG = "def quib(total, count):\n    return 0\n"


def submission(task_id=SHARE, sample_index=0, **content):
    if "files" in content:
        content["files"] = pb.SubmittedFiles(files=content["files"])
    return pb.EvaluateSubmissionsRequest(task_id=task_id, sample_index=sample_index, **content)


async def answers(gym, *requests):
    """The answers by task and sample."""
    stream = gym.stub.EvaluateSubmissions(metadata=gym.metadata)

    async def write():
        for request in requests:
            await stream.write(request)
        await stream.done_writing()

    writing = asyncio.create_task(write())
    found = {(each.task_id, each.sample_index): each async for each in stream}
    await writing
    return found


async def test_the_three_forms_are_graded_and_named(gym):
    diff = (
        "--- a/quib.py\n+++ b/quib.py\n@@ -2 +2 @@\n-    return total // count\n"
        "+    return total // count if count else 0\n"
    )
    found = await answers(
        gym,
        submission(sample_index=0, completion=RIGHT),
        submission(sample_index=1, files={"quib.py": WRONG.encode()}),
        submission(sample_index=2, diff=diff),
        submission(sample_index=7, diff="none"),
    )

    statuses = {index: pb.VerdictStatus.Name(each.verdict.status) for (_, index), each in found.items()}
    assert statuses == {
        0: "VERDICT_STATUS_RESOLVED",
        1: "VERDICT_STATUS_UNRESOLVED",
        2: "VERDICT_STATUS_RESOLVED",
        7: "VERDICT_STATUS_REFUSED",
    }
    assert "holds no change" in found[SHARE, 7].verdict.reason
    for each in found.values():
        assert each.verdict.content_sha256 == content_sha256_of(each.verdict)


async def test_what_is_known_of_every_task_comes_out_as_it_should(gym):
    requests = []
    for task in built_in().suite("bugfix"):
        for index, known in enumerate(known_submissions(open_task(task, "any"))):
            requests.append(submission(task.task_id, index, files=known.files))

    found = await answers(gym, *requests)

    passed = {key for key, each in found.items() if each.verdict.status == pb.VERDICT_STATUS_RESOLVED}
    assert len(found) == len(requests) == 60
    assert passed == {key for key in found if key[1] == 0}


async def test_one_that_cannot_be_graded_is_an_error_of_its_own(gym):
    found = await answers(
        gym,
        submission("bugfix/none", 1, completion=""),
        submission(sample_index=2),
        submission(sample_index=-1, completion=""),
        submission(sample_index=3, completion=RIGHT),
        submission(sample_index=4, completion="#" * MAX_CONTENT_BYTES),
    )

    assert found[SHARE, 4].error.reason == "SUBMISSION_TOO_LARGE"
    assert found["bugfix/none", 1].error.reason == "TASK_NOT_FOUND"
    assert found[SHARE, 2].error.reason == "SUBMISSION_EMPTY"
    assert found[SHARE, -1].error.reason == "SAMPLE_INDEX_INVALID"
    assert found[SHARE, 3].verdict.status == pb.VERDICT_STATUS_RESOLVED


async def test_the_same_submission_gets_the_same_verdict(gym):
    first, second = [(await answers(gym, submission(completion=WRONG)))[SHARE, 0] for _ in range(2)]

    assert first.verdict.content_sha256 == second.verdict.content_sha256


async def test_evidence_shows_the_spelling_and_nothing_that_is_hidden(gym):
    code = "import os\ndef quib(total, count):\n    os._exit  # \u202e\n    return 0\n"

    found = (await answers(gym, submission(completion=code)))[SHARE, 0]

    assert "calls_os_exit" in found.verdict.flags
    assert list(found.evidence) == ["calls_os_exit: quib.py:3: os._exit  # \\u{202E}"]


async def test_it_takes_the_role_evaluate(gym, tmp_path):
    book = TokenBook(tmp_path / TOKENS_FILE)
    trainer, judge = (calling(gym, book.issue(role, role, 1)) for role in ("train", "evaluate"))

    assert (await refused(answers(trainer, submission(completion=RIGHT))))[:2] == (
        grpc.StatusCode.PERMISSION_DENIED,
        "ROLE_FORBIDS",
    )
    found = await answers(judge, submission("bugfix/zero/speed", completion="def quib(a, b): return 0"))
    assert found[SPEED, 0].verdict.status == pb.VERDICT_STATUS_UNRESOLVED


async def test_a_stream_is_read_no_further_than_it_is_answered(tmp_path, monkeypatch):
    """What a client sends beyond the places of its stream waits, and all of it is answered in the end."""
    monkeypatch.setattr(servicer, "_MOST_SUBMISSIONS", 2)
    begun = 0
    go_on = asyncio.Event()

    async with gym_over(fake_sandbox, tmp_path) as gym:
        grade = gym.running.episodes.grader.grade

        async def held(*given):
            nonlocal begun
            begun += 1
            await go_on.wait()
            return await grade(*given)

        monkeypatch.setattr(gym.running.episodes.grader, "grade", held)
        work = asyncio.create_task(
            answers(gym, *(submission(sample_index=index, completion=RIGHT) for index in range(9)))
        )
        await asyncio.sleep(0.3)
        assert begun == 2
        go_on.set()
        assert len(await work) == 9


async def test_a_client_that_leaves_takes_its_gradings_along(tmp_path, monkeypatch):
    stopped = asyncio.Event()

    async with gym_over(fake_sandbox, tmp_path) as gym:

        async def never(*given):
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        monkeypatch.setattr(gym.running.episodes.grader, "grade", never)
        stream = gym.stub.EvaluateSubmissions(metadata=gym.metadata)
        await stream.write(submission(completion=RIGHT))
        await asyncio.sleep(0.2)
        stream.cancel()
        async with asyncio.timeout(5):
            await stopped.wait()


async def test_a_gym_that_drains_says_so_of_each_submission(gym):
    gym.running.episodes.draining = True

    error = (await answers(gym, submission(completion=RIGHT)))[SHARE, 0].error

    assert (error.reason, error.HasField("retry_delay")) == ("DRAINING", True)
