"""Runs tests in an interpreter of the image, with the pytest that it has: `PYTHON -s in_image.py [pytest ARGUMENTS]`.

Without arguments it is a graded run: the job lies in one descriptor and the records go to another, as in the warden's
own process. This file and those that it imports (`by_name`, `graded`, `pytest_records`) keep to Python 3.8.
"""

from __future__ import annotations

import json
import os
import random
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    """Carries out what it was started for."""
    # An interpreter puts the folder of its program there.
    sys.path[:] = [path for path in sys.path if path != FOLDER]
    # Unlike the gym's own, this pytest has plug-ins that its tests need.
    os.environ.pop("PYTEST_DISABLE_PLUGIN_AUTOLOAD", None)
    # Who draws without a seed of its own draws the same in every sandbox, and is graded twice alike.
    random.seed(0)
    if len(sys.argv) > 1:
        sys.exit(_pytest(sys.argv[2:]))
    os._exit(_graded())


def _pytest(argv: list[str]) -> int:
    import pytest

    timing = sys.modules.get("_pytest.timing")
    if timing is not None:
        # Observations hold no durations: the same actions give the same tokens.
        vars(timing).update(time=lambda: 0.0, perf_counter=lambda: 0.0)
    sys.argv = ["pytest", *argv]
    return int(pytest.main(["-p", "no:cacheprovider", *argv]))


def _graded() -> int:
    os.environ["GYM_WORKSPACE"] = os.getcwd()
    sys.path.insert(0, os.path.dirname(FOLDER))
    from warden.graded import JOB_DESCRIPTOR

    with open(JOB_DESCRIPTOR, "rb") as file:
        job = json.loads(file.read())
    if job.pop("kind") == "by_name":
        from warden.by_name import run
    else:
        from warden.pytest_records import run
    del sys.path[0], sys.modules["warden"], os.environ["GYM_WORKSPACE"]
    return int(run(**job))


main()
