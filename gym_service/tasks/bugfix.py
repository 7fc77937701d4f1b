"""The built-in suite: thirty functions with one fault each, five families of six variants.

Four variants of a family are for training, one for validation and one for the test. The family shows in the
source: minmax calls min or max, compare holds an ordering comparison, range loops over a range, zero divides,
init loops over a list. A held-out variant uses names that no other variant has, so a policy that learned
names instead of faults does not pass it.

Sources are in the form that `ast.unparse` gives, because the repairs of the menu are made on the syntax tree.
"""

import random
from collections.abc import Callable, Sequence

from gym_service.tasks.model import PLACEHOLDER, Arguments, Case, FunctionTask, Json, Split

Draw = Callable[[random.Random], Arguments]


def _expression(parameters: str, expression: str) -> str:
    return f"def {PLACEHOLDER}({parameters}):\n    return {expression}\n"


def _guarded(parameters: str, divisor: str, expression: str) -> str:
    head = f"def {PLACEHOLDER}({parameters}):\n    if {divisor} == 0:\n        return 0\n"
    return f"{head}    return {expression}\n"


def _loop(parameter: str, start: str, loop: str, step: str) -> str:
    name = start.split()[0]
    head = f"def {PLACEHOLDER}({parameter}):\n    {start}\n"
    return f"{head}    for {loop}:\n        {step}\n    return {name}\n"


def _ints(how_many: int, low: int = 0, high: int = 40) -> Draw:
    return lambda rng: tuple(rng.randint(low, high) for _ in range(how_many))


def _list(low: int = 0, high: int = 9, shortest: int = 0, longest: int = 6) -> Draw:
    return lambda rng: ([rng.randint(low, high) for _ in range(rng.randint(shortest, longest))],)


def _reading_and_limits(rng: random.Random) -> Arguments:
    low = rng.randint(-10, 10)
    return rng.randint(-25, 25), low, low + rng.randint(0, 12)


_GOLD_OPERATIONS = {
    "minmax": "swap_minmax",
    "compare": "fix_comparison",
    "range": "fix_range",
    "zero": "add_zero_guard",
    "init": "fix_init",
}


def _task(
    name: str,
    split: Split,
    description: str,
    *,
    faulty: str,
    gold: str,
    public: Sequence[tuple[Arguments, Json]],
    boundary: Sequence[Arguments],
    draw: Draw,
) -> FunctionTask:
    family = name.split("/")[0]
    return FunctionTask(
        task_id=f"bugfix/{name}",
        suite="bugfix",
        split=split,
        family=family,
        description=description,
        faulty_source=faulty,
        gold_source=gold,
        gold_operation=_GOLD_OPERATIONS[family],
        public_cases=tuple(Case(arguments, expected) for arguments, expected in public),
        boundary_inputs=tuple(boundary),
        draw_input=draw,
    )


TASKS: tuple[FunctionTask, ...] = (
    _task(
        "minmax/larger",
        Split.TRAIN,
        "{function}(left, right) returns the larger of left and right.",
        faulty=_expression("left, right", "min(left, right)"),
        gold=_expression("left, right", "max(left, right)"),
        public=[((3, 5), 5), ((4, 4), 4), ((9, 2), 9)],
        boundary=[(0, 1), (1, 0), (6, 6), (-3, -8)],
        draw=_ints(2, -20, 20),
    ),
    _task(
        "minmax/no_debt",
        Split.TRAIN,
        "{function}(balance) returns balance, or 0 where balance is negative.",
        faulty=_expression("balance", "min(balance, 0)"),
        gold=_expression("balance", "max(balance, 0)"),
        public=[((5,), 5), ((0,), 0), ((-3,), 0)],
        boundary=[(-1,), (1,), (0,), (12,)],
        draw=_ints(1, -40, 40),
    ),
    _task(
        "minmax/spread",
        Split.TRAIN,
        "{function}(values) returns the distance between the smallest and the largest of a non-empty list.",
        faulty=_expression("values", "min(values) - max(values)"),
        gold=_expression("values", "max(values) - min(values)"),
        public=[(([4, 9, 1],), 8), (([2, 2],), 0), (([-1, 3],), 4)],
        boundary=[([5],), ([0, 1],), ([7, 3, 6],)],
        draw=_list(shortest=1),
    ),
    _task(
        "minmax/drop_best",
        Split.TRAIN,
        "{function}(marks) returns the sum of a non-empty list without its best mark.",
        faulty=_expression("marks", "sum(marks) - min(marks)"),
        gold=_expression("marks", "sum(marks) - max(marks)"),
        public=[(([1, 2, 3],), 3), (([5],), 0), (([4, 4],), 4)],
        boundary=[([0, 1],), ([8],), ([9, 2, 5],)],
        draw=_list(shortest=1),
    ),
    _task(
        "minmax/clamp",
        Split.VALIDATION,
        "{function}(reading, low, high) returns reading, or low if it is below low, or high if it is above.",
        faulty=_expression("reading, low, high", "min(low, max(high, reading))"),
        gold=_expression("reading, low, high", "max(low, min(high, reading))"),
        public=[((5, 0, 10), 5), ((-2, 0, 10), 0), ((14, 0, 10), 10)],
        boundary=[(3, 3, 3), (2, 1, 4), (0, 1, 4), (5, 1, 4)],
        draw=_reading_and_limits,
    ),
    _task(
        "minmax/capped",
        Split.TEST,
        "{function}(quota, demand) returns twice the demand, but never more than quota.",
        faulty=_expression("quota, demand", "max(quota, demand * 2)"),
        gold=_expression("quota, demand", "min(quota, demand * 2)"),
        public=[((10, 3), 6), ((8, 4), 8), ((5, 7), 5)],
        boundary=[(0, 1), (1, 0), (4, 2), (7, 9)],
        draw=_ints(2),
    ),
    _task(
        "compare/adult",
        Split.TRAIN,
        "{function}(age) says whether somebody of that age has turned 18.",
        faulty=_expression("age", "age > 18"),
        gold=_expression("age", "age >= 18"),
        public=[((18,), True), ((30,), True), ((7,), False)],
        boundary=[(17,), (18,), (19,), (0,)],
        draw=_ints(1, 0, 60),
    ),
    _task(
        "compare/affordable",
        Split.TRAIN,
        "{function}(cost, budget) says whether the budget pays for the cost.",
        faulty=_expression("cost, budget", "cost < budget"),
        gold=_expression("cost, budget", "cost <= budget"),
        public=[((6, 6), True), ((2, 9), True), ((8, 3), False)],
        boundary=[(0, 0), (4, 5), (5, 4), (12, 12)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "compare/beats",
        Split.TRAIN,
        "{function}(ours, theirs) says whether ours beats theirs; a draw does not.",
        faulty=_expression("ours, theirs", "ours >= theirs"),
        gold=_expression("ours, theirs", "ours > theirs"),
        public=[((3, 3), False), ((5, 2), True), ((1, 4), False)],
        boundary=[(0, 0), (7, 6), (6, 7), (9, 9)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "compare/clears",
        Split.TRAIN,
        "{function}(height, bar) says whether height plus 3 stays under the bar without touching it.",
        faulty=_expression("height, bar", "height + 3 <= bar"),
        gold=_expression("height, bar", "height + 3 < bar"),
        public=[((2, 5), False), ((1, 9), True), ((6, 4), False)],
        boundary=[(0, 3), (0, 4), (4, 6), (10, 13)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "compare/qualifies",
        Split.VALIDATION,
        "{function}(score, cutoff) says whether score is ahead of cutoff by a whole point or more.",
        faulty=_expression("score, cutoff", "score > cutoff + 1"),
        gold=_expression("score, cutoff", "score >= cutoff + 1"),
        public=[((6, 5), True), ((9, 2), True), ((4, 4), False)],
        boundary=[(1, 0), (0, 0), (3, 1), (8, 7)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "compare/under_cap",
        Split.TEST,
        "{function}(load, cap) says whether the load is allowed by the cap; a full load is.",
        faulty=_expression("load, cap", "load < cap"),
        gold=_expression("load, cap", "load <= cap"),
        public=[((2, 2), True), ((1, 6), True), ((7, 3), False)],
        boundary=[(0, 0), (4, 5), (5, 4), (11, 11)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "range/sum_to",
        Split.TRAIN,
        "{function}(n) returns the sum of the whole numbers from 0 to n.",
        faulty=_loop("n", "total = 0", "k in range(n)", "total += k"),
        gold=_loop("n", "total = 0", "k in range(n + 1)", "total += k"),
        public=[((3,), 6), ((0,), 0), ((5,), 15)],
        boundary=[(0,), (1,), (2,), (10,)],
        draw=_ints(1),
    ),
    _task(
        "range/slices",
        Split.TRAIN,
        "{function}(cuts) returns 1 plus the sum of the whole numbers from 1 to cuts.",
        faulty=_loop("cuts", "pieces = 1", "cut in range(1, cuts)", "pieces += cut"),
        gold=_loop("cuts", "pieces = 1", "cut in range(1, cuts + 1)", "pieces += cut"),
        public=[((2,), 4), ((0,), 1), ((4,), 11)],
        boundary=[(0,), (1,), (3,), (10,)],
        draw=_ints(1),
    ),
    _task(
        "range/add_all",
        Split.TRAIN,
        "{function}(items) returns the sum of the list.",
        faulty=_loop("items", "total = 0", "pos in range(len(items) - 1)", "total += items[pos]"),
        gold=_loop("items", "total = 0", "pos in range(len(items))", "total += items[pos]"),
        public=[(([2, 4, 6],), 12), (([],), 0), (([7],), 7)],
        boundary=[([],), ([5],), ([1, 2],), ([3, 0, 8],)],
        draw=_list(),
    ),
    _task(
        "range/tiles",
        Split.TRAIN,
        "{function}(rows) returns how many tiles that many rows of four tiles have.",
        faulty=_loop("rows", "tiles = 0", "row in range(rows + 1)", "tiles += 4"),
        gold=_loop("rows", "tiles = 0", "row in range(rows)", "tiles += 4"),
        public=[((2,), 8), ((0,), 0), ((5,), 20)],
        boundary=[(0,), (1,), (3,), (10,)],
        draw=_ints(1),
    ),
    _task(
        "range/weighted",
        Split.VALIDATION,
        "{function}(limit) returns limit times the sum of the whole numbers from 0 to limit.",
        faulty=_loop("limit", "out = 0", "i in range(limit)", "out += i * limit"),
        gold=_loop("limit", "out = 0", "i in range(limit + 1)", "out += i * limit"),
        public=[((2,), 6), ((0,), 0), ((3,), 18)],
        boundary=[(0,), (1,), (4,), (10,)],
        draw=_ints(1),
    ),
    _task(
        "range/fares",
        Split.TEST,
        "{function}(riders) returns what that many riders pay at 5 each.",
        faulty=_loop("riders", "t = 0", "rider in range(riders - 1)", "t += 5"),
        gold=_loop("riders", "t = 0", "rider in range(riders)", "t += 5"),
        public=[((2,), 10), ((0,), 0), ((6,), 30)],
        boundary=[(0,), (1,), (3,), (10,)],
        draw=_ints(1),
    ),
    _task(
        "zero/share",
        Split.TRAIN,
        "{function}(total, count) returns the whole share of each of count people, and 0 if there is nobody.",
        faulty=_expression("total, count", "total // count"),
        gold=_guarded("total, count", "count", "total // count"),
        public=[((7, 2), 3), ((4, 0), 0), ((9, 3), 3)],
        boundary=[(1, 0), (0, 0), (0, 4), (12, 5)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "zero/leftover",
        Split.TRAIN,
        "{function}(amount, size) returns what whole packs of size leave of amount, and 0 if size is 0.",
        faulty=_expression("amount, size", "amount % size"),
        gold=_guarded("amount, size", "size", "amount % size"),
        public=[((7, 3), 1), ((5, 0), 0), ((8, 4), 0)],
        boundary=[(1, 0), (0, 0), (3, 5), (11, 4)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "zero/percent",
        Split.TRAIN,
        "{function}(part, whole) returns part in whole percent of whole, and 0 if whole is 0.",
        faulty=_expression("part, whole", "part * 100 // whole"),
        gold=_guarded("part, whole", "whole", "part * 100 // whole"),
        public=[((1, 4), 25), ((3, 0), 0), ((2, 2), 100)],
        boundary=[(1, 0), (0, 0), (0, 7), (2, 3)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "zero/mean",
        Split.TRAIN,
        "{function}(grades) returns the mean of the list rounded down, and 0 for an empty list.",
        faulty=_expression("grades", "sum(grades) // len(grades)"),
        gold=_guarded("grades", "len(grades)", "sum(grades) // len(grades)"),
        public=[(([4, 6],), 5), (([],), 0), (([9],), 9)],
        boundary=[([],), ([3],), ([1, 2],), ([2, 8, 8],)],
        draw=_list(),
    ),
    _task(
        "zero/crates",
        Split.VALIDATION,
        "{function}(apples, crates) returns the apples left after filling crates alike, 0 without crates.",
        faulty=_expression("apples, crates", "apples % crates"),
        gold=_guarded("apples, crates", "crates", "apples % crates"),
        public=[((9, 4), 1), ((6, 0), 0), ((8, 2), 0)],
        boundary=[(1, 0), (0, 0), (2, 5), (14, 4)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "zero/speed",
        Split.TEST,
        "{function}(miles, hours) returns twice the miles per hour in whole numbers, and 0 if hours is 0.",
        faulty=_expression("miles, hours", "miles * 2 // hours"),
        gold=_guarded("miles, hours", "hours", "miles * 2 // hours"),
        public=[((9, 3), 6), ((4, 0), 0), ((5, 2), 5)],
        boundary=[(1, 0), (0, 0), (0, 3), (7, 4)],
        draw=_ints(2, 0, 20),
    ),
    _task(
        "init/add_up",
        Split.TRAIN,
        "{function}(numbers) returns the sum of the list.",
        faulty=_loop("numbers", "acc = 1", "number in numbers", "acc += number"),
        gold=_loop("numbers", "acc = 0", "number in numbers", "acc += number"),
        public=[(([2, 3],), 5), (([],), 0), (([7],), 7)],
        boundary=[([],), ([0],), ([1, 1],), ([9, 4, 2],)],
        draw=_list(),
    ),
    _task(
        "init/product",
        Split.TRAIN,
        "{function}(factors) returns the product of the list, which is 1 for an empty list.",
        faulty=_loop("factors", "result = 0", "factor in factors", "result *= factor"),
        gold=_loop("factors", "result = 1", "factor in factors", "result *= factor"),
        public=[(([2, 3],), 6), (([],), 1), (([5],), 5)],
        boundary=[([],), ([0],), ([1, 1],), ([4, 2, 3],)],
        draw=_list(high=5, longest=5),
    ),
    _task(
        "init/tally",
        Split.TRAIN,
        "{function}(entries) returns how many entries the list has.",
        faulty=_loop("entries", "seen = 2", "entry in entries", "seen += 1"),
        gold=_loop("entries", "seen = 0", "entry in entries", "seen += 1"),
        public=[(([8, 8, 3],), 3), (([],), 0), (([5],), 1)],
        boundary=[([],), ([0],), ([4, 4],), ([1, 2, 3, 4, 5],)],
        draw=_list(),
    ),
    _task(
        "init/areas",
        Split.TRAIN,
        "{function}(sides) returns the sum of the squares of the list.",
        faulty=_loop("sides", "area = 1", "side in sides", "area += side * side"),
        gold=_loop("sides", "area = 0", "side in sides", "area += side * side"),
        public=[(([1, 2],), 5), (([],), 0), (([3],), 9)],
        boundary=[([],), ([0],), ([2, 2],), ([5, 1, 4],)],
        draw=_list(),
    ),
    _task(
        "init/points",
        Split.VALIDATION,
        "{function}(goals) returns three points for each of the goals, summed over the list.",
        faulty=_loop("goals", "points = 1", "goal in goals", "points += goal * 3"),
        gold=_loop("goals", "points = 0", "goal in goals", "points += goal * 3"),
        public=[(([2, 1],), 9), (([],), 0), (([4],), 12)],
        boundary=[([],), ([0],), ([1, 1],), ([3, 0, 6],)],
        draw=_list(),
    ),
    _task(
        "init/growth",
        Split.TEST,
        "{function}(rates) returns what 1 grows to when each rate of the list multiplies it by rate + 1.",
        faulty=_loop("rates", "stock = 0", "rate in rates", "stock *= rate + 1"),
        gold=_loop("rates", "stock = 1", "rate in rates", "stock *= rate + 1"),
        public=[(([1, 2],), 6), (([],), 1), (([4],), 5)],
        boundary=[([],), ([0],), ([1, 1],), ([2, 3, 1],)],
        draw=_list(high=5, longest=5),
    ),
)
