"""Sources are parsed from several threads at once: gradings are planned side by side."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gym_service
from gym_service.tasks.parsing import parse

SOURCE = "def f(x):\n    return [(y, {y: x}) for y in x if y > 0 and not (y < 1 or x)]\n" * 50


@pytest.fixture
def _threads_take_turns_in_every_collection():
    def take_turns(phase, info):
        time.sleep(0)

    thresholds = gc.get_threshold()
    gc.set_threshold(200)
    gc.callbacks.append(take_turns)
    yield
    gc.callbacks.remove(take_turns)
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("_threads_take_turns_in_every_collection")
def test_a_sound_source_parses_whatever_other_threads_parse():
    with ThreadPoolExecutor(4) as threads:
        trees = list(threads.map(parse, [SOURCE] * 40))

    assert {len(tree.body) for tree in trees} == {50}


def test_the_service_parses_nowhere_else():
    folder = Path(gym_service.__file__).parent
    # The reader of signs is a process of its own: what it parses cannot take the service along.
    parsing = {path.name for path in folder.rglob("*.py") if "ast.parse(" in path.read_text()}

    assert parsing == {"parsing.py", "sign_reader.py"}


def test_what_is_no_python_is_a_syntax_error():
    with pytest.raises(SyntaxError):
        parse("def f(:\n")
