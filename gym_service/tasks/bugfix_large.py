"""Two suites out of 450 functions with one fault each: enough of them that an average over tasks has a short interval.

They are generated from tables: the five families of `bugfix`, each with about seventeen surface forms, times names of
operands, times constants. A family has 58 tasks for training, 6 for validation and 26 for the test. No task of `bugfix`
is among them.

bugfix_large     Held out by variant. The names and constants that one split is dealt are dealt to no other, and those
                 that are held out are in no training task of `bugfix` either, from which a starting policy may come.
                 All families have the same names, which therefore tell nothing about the fault. Of the 26 test tasks
                 of a family 16 have forms that are trained too; 10 have forms that no other task has.
bugfix_families  The same tasks, held out by whole family: minmax, range and compare are for training, init for
                 validation, zero for the test. Each family that is held out has a look-alike that is trained: init has
                 loops as range has, and zero has expressions of two operands as compare has. What passes there was
                 read in the source; a policy that goes by looks repairs it as the look-alike, and that shows.

Which inputs the public tests have, and which the boundary, is found by running both sources of a task: in either there
are inputs by which the fault shows, and two more, with different answers, by which it does not if such inputs are not
too rare.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import TypeAlias

from gym_service.tasks import bugfix
from gym_service.tasks.forms import GOLD_OPERATIONS, Draw
from gym_service.tasks.large_forms import TRAINED, UNTRAINED, Form
from gym_service.tasks.model import Arguments, Case, FunctionTask, Json, Split, load_function

_SIZES = {Split.TRAIN: 58, Split.VALIDATION: 6, Split.TEST: 16}
"""Tasks of a family whose forms are trained."""
_NEW_FORM_SIZE = 10
"""Test tasks of a family whose forms are not."""
_FAMILY_SPLITS = {
    "minmax": Split.TRAIN,
    "range": Split.TRAIN,
    "compare": Split.TRAIN,
    "init": Split.VALIDATION,
    "zero": Split.TEST,
}
_MAX_DRAWS = 20_000
_DRAWS_FOR_A_HARMLESS_INPUT = 40

_CONSTANTS = {Split.TRAIN: (2, 3, 5, 10, 12), Split.VALIDATION: (6,), Split.TEST: (8, 20)}

# Most of them are whole words to the trainer's tiny model, because the length of episodes is what training costs.
_NAMES: Mapping[Split, Mapping[str, str]] = {
    Split.TRAIN: {
        "a b c": """
            price budget amount, cost amount total, age size height, height length area, left right whole,
            part whole count, area side tiles, total count marks, speed distance minutes, pages lines days,
            grade average best, days years times, a b c, value factor number, number size part
        """,
        "n i out": """
            n k total, rows row tiles, size x result, days day cost, years year amount, pages k lines,
            count number product, height x area, times k acc, length pos value, whole part best, age year marks
        """,
        "xs x out i": """
            numbers number total k, items item result pos, values value acc x, prices price cost pos,
            entries entry count k, factors factor product pos, sides side area x, rows row tiles pos,
            parts part whole k, grades grade average pos, marks x best k, lines s size pos
        """,
    },
    Split.VALIDATION: {
        "a b c": "weight width level, votes users team, sales month share",
        "n i out": "weeks step level, users index share, steps m team",
        "xs x out i": "steps step level index, votes m share index, sales month mean m",
    },
    Split.TEST: {
        "a b c": """
            load cap demand, score cutoff points, demand quota stock, miles hours rate, reading limit low,
            tax fee bill, goal bonus score, low high reading, points rate bonus
        """,
        "n i out": """
            limit i out, riders rider t, hours i load, miles t fee, demand i bill, goals goal points,
            quota t stock, orders i out
        """,
        "xs x out i": """
            rates rate stock i, goals goal points t, riders rider out i, scores score bonus t,
            orders bill out i, miles t load i, hours i tax t
        """,
    },
}
"""For each split and each shape of source, the names of its operands, in the order of their places in the key."""

_Function: TypeAlias = Callable[..., Json]


def _make(family: str, form: Form, split: Split, names: Sequence[str], constant: int) -> FunctionTask:
    places = dict(zip(form.shape.split(), names, strict=True)) | {"k": str(constant)}
    parameters = form.parameters.format_map(places)
    faulty, gold = form.faulty.format_map(places), form.gold.format_map(places)
    words = [form.name, *parameters.split(", "), *[places["k"]] * ("{k}" in form.faulty)]
    name = f"{family}/{'_'.join(words)}"
    right, wrong = load_function(gold), load_function(faulty)
    rng = random.Random(name)
    public = _choose_inputs(right, wrong, form.draw, rng, 3)
    boundary = _choose_inputs(right, wrong, form.draw, rng, 4, public)
    return FunctionTask(
        task_id=f"bugfix_large/{name}",
        suite="bugfix_large",
        split=split,
        family=family,
        description=f"{{function}}({parameters}) {form.says.format_map(places)}.",
        faulty_source=faulty,
        gold_source=gold,
        gold_operation=GOLD_OPERATIONS[family],
        public_cases=tuple(Case(each, right(*each)) for each in public),
        boundary_inputs=boundary,
        draw_input=form.draw,
    )


def _choose_inputs(
    right: _Function,
    wrong: _Function,
    draw: Draw,
    rng: random.Random,
    how_many: int,
    known: Sequence[Arguments] = (),
) -> tuple[Arguments, ...]:
    """Draws different inputs: one by which the fault shows, two by which it does not, and others.

    All but the first are none of the known ones: there are faults that show by one input alone.
    """
    chosen: list[Arguments] = []
    for place in range(how_many):
        for tries in range(_MAX_DRAWS):
            drawn = draw(rng)
            if drawn in chosen or (place and drawn in known):
                continue
            expected = right(*drawn)
            # Answers differ from one input to the next, or else the same answer to everything would do.
            if place in (1, 2) and expected == right(*chosen[-1]):
                continue
            shows = _answer(wrong, drawn) != expected
            # Some faults show by any input, or by nearly any.
            if shows if place == 0 else place > 2 or not shows or tries >= _DRAWS_FOR_A_HARMLESS_INPUT:
                chosen.append(drawn)
                break
        else:
            raise ValueError("too few different inputs, or the fault shows by none: widen the draw")
    rng.shuffle(chosen)
    return tuple(chosen)


def _answer(function: _Function, arguments: Arguments) -> Json:
    try:
        return function(*arguments)
    except ZeroDivisionError:
        return None


def _deal(family: str, forms: Sequence[Form], split: Split) -> Iterator[FunctionTask]:
    """Goes round the forms for ever, each time with the next names and the next constant."""
    known = {task.faulty_source for task in bugfix.TASKS}
    constants = _CONSTANTS[split]
    for turn in count():
        for place, form in enumerate(forms):
            names = _names(split, form.shape)
            chosen = names[(turn + place) % len(names)]
            task = _make(family, form, split, chosen, constants[turn % len(constants)])
            if task.faulty_source not in known:
                known.add(task.faulty_source)
                yield task


def _names(split: Split, shape: str) -> list[list[str]]:
    return [each.split() for each in _NAMES[split][shape].split(",")]


def _generate() -> Iterator[FunctionTask]:
    for family in GOLD_OPERATIONS:
        for split, size in _SIZES.items():
            yield from islice(_deal(family, TRAINED[family], split), size)
        yield from islice(_deal(family, UNTRAINED[family], Split.TEST), _NEW_FORM_SIZE)


TASKS = tuple(_generate())
"""Held out by variant."""

FAMILY_TASKS = tuple(
    replace(
        task,
        task_id=task.task_id.replace("bugfix_large", "bugfix_families"),
        suite="bugfix_families",
        split=_FAMILY_SPLITS[task.family],
    )
    for task in TASKS
)
"""The same, held out by family."""
