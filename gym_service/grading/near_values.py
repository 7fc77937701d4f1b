"""Other values for the literals of a test: near the original and like it, so that no reader sees which is which."""

import ast
import copy
import random
import string
from collections.abc import Sequence

_Plain = str | bytes | bool | int | float | complex
_SIMPLE = (str, bytes, int, float, complex)


def change_value(node: ast.expr, in_set: bool, rng: random.Random, pool: Sequence[object]) -> None:
    """Changes a literal in place to one of another value; of a set, or in a set, so that the set differs.

    `pool` is the values that occur beside it, which another one may be like.
    """
    match node:
        case ast.List() | ast.Tuple() | ast.Set():
            whole = not in_set and not any(isinstance(element, ast.Starred) for element in node.elts)
            # In a set an addition has to be new, which is known only of constants.
            shrinks = not all(isinstance(each, ast.Constant) for each in node.elts) or rng.random() < 0.5
            if (whole and node.elts) or (len(node.elts) > 1 and shrinks and _differ(node.elts)):
                _lengthen_or_shorten(node.elts, rng, shorten=in_set)
            else:
                node.elts.append(_another(node.elts, rng, pool))
        case ast.Dict():
            keys = [key for key in node.keys if key]
            if len(keys) == len(node.keys) > 0 and _differ(keys) and rng.random() < 0.5:
                place = rng.randrange(len(keys))
                del node.keys[place], node.values[place]
            else:
                node.keys.append(_another(keys, rng, pool))
                node.values.append(
                    copy.deepcopy(rng.choice(node.values)) if node.values else _like(rng, pool)
                )
        case ast.UnaryOp(operand=ast.Constant() as number):
            number.value = _near(number.value, rng, pool) or number.value + 1  # type: ignore[operator]
        case ast.Constant():
            node.value = _near(node.value, rng, pool)


def _lengthen_or_shorten(elements: list[ast.expr], rng: random.Random, *, shorten: bool) -> None:
    if shorten:
        del elements[rng.randrange(len(elements))]
    elif rng.random() < 0.1:
        elements.clear()
    elif rng.random() < 0.5:
        # At the ends, where no gap and no repetition shows.
        del elements[rng.choice((0, -1))]
    else:
        elements.append(_next(elements, rng))


def _next(elements: Sequence[ast.expr], rng: random.Random) -> ast.expr:
    """Gives an element that could follow: by the same step, or a copy of another one."""
    match elements[-2:]:
        case [ast.Constant(value=int() as before), ast.Constant(value=int() as last)] if (
            2 * last >= before and not isinstance(last, bool)
        ):
            return ast.Constant(2 * last - before)
    others = [each for each in elements if ast.dump(each) != ast.dump(elements[-1])]
    return copy.deepcopy(rng.choice(others or elements))


def _differ(elements: Sequence[ast.expr]) -> bool:
    """Says whether all are written out and no two are equal."""
    try:
        values = [ast.literal_eval(element) for element in elements]
    except (ValueError, TypeError):
        return False
    return all(value not in values[:place] for place, value in enumerate(values))


def _like(rng: random.Random, pool: Sequence[object]) -> ast.Constant:
    """Draws a constant that looks like one of a pool."""
    values = [value for value in pool if type(value) in _SIMPLE]
    return ast.Constant(_near(rng.choice(values) if values else rng.randint(0, 9), rng, pool))


def _another(elements: Sequence[ast.expr], rng: random.Random, pool: Sequence[object]) -> ast.Constant:
    """Draws a constant that could stand beside some elements, and is none of them."""
    values = [node.value for node in elements if isinstance(node, ast.Constant)]
    drawn = [_like(rng, [value for value in values if type(value) in _SIMPLE] or pool) for _ in range(20)]
    others = [constant for constant in drawn if constant.value not in values]
    # What other elements come to is not known, and must not be the same.
    return others[0] if others and len(values) == len(elements) else ast.Constant(rng.randint(10**3, 10**6))


def _near(value: object, rng: random.Random, pool: Sequence[object]) -> _Plain:
    """Draws another value that looks like the given one, and is no negative number."""
    alike = [each for each in pool if type(each) is type(value) and each != value]
    match value:
        case bool():
            return not value
        case str() | bytes() | int() if alike and rng.random() < 0.4:
            return rng.choice(alike)  # type: ignore[return-value]
        case str():
            return _near_text(value, rng)
        case bytes():
            return _near_text(value.decode("latin-1"), rng).encode("latin-1")
        case int():
            # A round number stays as round as it is.
            digits = str(value) if 0 < value < 10**15 else ""
            step = int("1" + "0" * (len(digits) - len(digits.rstrip("0"))))
            steps = (change * step for change in (-2, -1, 1, 2))
            return rng.choice([value + each for each in steps if value + each >= 0])
        case float() if value + 1 != value:
            decimals = len(repr(value).partition(".")[2]) if "e" not in repr(value) else 0
            changed: float = round(value + rng.choice((-2, -1, 1, 2)) * 0.1**decimals, decimals)
            return changed if changed > 0 and changed != value else float(value + 1)
        case complex():
            return value + rng.choice((1, 2))
        case _:
            return float(rng.randint(1, 999)) if isinstance(value, float) else rng.choice((0, 1, False))


def _near_text(text: str, rng: random.Random) -> str:
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    places = [(place, kind) for place, each in enumerate(text) for kind in kinds if each in kind]
    if not places:
        return text + (rng.choice(text) if text else rng.choice(string.ascii_lowercase))
    if rng.random() < 0.1:
        return ""
    place, kind = rng.choice(places)
    return text[:place] + rng.choice(kind.replace(text[place], "")) + text[place + 1 :]
