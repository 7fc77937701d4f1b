"""How the functions of `bugfix_large` look: for each family forms that are trained, and forms that are not.

A form is text with the names of operands in braces, and {k} for a constant; who fills it in chooses both. What a name
stands for follows from the shape of the source:

    a b c        numbers
    n i out      a number that a loop counts up to, the loop's variable, the result
    xs x out i   a list, an item of it, the result, a place in the list

A held-out form is one that needs the same repair and looks as no form does that is trained.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gym_service.tasks.forms import Draw, expression, guarded, ints, list_of_ints, loop
from gym_service.tasks.model import Arguments

_NUMBERS, _COUNT, _LIST = SHAPES = ("a b c", "n i out", "xs x out i")


@dataclass(frozen=True, slots=True)
class Form:
    """How a source looks."""

    name: str
    shape: str
    """One of the shapes."""
    says: str
    """What the function does, as the end of a sentence."""
    faulty: str
    gold: str
    draw: Draw

    @property
    def parameters(self) -> str:
        """Those of the function."""
        return self.gold.partition("(")[2].partition(")")[0]


def _list_and_int(rng: random.Random) -> Arguments:
    return *list_of_ints()(rng), rng.randint(0, 12)


def _int_and_list(rng: random.Random) -> Arguments:
    return rng.randint(0, 40), *list_of_ints()(rng)


_DRAWS: Mapping[str, Draw] = {
    "{a}": ints(1),
    "{a}, {b}": ints(2),
    "{a}, {b}, {c}": ints(3),
    "{xs}": list_of_ints(),
    "{xs}, {x}": _list_and_int,
    "{x}, {xs}": _int_and_list,
}
"""Inputs by parameters, for those families that say nothing else."""
_SIGNED: Mapping[str, Draw] = {
    "{a}": ints(1, -40),
    "{a}, {b}": ints(2, -40),
    "{a}, {b}, {c}": ints(3, -40),
    "{xs}": list_of_ints(shortest=1),
}
"""Those of minmax."""


def _valued(
    name: str, says: str, parameters: str, faulty: str, gold: str, draws: Mapping[str, Draw] = _DRAWS
) -> Form:
    """A form of one expression."""
    shape = _LIST if "{xs}" in parameters else _NUMBERS
    sources = expression(parameters, faulty), expression(parameters, gold)
    return Form(name, shape, says, sources[0], sources[1], draws[parameters])


def _largest(name: str, says: str, gold: str, parameters: str = "{a}, {b}") -> Form:
    """A form of minmax."""
    swapped = gold.replace("min(", "\0").replace("max(", "min(").replace("\0", "max(")
    return _valued(name, says, parameters, swapped, gold, _SIGNED)


def _compared(name: str, says: str, faulty: str, gold: str, parameters: str = "{a}, {b}") -> Form:
    """A form of compare; the two sources differ in one sign."""
    return _valued(name, f"says whether {says}", parameters, faulty, gold)


def _counted(
    name: str, says: str, faulty: str, gold: str, step: str, *, start: str = "0", high: int = 40
) -> Form:
    """A form of range; the two sources differ in where the range ends."""
    listed = "{xs}" in gold
    parameter = "{xs}" if listed else "{n}"

    def source(end: str) -> str:
        return loop(parameter, f"{{out}} = {start}", f"{{i}} in range({end})", step)

    draw = list_of_ints() if listed else ints(1, 0, high)
    return Form(name, _LIST if listed else _COUNT, says, source(faulty), source(gold), draw)


def _divided(name: str, says: str, value: str, parameters: str = "{a}, {b}", divisor: str = "{b}") -> Form:
    """A form of zero; the two sources differ in the guard."""
    shape = _LIST if "{xs}" in parameters else _NUMBERS
    faulty, gold = expression(parameters, value), guarded(parameters, divisor, value)
    return Form(name, shape, says, faulty, gold, _DRAWS[parameters])


def _gathered(name: str, says: str, step: str, faulty: str = "1", gold: str = "0") -> Form:
    """A form of init; the two sources differ in what the result is before the first item."""

    def source(start: str) -> str:
        return loop("{xs}", f"{{out}} = {start}", "{x} in {xs}", step)

    # Products stay short.
    draw = list_of_ints(high=5, longest=5) if gold == "1" else list_of_ints()
    return Form(name, _LIST, says, source(faulty), source(gold), draw)


TRAINED: Mapping[str, Sequence[Form]] = {
    "minmax": (
        _largest("larger", "returns the larger of {a} and {b}", "max({a}, {b})"),
        _largest("smaller", "returns the smaller of {a} and {b}", "min({a}, {b})"),
        _largest("floor", "returns {a}, or {k} where {a} is below {k}", "max({a}, {k})", "{a}"),
        _largest("ceiling", "returns {a}, or {k} where {a} is above {k}", "min({a}, {k})", "{a}"),
        _largest("capped", "returns {k} times {b}, but never more than {a}", "min({a}, {b} * {k})"),
        _largest("raised", "returns {k} times {b}, but never less than {a}", "max({a}, {b} * {k})"),
        _largest("larger_plus", "returns {k} more than the larger of {a} and {b}", "max({a}, {b}) + {k}"),
        _largest(
            "spread",
            "returns how far the smallest and the largest of a non-empty list are apart",
            "max({xs}) - min({xs})",
            "{xs}",
        ),
        _largest(
            "without_best",
            "returns the sum of a non-empty list without its largest item",
            "sum({xs}) - max({xs})",
            "{xs}",
        ),
        _largest(
            "without_least",
            "returns the sum of a non-empty list without its smallest item",
            "sum({xs}) - min({xs})",
            "{xs}",
        ),
        _largest(
            "best_times", "returns {k} times the largest of a non-empty list", "max({xs}) * {k}", "{xs}"
        ),
        _largest(
            "least_plus", "returns {k} more than the smallest of a non-empty list", "min({xs}) + {k}", "{xs}"
        ),
    ),
    "compare": (
        _compared("at_least", "{a} is {b} or more", "{a} > {b}", "{a} >= {b}"),
        _compared("at_most", "{a} is {b} or less", "{a} < {b}", "{a} <= {b}"),
        _compared("above", "{a} is more than {b}", "{a} >= {b}", "{a} > {b}"),
        _compared("below", "{a} is less than {b}", "{a} <= {b}", "{a} < {b}"),
        _compared("reaches", "{a} is {k} or more", "{a} > {k}", "{a} >= {k}", "{a}"),
        _compared("under", "{a} is less than {k}", "{a} <= {k}", "{a} < {k}", "{a}"),
        _compared("ahead", "{a} is ahead of {b} by {k} or more", "{a} > {b} + {k}", "{a} >= {b} + {k}"),
        _compared("behind", "{a} is behind {b} by more than {k}", "{a} + {k} <= {b}", "{a} + {k} < {b}"),
        _compared("times", "{a} is more than {k} times {b}", "{a} >= {b} * {k}", "{a} > {b} * {k}"),
        _compared("within", "{k} times {a} is {b} or less", "{a} * {k} < {b}", "{a} * {k} <= {b}"),
        _compared(
            "long", "the list has {x} items or more", "len({xs}) > {x}", "len({xs}) >= {x}", "{xs}, {x}"
        ),
        _compared(
            "affordable",
            "the sum of the list is {x} or less",
            "sum({xs}) < {x}",
            "sum({xs}) <= {x}",
            "{xs}, {x}",
        ),
    ),
    "range": (
        _counted(
            "sum_to", "returns the sum of the whole numbers from 0 to {n}", "{n}", "{n} + 1", "{out} += {i}"
        ),
        _counted(
            "slices",
            "returns {k} plus the sum of the whole numbers from 1 to {n}",
            "1, {n}",
            "1, {n} + 1",
            "{out} += {i}",
            start="{k}",
        ),
        _counted(
            "multiples",
            "returns {k} times the sum of the whole numbers from 0 to {n}",
            "{n}",
            "{n} + 1",
            "{out} += {i} * {k}",
        ),
        _counted(
            "weighted",
            "returns {n} times the sum of the whole numbers from 0 to {n}",
            "{n}",
            "{n} + 1",
            "{out} += {i} * {n}",
        ),
        _counted(
            "squares",
            "returns the sum of the squares of the whole numbers from 1 to {n}",
            "1, {n}",
            "1, {n} + 1",
            "{out} += {i} * {i}",
        ),
        _counted("each", "returns what {n} of {k} each come to", "{n} + 1", "{n}", "{out} += {k}"),
        _counted("fares", "returns {k} for each of {n}, summed", "{n} - 1", "{n}", "{out} += {k}"),
        _counted(
            "below",
            "returns the sum of the whole numbers from 0 to {n} without {n} itself",
            "{n} + 1",
            "{n}",
            "{out} += {i}",
        ),
        _counted(
            "factorial",
            "returns the product of the whole numbers from 1 to {n}, which is 1 for 0",
            "1, {n}",
            "1, {n} + 1",
            "{out} *= {i}",
            start="1",
            high=20,
        ),
        _counted(
            "add_all", "returns the sum of the list", "len({xs}) - 1", "len({xs})", "{out} += {xs}[{i}]"
        ),
        _counted(
            "scaled",
            "returns {k} times the sum of the list",
            "len({xs}) - 1",
            "len({xs})",
            "{out} += {xs}[{i}] * {k}",
        ),
        _counted(
            "places",
            "returns the sum over the list of each item times its place, counted from 0",
            "len({xs}) - 1",
            "len({xs})",
            "{out} += {xs}[{i}] * {i}",
        ),
    ),
    "zero": (
        _divided("share", "returns how often {b} goes into {a}, and 0 if {b} is 0", "{a} // {b}"),
        _divided(
            "leftover",
            "returns what is left of {a} after taking {b} from it as often as it goes, and 0 if {b} is 0",
            "{a} % {b}",
        ),
        _divided(
            "scaled", "returns how often {b} goes into {k} times {a}, and 0 if {b} is 0", "{a} * {k} // {b}"
        ),
        _divided(
            "percent", "returns {a} in percent of {b}, rounded down, and 0 if {b} is 0", "{a} * 100 // {b}"
        ),
        _divided(
            "scaled_rest",
            "returns what is left of {k} times {a} after taking {b} from it as often as it goes, and 0 if {b} is 0",
            "{a} * {k} % {b}",
        ),
        _divided(
            "share_plus",
            "returns {k} more than how often {b} goes into {a}, but 0 if {b} is 0",
            "{k} + {a} // {b}",
        ),
        _divided(
            "topped", "returns how often {b} goes into {a} plus {k}, and 0 if {b} is 0", "({a} + {k}) // {b}"
        ),
        _divided(
            "rest_times",
            "returns {k} times the rest of {a} after taking {b} from it as often as it goes, and 0 if {b} is 0",
            "{a} % {b} * {k}",
        ),
        _divided(
            "both",
            "returns how often {c} goes into the sum of {a} and {b}, and 0 if {c} is 0",
            "({a} + {b}) // {c}",
            "{a}, {b}, {c}",
            "{c}",
        ),
        _divided(
            "mean",
            "returns the mean of the list rounded down, and 0 for an empty list",
            "sum({xs}) // len({xs})",
            "{xs}",
            "len({xs})",
        ),
        _divided(
            "mean_rest",
            "returns what is left of the sum of the list after taking its length from it as often as it goes, and 0 "
            "for an empty list",
            "sum({xs}) % len({xs})",
            "{xs}",
            "len({xs})",
        ),
        _divided(
            "scaled_mean",
            "returns {k} times the sum of the list over its length, rounded down, and 0 for an empty list",
            "sum({xs}) * {k} // len({xs})",
            "{xs}",
            "len({xs})",
        ),
    ),
    "init": (
        _gathered("total", "returns the sum of the list", "{out} += {x}"),
        _gathered("sum_up", "returns the sum of the list", "{out} += {x}", faulty="{k}"),
        _gathered("scaled", "returns {k} times the sum of the list", "{out} += {x} * {k}"),
        _gathered("raised", "returns the sum of the list with {k} added to each item", "{out} += {x} + {k}"),
        _gathered(
            "lowered", "returns the sum of the list with {k} taken from each item", "{out} += {x} - {k}"
        ),
        _gathered("tally", "returns how many items the list has", "{out} += 1", faulty="{k}"),
        _gathered("fees", "returns {k} for each item of the list, summed", "{out} += {k}"),
        _gathered("squares", "returns the sum of the squares of the list", "{out} += {x} * {x}"),
        _gathered(
            "spread",
            "returns the sum of the list times the number of its items",
            "{out} += {x} * len({xs})",
        ),
        _gathered(
            "product",
            "returns the product of the list, which is 1 for an empty list",
            "{out} *= {x}",
            faulty="0",
            gold="1",
        ),
        _gathered(
            "growth",
            "returns the product of the list with {k} added to each item, which is 1 for an empty list",
            "{out} *= {x} + {k}",
            faulty="0",
            gold="1",
        ),
        _gathered(
            "product_of_multiples",
            "returns the product of {k} times each item of the list, which is 1 for an empty list",
            "{out} *= {x} * {k}",
            faulty="0",
            gold="1",
        ),
    ),
}

UNTRAINED: Mapping[str, Sequence[Form]] = {
    "minmax": (
        _largest("excess", "returns by how much {a} is above {b}, and 0 if it is not", "max({a} - {b}, 0)"),
        _largest(
            "largest_of_three",
            "returns the largest of {a}, {b} and {c}",
            "max({a}, {b}, {c})",
            "{a}, {b}, {c}",
        ),
        _largest(
            "sum_floor",
            "returns the sum of the list, or {k} where that is below {k}",
            "max(sum({xs}), {k})",
            "{xs}",
        ),
        _largest(
            "smaller_end",
            "returns the smaller of the first and the last item of a non-empty list",
            "min({xs}[0], {xs}[-1])",
            "{xs}",
        ),
        Form(
            "sum_capped",
            _LIST,
            "returns the sum of the list with 5 in the place of every item above 5",
            loop("{xs}", "{out} = 0", "{x} in {xs}", "{out} += max({x}, 5)"),
            loop("{xs}", "{out} = 0", "{x} in {xs}", "{out} += min({x}, 5)"),
            list_of_ints(),
        ),
    ),
    "compare": (
        _compared(
            "near", "{a} and {b} are {k} or less apart", "abs({a} - {b}) < {k}", "abs({a} - {b}) <= {k}"
        ),
        _compared("gap", "{a} less {b} is more than {k}", "{a} - {b} >= {k}", "{a} - {b} > {k}"),
        _compared(
            "together",
            "{a} and {b} come to {c} or less in all",
            "{a} + {b} < {c}",
            "{a} + {b} <= {c}",
            "{a}, {b}, {c}",
        ),
        _compared(
            "between",
            "{c} is {a} or more and less than {b}",
            "{a} < {c} < {b}",
            "{a} <= {c} < {b}",
            "{a}, {b}, {c}",
        ),
        _valued(
            "either",
            "returns {b} where {a} is more than {k}, and 0 otherwise",
            "{a}, {b}",
            "{b} if {a} >= {k} else 0",
            "{b} if {a} > {k} else 0",
        ),
    ),
    "range": (
        Form(
            "sum_at_once",
            _COUNT,
            "returns the sum of the whole numbers from 0 to {n}",
            expression("{n}", "sum(range({n}))"),
            expression("{n}", "sum(range({n} + 1))"),
            ints(1),
        ),
        _counted(
            "list_to",
            "returns the list of the whole numbers from 0 to {n}",
            "{n}",
            "{n} + 1",
            "{out}.append({i})",
            start="[]",
            high=20,
        ),
        _counted(
            "taken", "returns 100 less {k} for each of {n}", "{n} + 1", "{n}", "{out} -= {k}", start="100"
        ),
        _counted(
            "sum_from",
            "returns the sum of the whole numbers from {k} to {n}, which is 0 if {n} is below {k}",
            "{k}, {n}",
            "{k}, {n} + 1",
            "{out} += {i}",
        ),
        _counted(
            "list_squares",
            "returns the sum of the squares of the list",
            "len({xs}) - 1",
            "len({xs})",
            "{out} += {xs}[{i}] * {xs}[{i}]",
        ),
    ),
    "zero": (
        _divided(
            "over_gap",
            "returns {a} over the difference {b} - {k}, rounded down, and 0 if {b} is {k}",
            "{a} // ({b} - {k})",
            divisor="{b} - {k}",
        ),
        _divided(
            "product_rest",
            "returns what is left of {a} times {b} after taking {c} from it as often as it goes, and 0 if {c} is 0",
            "{a} * {b} % {c}",
            "{a}, {b}, {c}",
            "{c}",
        ),
        _divided(
            "sum_share",
            "returns how often {x} goes into the sum of the list, and 0 if {x} is 0",
            "sum({xs}) // {x}",
            "{xs}, {x}",
            "{x}",
        ),
        _divided(
            "share_for_each",
            "returns the whole part of {x} that each item of the list gets, and 0 for an empty list",
            "{x} // len({xs})",
            "{x}, {xs}",
            "len({xs})",
        ),
        _divided(
            "share_less",
            "returns {k} less than how often {b} goes into {a}, but 0 if {b} is 0",
            "{a} // {b} - {k}",
        ),
    ),
    "init": (
        _gathered("negative", "returns 0 less the sum of the list", "{out} -= {x}"),
        _gathered(
            "digits",
            "returns the number whose decimal digits the list holds, and 0 for an empty list",
            "{out} = {out} * 10 + {x}",
        ),
        _gathered(
            "far", "returns the sum of how far each item of the list is from {k}", "{out} += abs({x} - {k})"
        ),
        _gathered(
            "with_squares",
            "returns the sum of the list and of the squares of its items",
            "{out} += {x} * {x} + {x}",
        ),
        _gathered(
            "product_of_squares",
            "returns the product of the squares of the list, which is 1 for an empty list",
            "{out} *= {x} * {x}",
            faulty="0",
            gold="1",
        ),
    ),
}
