"""The tutorial holds as it is written: its files are written, its commands run, its words come out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.own_images import base

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "gym_service/TUTORIAL.md").read_text()
_PYTHON = ".venv/bin/python"
_MAKE = {"make gym-up": "-m gym_service up --capacity 2 --graders 2", "make gym-down": "-m gym_service down"}


def parts():
    """The files and the indented lines, in their order: (path or "", text)."""
    found = re.finditer(
        r"^```\w+ (\S+)\n(.*?)^```$|^    (\S[^\n]*)$", TUTORIAL, flags=re.MULTILINE | re.DOTALL
    )
    return [(each[1] or "", each[2] or each[3]) for each in found]


@pytest.mark.docker
@pytest.mark.timeout(400)
def test_who_follows_the_tutorial_word_by_word_gets_what_it_says(tmp_path):
    environment = {
        **os.environ,
        "GYM_STATE_DIR": str(tmp_path / "state"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    outputs = []

    def run(words):
        done = subprocess.run(
            [sys.executable, *words.split()],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=250,
        )
        outputs.append(done.stdout)
        assert done.returncode == 0, f"{words}: {done.stdout} {done.stderr}"

    ran = 0
    try:
        for path, text in parts():
            if path:
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / path).write_text(text.replace("debian:bookworm-slim", base()))
            elif text in _MAKE:
                run(_MAKE[text])
            elif text.startswith(_PYTHON):
                run(text.removeprefix(_PYTHON))
                ran += 1
            elif not text.startswith("refused"):
                assert text in outputs[-1].splitlines()
    finally:
        run(_MAKE["make gym-down"])

    assert ran == 6
    [played] = [each for each in outputs if each.endswith("1.0 every test passes\n")]
    assert "Repair it" in played
    assert "2 passed" in played
    assert "sed -n" in outputs[-2]


@pytest.mark.docker
def test_the_refusal_that_the_tutorial_shows_is_the_one_that_comes(tmp_path):
    for path, text in parts():
        if path.startswith("orders"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
    gold = tmp_path / "orders/gold/prices.py"
    (tmp_path / "orders/repo").joinpath("prices.py").write_text(gold.read_text())
    command = ["-m", "gym_service", "--state-folder", str(tmp_path / "state"), "tasks", "import", "orders"]

    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
    )

    [shown] = [text for path, text in parts() if not path and text.startswith("refused")]
    assert done.stdout.startswith(shown.removesuffix("..."))
    assert done.returncode == 1
