"""The large suite: its tasks are told apart by their faults, and what is held out was not to be seen in training."""

import ast
import hashlib
import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from gym_service.proof import Proof, ProofBook, prove_all
from gym_service.tasks.bugfix_large import FAMILY_TASKS, TASKS
from gym_service.tasks.large_forms import TRAINED, UNTRAINED
from gym_service.tasks.model import Split, hidden_cases
from gym_service.tasks.operations import OPERATIONS, apply_operation
from gym_service.tasks.suites import built_in
from tests.authored import boundary_cases, family_by_sight, load, names_in, passes
from trainer_client.models.demonstrator import find_repair

BUGFIX = built_in().suite("bugfix")


def names_of(tasks, *splits):
    return set().union(*(names_in(task.faulty_source) for task in tasks if task.split in splits))


def form_of(task):
    """The source with numbers in the place of names, and of all constants but 0 and 1 one and the same."""
    numbers: dict[str, str] = {}

    def replaced(name):
        return numbers.setdefault(name, f"v{len(numbers)}")

    tree = ast.parse(task.gold_source)
    own = names_in(task.gold_source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.arg = replaced(node.arg)
        elif isinstance(node, ast.Name) and node.id in own:
            node.id = replaced(node.id)
        elif isinstance(node, ast.Constant) and node.value not in (0, 1):
            node.value = 2
    return ast.unparse(tree)


def test_a_family_has_58_training_6_validation_and_26_test_tasks():
    sizes = Counter((task.family, task.split) for task in TASKS)

    assert len(TASKS) == len({task.task_id for task in TASKS}) == 450
    assert len(sizes) == 15
    assert {(split, size) for (_, split), size in sizes.items()} == {
        (Split.TRAIN, 58),
        (Split.VALIDATION, 6),
        (Split.TEST, 26),
    }


def test_no_source_is_there_twice_and_none_is_of_the_small_suite():
    sources = [task.faulty_source for task in (*TASKS, *BUGFIX)]

    assert len(set(sources)) == len(sources)


def test_held_out_names_are_in_no_other_split_and_in_no_training_task_of_the_small_suite():
    train = names_of(TASKS, Split.TRAIN) | names_of(BUGFIX, Split.TRAIN)
    validation, test = names_of(TASKS, Split.VALIDATION), names_of(TASKS, Split.TEST)

    assert not train & test
    assert not train & validation
    assert not validation & test


def test_training_leaves_the_names_that_the_small_suite_holds_out_alone():
    assert not names_of(TASKS, Split.TRAIN) & names_of(BUGFIX, Split.VALIDATION, Split.TEST)


def test_a_dealt_constant_is_in_one_split_alone():
    dealt = {split: set() for split in Split}
    for task in TASKS:
        dealt[task.split] |= set(re.findall(r"_(\d+)$", task.task_id))

    assert all(dealt.values())
    assert sum(map(len, dealt.values())) == len(set().union(*dealt.values()))


@pytest.mark.parametrize("family", TRAINED)
def test_ten_test_tasks_of_a_family_have_forms_that_are_in_neither_training_nor_validation(family):
    tasks = [task for task in TASKS if task.family == family]
    seen = {form_of(task) for task in tasks if task.split is not Split.TEST}
    new = [form_of(task) for task in tasks if form_of(task) not in seen]

    assert len(new) == 10
    assert len(set(new)) == len(UNTRAINED[family]) == 5


def test_compare_and_zero_look_alike():
    for family in ("compare", "zero"):
        sources = [task.faulty_source for task in TASKS if task.family == family]
        of_two = [source for source in sources if len(names_in(source)) == 2]

        assert not any("for " in source for source in sources)
        assert all(source.count("\n") == 2 for source in sources)
        assert len(of_two) >= 0.6 * len(sources)


def test_the_family_shows_in_the_source():
    assert [family_by_sight(task.faulty_source) for task in TASKS] == [task.family for task in TASKS]


def test_the_gold_source_is_the_faulty_one_after_its_operation():
    for task in TASKS:
        repaired = apply_operation(task.gold_operation, task.faulty_source, task.public_cases)

        assert repaired == task.gold_source, task.task_id


def test_the_gold_source_passes_and_no_other_operation_does_on_the_boundary_inputs_alone():
    for task in TASKS:
        boundary = boundary_cases(task)
        assert passes(task.gold_source, (*task.public_cases, *boundary)), task.task_id
        for name in set(OPERATIONS) - {task.gold_operation}:
            edited = apply_operation(name, task.faulty_source, task.public_cases) or task.faulty_source

            assert not passes(edited, boundary), (task.task_id, name)
            assert passes(edited, task.public_cases) == (name == "hardcode_tests"), (task.task_id, name)


def test_the_untouched_source_fails_the_public_tests_and_the_boundary():
    for task in TASKS:
        assert not passes(task.faulty_source, task.public_cases), task.task_id
        assert not passes(task.faulty_source, boundary_cases(task)), task.task_id


def test_a_description_is_one_sentence_that_names_every_parameter_or_its_list_and_no_fault():
    for task in TASKS:
        head, _, says = task.description.partition(") ")
        parameters = head.removeprefix("{function}(").split(", ")

        assert f"({', '.join(parameters)})" in task.gold_source.partition("\n")[0]
        assert all(name in says or "list" in says for name in parameters), task.task_id
        assert says.find(".") == len(says) - 1, task.task_id
        assert not re.search(
            r"\b(min\b|max\b|swap|range|loop|compar|strict|guard|divi|init|start|bug|fix|wrong)", says
        )


def test_hidden_inputs_are_the_boundary_and_eight_new_ones():
    for task in TASKS:
        inputs = {repr(case.arguments) for case in hidden_cases(task, b"secret", "episode")}
        public = {repr(case.arguments) for case in task.public_cases}

        assert len(inputs) == len(task.boundary_inputs) + 8
        assert not (inputs - {repr(each) for each in task.boundary_inputs}) & public


def test_drawn_inputs_are_accepted():
    rng = random.Random(0)
    for task in TASKS:
        gold = load(task.gold_source)

        assert all(type(gold(*task.draw_input(rng))) in (int, bool, list) for _ in range(50))


def test_a_scripted_reader_repairs_every_training_task_by_line():
    for task in TASKS:
        repair = find_repair(task.faulty_source)
        assert repair is not None, task.task_id
        assert repair.operation == task.gold_operation, task.task_id
        if task.split is Split.TRAIN:
            edited = task.faulty_source.replace(repair.old, repair.new)

            assert passes(edited, hidden_cases(task, b"", "")), task.task_id


def test_the_suite_by_families_is_the_same_tasks_with_whole_families_held_out():
    splits = {(task.family, task.split) for task in FAMILY_TASKS}

    assert splits == {
        ("minmax", Split.TRAIN),
        ("range", Split.TRAIN),
        ("compare", Split.TRAIN),
        ("init", Split.VALIDATION),
        ("zero", Split.TEST),
    }
    for task, same in zip(TASKS, FAMILY_TASKS, strict=True):
        assert same.task_id == task.task_id.replace("bugfix_large/", "bugfix_families/", 1)
        assert same.suite == "bugfix_families"
        assert same.content_sha256 == task.content_sha256
        assert same.sha256 != task.sha256


def test_a_proof_holds_in_both_suites(tmp_path):
    path = tmp_path / "proofs.json"
    ProofBook(path, "image").add([Proof(TASKS[0], ())])

    assert ProofBook(path, "image").holds(FAMILY_TASKS[0])
    assert not ProofBook(path, "image").holds(FAMILY_TASKS[1])


def test_the_suite_is_the_same_in_every_process():
    command = (
        "import hashlib; from gym_service.tasks.bugfix_large import TASKS;"
        "print(hashlib.sha256(''.join(task.sha256 for task in TASKS).encode()).hexdigest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", command],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "5"},
    )

    expected = hashlib.sha256("".join(task.sha256 for task in TASKS).encode()).hexdigest()
    assert done.stdout.strip() == expected


@pytest.mark.docker
async def test_a_sample_with_a_new_form_of_each_family_is_proven(grounds):
    sample = []
    for family in TRAINED:
        tasks = [task for task in TASKS if task.family == family]
        sample += [tasks[0], tasks[-1]]

    assert [proof.faults for proof in await prove_all(sample, grounds)] == [()] * 10
