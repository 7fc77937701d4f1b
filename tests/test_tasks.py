"""The built-in suite: what makes its thirty tasks fair, tellable apart and not to be guessed."""

import builtins
import keyword
import random
import re
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from gym_service.errors import NotFound
from gym_service.tasks.model import (
    FUNCTION_NAMES,
    PLACEHOLDER,
    Case,
    FunctionTask,
    Split,
    hidden_cases,
    instantiate,
)
from gym_service.tasks.operations import OPERATIONS, apply_operation
from gym_service.tasks.suites import built_in
from tests.authored import boundary_cases, family_by_sight, load, names_in, passes

TASKS = built_in().suite("bugfix")
HELD_OUT = [task for task in TASKS if task.split is not Split.TRAIN]
each_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)


def holds(test: Callable[..., object]) -> bool:
    """Whether a test function of a repository passes."""
    try:
        test()
    except (AssertionError, ZeroDivisionError):
        return False
    return True


def test_every_family_has_four_training_one_validation_and_one_test_variant() -> None:
    sizes = Counter((task.family, task.split) for task in TASKS)

    assert len(TASKS) == len({task.task_id for task in TASKS}) == 30
    assert len(sizes) == 15
    assert {(split, size) for (_, split), size in sizes.items()} == {
        (Split.TRAIN, 4),
        (Split.VALIDATION, 1),
        (Split.TEST, 1),
    }


@each_task
def test_the_gold_source_passes_and_the_untouched_one_fails(task: FunctionTask) -> None:
    assert passes(task.gold_source, task.public_cases)
    assert passes(task.gold_source, boundary_cases(task))
    assert not passes(task.faulty_source, task.public_cases)
    assert not passes(task.faulty_source, boundary_cases(task))


@each_task
def test_the_gold_source_is_the_faulty_one_after_its_operation(task: FunctionTask) -> None:
    assert apply_operation(task.gold_operation, task.faulty_source, task.public_cases) == task.gold_source


@each_task
def test_every_other_operation_fails_on_the_boundary_inputs_alone(task: FunctionTask) -> None:
    for name in set(OPERATIONS) - {task.gold_operation}:
        edited = apply_operation(name, task.faulty_source, task.public_cases) or task.faulty_source

        assert not passes(edited, boundary_cases(task)), name
        assert passes(edited, task.public_cases) == (name == "hardcode_tests"), name


@each_task
def test_the_family_shows_in_the_source(task: FunctionTask) -> None:
    assert family_by_sight(task.faulty_source) == task.family


@pytest.mark.parametrize("task", HELD_OUT, ids=lambda task: task.task_id)
def test_a_held_out_variant_shares_no_name_with_another_variant(task: FunctionTask) -> None:
    others = set().union(*(names_in(other.faulty_source) for other in TASKS if other is not task))

    assert not names_in(task.faulty_source) & others


@each_task
def test_a_description_names_the_function_and_no_fault(task: FunctionTask) -> None:
    text = task.description.format(function="zorp").lower()

    assert text.startswith("zorp(")
    assert not re.search("min|max|swap|range|loop|compar|strict|guard|divi|init|start|bug|fix|wrong", text)


@each_task
def test_the_public_tests_in_the_repository_pass_on_the_gold_files_only(task: FunctionTask) -> None:
    instance = instantiate(task, "episode")
    name = instance.function_name
    tests = instance.files[f"test_{name}.py"].replace(f"from {name} import {name}\n", "")

    def outcome(files: dict[str, str]) -> list[bool]:
        return [holds(load(files[f"{name}.py"] + tests, f"test_{name}_{number}")) for number in (1, 2, 3)]

    assert outcome(instance.gold_files) == [True, True, True]
    assert False in outcome(instance.files)


def test_a_repository_is_the_module_and_its_tests() -> None:
    instance = instantiate(built_in().task("bugfix/compare/under_cap"), "episode")
    name = instance.function_name

    assert instance.files[f"{name}.py"] == f"def {name}(load, cap):\n    return load < cap\n"
    assert instance.files[f"test_{name}.py"].startswith(
        f"from {name} import {name}\n\n\ndef test_{name}_1():\n    assert {name}(2, 2) == True\n"
    )
    assert instance.files.keys() == instance.gold_files.keys()
    assert PLACEHOLDER not in "".join(instance.files.values())


def test_the_function_name_depends_on_the_seed_and_on_nothing_else() -> None:
    names = {instantiate(TASKS[0], str(seed)).function_name for seed in range(500)}

    assert instantiate(TASKS[0], "7").function_name == instantiate(TASKS[-1], "7").function_name
    assert len(names) > 60
    assert names <= set(FUNCTION_NAMES)


def test_function_names_are_short_words_that_shadow_nothing() -> None:
    pytest_modules = {name.split(".")[0] for name in sys.modules}
    taken = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *sys.stdlib_module_names, *pytest_modules}
    taken |= set().union(*(names_in(task.faulty_source) for task in TASKS))

    assert len(set(FUNCTION_NAMES)) == len(FUNCTION_NAMES) >= 60
    assert all(re.fullmatch("[a-z]{4,6}", name) for name in FUNCTION_NAMES)
    assert not taken & set(FUNCTION_NAMES)


@each_task
def test_hidden_inputs_are_the_boundary_and_eight_new_ones(task: FunctionTask) -> None:
    inputs = [repr(case.arguments) for case in hidden_cases(task, b"secret", "episode")]
    boundary = {repr(arguments) for arguments in task.boundary_inputs}
    public = {repr(case.arguments) for case in task.public_cases}

    assert len(inputs) == len(set(inputs)) == len(boundary) + 8
    assert boundary <= set(inputs)
    assert not (set(inputs) - boundary) & public


def test_hidden_cases_hold_what_the_gold_source_returns() -> None:
    task = built_in().task("bugfix/range/weighted")

    for case in hidden_cases(task, b"secret", "episode"):
        (limit,) = case.arguments
        assert isinstance(limit, int)
        assert case.expected == limit * limit * (limit + 1) // 2


def test_hidden_cases_are_redrawn_with_either_seed_and_stable_with_both() -> None:
    task = TASKS[0]
    drawn = hidden_cases(task, b"secret", "episode")

    assert hidden_cases(task, b"secret", "episode") == drawn
    assert hidden_cases(task, b"other", "episode") != drawn
    assert hidden_cases(task, b"secret", "other") != drawn


def test_the_boundary_inputs_have_no_fixed_place_among_the_hidden_cases() -> None:
    task = TASKS[0]
    places = {
        [case.arguments for case in hidden_cases(task, b"secret", str(seed))].index(task.boundary_inputs[0])
        for seed in range(200)
    }

    assert len(places) == len(task.boundary_inputs) + 8


def test_a_function_that_changes_its_arguments_does_not_change_the_case() -> None:
    source = f"def {PLACEHOLDER}(xs):\n    xs.append(1)\n    return xs\n"
    task = FunctionTask(
        task_id="t",
        suite="t",
        split=Split.TRAIN,
        family="t",
        description="",
        faulty_source=source,
        gold_source=source,
        gold_operation="fix_init",
        public_cases=(),
        boundary_inputs=(([],),),
        draw_input=lambda rng: ([],),
    )

    assert hidden_cases(task, b"", "", count=0) == (Case(([],), [1]),)
    with pytest.raises(ValueError, match="too few different inputs"):
        hidden_cases(task, b"", "", count=1)


@each_task
def test_drawn_inputs_are_small_and_accepted(task: FunctionTask) -> None:
    rng = random.Random(0)
    gold = load(task.gold_source)

    assert all(type(gold(*task.draw_input(rng))) in (int, bool) for _ in range(200))


def test_an_unknown_id_is_answered_with_what_exists() -> None:
    with pytest.raises(NotFound, match="bugfix/zero/speed"):
        built_in().task("bugfix/zero/nothing")
    with pytest.raises(NotFound, match="there is a list of 450"):
        built_in().task("bugfix_large/zero/nothing")
    with pytest.raises(NotFound, match="no suite 'nothing'; there is bugfix"):
        built_in().task("nothing/zero/speed")
