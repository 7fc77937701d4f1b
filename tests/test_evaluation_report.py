"""The report shows what hostile code wrote, and nothing of it acts."""

import re
from html.parser import HTMLParser

import pytest

from gym_service.evaluation import report
from gym_service.evaluation.tampering import shown_evidence
from gym_service.grading.submissions import Files, take_submission
from gym_service.tasks.repository import RepositoryInstance
from gym_service.values import Submission, TestCount, Verdict, VerdictStatus
from gym_service.visible import printable
from tests.test_changes import TASK as REPOSITORY
from tests.test_evaluation_command import SHARE, Gym, row

HOSTILE = (
    "</pre></details><script>alert(1)</script><img src=x onerror=alert(2)>'\"& \u202e\u0007\x1b[31m\ud800\u2028"
    "<style>*{display:none}</style><a href=javascript:alert(3)>x</a><!--"
)


class Tags(HTMLParser):
    """The tags and attributes that a browser would see."""

    def __init__(self, text):
        super().__init__()
        self.found = set()
        self.open = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found |= {(tag, name) for name, _ in [*attrs, ("", "")]}
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture
def gym(tmp_path):
    return Gym(tmp_path)


async def page_of(gym, *rows, **changes):
    await gym.run(*rows, **changes)
    return (gym.folder / "out.html").read_text()


async def test_what_code_wrote_is_text_in_which_every_character_shows(gym, monkeypatch):
    # Flags of this kind have the whole submission shown.
    monkeypatch.setattr("gym_service.evaluation.rows.TAMPERING", frozenset({"calls_os_exit"}))
    plain = set(Tags(await page_of(gym, row("import os\nos._exit"))).found)
    code = f"import os\nos._exit # {HOSTILE}\n"
    page = await page_of(
        gym,
        row(code),
        {"task_id": SHARE, "files": {f"{HOSTILE}.py": HOSTILE, "quib.py": code}},
        {"task_id": HOSTILE, "completion": ""},
        row("x", sample=HOSTILE),
        source=HOSTILE.replace("\ud800", ""),
    )

    # A table of complaints comes in, and nothing that a submission brought.
    assert Tags(page).found - plain <= {("h2", ""), ("h2", "class")}
    assert not re.search(r"[\u202e\u2028\x07\x1b\ud800]", page)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    for shown in (r"\u{202E}", r"\u{0007}", r"\u{001B}", r"\u{2028}"):
        assert shown in page


async def test_the_page_loads_nothing_and_runs_nothing(gym):
    page = await page_of(gym, row("x"))

    assert "default-src 'none'; style-src 'unsafe-inline'" in page
    assert not re.search(r"https?://|src=|href=|url\(|@import|<script", page)
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert Tags(page).open == []


async def test_each_suspect_is_named_with_its_evidence(gym, monkeypatch):
    monkeypatch.setattr("gym_service.evaluation.rows.TAMPERING", frozenset({"calls_os_exit"}))

    page = await page_of(gym, row("x"), row("import os\ndef f(): os._exit(0)\n"))

    suspects = page.partition("<h2>Suspected tampering</h2>")[2].partition("<h2>")[0]
    assert "<p>1 sample." in suspects
    assert "<code>bugfix/zero/share</code> sample 1" in suspects
    assert re.search(r"calls_os_exit: [a-z]+\.py:2: def f\(\): os\._exit\(0\)", suspects)


def test_contradictions_are_shown_without_the_names_of_hidden_tests():
    instance = RepositoryInstance(
        type(REPOSITORY)(
            **{
                **{name: getattr(REPOSITORY, name) for name in REPOSITORY.__dataclass_fields__},
                "fail_to_pass": ("tests/test_money.py::test_secret",),
                "pass_to_pass": ("tests/test_money.py::test_open",),
            }
        )
    )
    verdict = Verdict(
        VerdictStatus.TAMPER_SUSPECTED,
        TestCount(0, 1),
        TestCount(0, 1),
        evidence=(
            "contradiction: tests/test_money.py::test_secret and its twin both pass",
            "contradiction: tests/test_money.py::test_open and its twin both pass",
            "reported twice: x\u202ey\ud800",
            "fails: tests/test_money.py::test_secret",
        ),
    )

    lines = shown_evidence(instance, Submission(), verdict)

    assert lines == (
        "tests/test_money.py::test_open passes, and so does its twin, which has to fail",
        "its runs reported what no runner writes: reported twice: x\\u{202E}y\\u{D800}",
        "1 hidden tests pass, and so do their twins, which have to fail",
    )


def test_a_line_that_the_task_began_with_is_no_evidence():
    base = {"ledger/money.py": b"import gc\n"}
    task = type(REPOSITORY)(
        **{name: getattr(REPOSITORY, name) for name in REPOSITORY.__dataclass_fields__}
        | {"base": {**REPOSITORY.base, **base}}
    )
    content = Files({"ledger/money.py": b"import gc\ngc.collect()\n"})
    instance, submission = take_submission(task, content, "")

    lines = shown_evidence(instance, submission, Verdict(VerdictStatus.UNRESOLVED, flags=("uses_gc",)))

    assert lines == ("uses_gc: ledger/money.py:2: gc.collect()",)


async def test_of_very_many_bad_lines_the_first_are_listed(gym, monkeypatch):
    monkeypatch.setattr("gym_service.evaluation.report._MOST_SHOWN", 2)
    page = await page_of(gym, row("x"), *[{"task_id": f"none-{number}"} for number in range(5)])

    assert "none-1" in page
    assert "none-2" not in page
    assert "And 3 more, in the review sheet." in page


@pytest.mark.parametrize("blank", "\u3164\u115f\u2800\ufe0f\u200b\u202e\u00a0\U000e0101")
@pytest.mark.parametrize("show", [printable, report.shown])
def test_what_leaves_no_trace_on_a_screen_is_shown_by_its_number(show, blank):
    assert show(f"a{blank}é") == f"a\\u{{{ord(blank):04X}}}é"
