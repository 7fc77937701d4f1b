"""What a run of tests reports is parsed strictly, whatever the bytes are."""

import pytest

from gym_service.grading.outcomes import parse_outcomes

PASSED = b'{"id": "tests/test_x.py::test_a", "outcome": "passed"}\n'
END = b'{"end": 0}\n'


def test_records_and_the_end_are_read():
    found = parse_outcomes(PASSED + END, truncated=False)

    assert found.by_id == {"tests/test_x.py::test_a": "passed"}
    assert found.ended
    assert found.anomalies == ()


@pytest.mark.parametrize("output", [b"", PASSED, PASSED + b'{"end"', PASSED + b'{"end": 0}'])
def test_a_run_without_its_end_is_not_complete_and_no_trick(output):
    found = parse_outcomes(output, truncated=False)

    assert not found.ended
    assert found.anomalies == ()


@pytest.mark.parametrize(
    ("output", "anomaly"),
    [
        (PASSED + PASSED + END, "reported twice"),
        (PASSED.replace(b"passed", b"failed") + PASSED + END, "reported twice"),
        (END + PASSED, "after the end"),
        (END + END, "after the end"),
        (b"PASSED\n" + END, "does not write"),
        (b"\xff\n", "does not write"),
        (b'{"id": "a", "outcome": "great"}\n', "does not write"),
        (b'{"id": "a", "outcome": "passed", "outcome": "failed"}\n', "does not write"),
        (b'{"outcome": "passed", "id": "a"}\n', "does not write"),
        (b'{"id": 5, "outcome": "passed"}\n', "does not write"),
        (b'{"end": true}\n', "does not write"),
        (b'{"end": ' + b"9" * 5000 + b"}\n", "does not write"),
        (b"[" * 100_000 + b"\n", "does not write"),
        (b"\n", "does not write"),
    ],
)
def test_what_the_runner_never_writes_is_an_anomaly(output, anomaly):
    found = parse_outcomes(output, truncated=False)

    assert anomaly in " ".join(found.anomalies)


def test_the_first_word_on_a_test_stands():
    found = parse_outcomes(PASSED.replace(b"passed", b"failed") + PASSED, truncated=False)

    assert found.by_id == {"tests/test_x.py::test_a": "failed"}


def test_a_flood_is_an_anomaly_and_a_short_list():
    found = parse_outcomes(b"x\n" * 100_000, truncated=True)

    assert 1 <= len(found.anomalies) <= 20
