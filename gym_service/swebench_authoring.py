"""A row of SWE-bench (`tasks.swebench`) and the files of its commit become a proven task, or the reason why not.

What an episode starts from is the commit without the tests of FAIL_TO_PASS, which are the hidden ones; other tests are
there as they were before the row's test patch. Graded is with the tests as they are after it. What a row says of its
tests is held against what they do in sandboxes: a row that is wrong about one, or whose tests need what is not there,
is refused, with their names.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gym_service.authoring import find_functions, try_out, turn
from gym_service.grading.unified_diff import DiffRefused, apply_diff
from gym_service.proof import Grounds
from gym_service.sandbox.image_files import Image, open_image
from gym_service.tasks.base_tree import check_path, import_roots, is_left_out
from gym_service.tasks.clone import find_clone, read_commit
from gym_service.tasks.environment import Environment
from gym_service.tasks.hiding import remove_tests, written_tests
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask, function_of, is_test_module
from gym_service.tasks.swebench import Row

WORKSPACE = "/testbed"
"""Where the images of SWE-bench have the repository."""
PYTHON = "/opt/miniconda3/envs/testbed/bin/python"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Where the tasks of a file belong."""

    suite: str
    split: Split
    source: str
    """Names the file and its content."""


def read_source(
    row: Row, repos: Path | None, python: str, owner: str
) -> tuple[dict[str, bytes], Environment]:
    """The files of a row's commit, from its clone or else out of its image, and what they run in.

    `repos` are the clones; None for none. `python` is the interpreter of the images; empty to look for one.
    Raises ImportRefused, SandboxLost.
    """
    clone = find_clone(repos, row.repo) if repos else None
    tree = read_commit(clone, row.base_commit) if clone else {}
    if not row.image:
        if clone is None:
            place = repos / row.repo if repos else "of it, because no --repos is given"
            raise ImportRefused(f"there is no clone {place}, nor an image in the row")
        return tree, Environment()
    with open_image(row.image, owner) as image:
        environment = _environment(image, python)
        return tree or image.read_folder(WORKSPACE), environment


def _environment(image: Image, python: str) -> Environment:
    folders = [folder for folder in image.variables.get("PATH", "").split(":") if folder.startswith("/")]
    places = [python] if python else [PYTHON, *(f"{folder}/python3" for folder in folders)]
    found = next(filter(image.holds, places), "")
    if not found:
        raise ImportRefused(
            f"its image holds no {' nor '.join(places)}: say with --python where its Python is"
        )
    path = ":".join(dict.fromkeys([found.rpartition("/")[0], *folders]))
    variables = {**image.variables, "PATH": path}
    return Environment(image=image.digest, workspace=WORKSPACE, python=found, variables=variables)


async def make_task(
    row: Row, tree: Mapping[str, bytes], environment: Environment, place: Place, grounds: Grounds
) -> RepositoryTask:
    """Makes a task of a row, yet to be proven; `tree` is the commit's. Raises ImportRefused, SandboxLost."""
    draft = replace(draft_task(row, tree, environment, place), image_digest=grounds.image_digest)
    named = (*row.fail_to_pass, *row.pass_to_pass)
    functions = list(dict.fromkeys(map(function_of, named)))
    written = {*find_functions(draft, {name.partition("::")[0] for name in functions})}
    _refuse([name for name in functions if name not in written], "its test files hold no such test function")
    rng = random.Random(draft.sha256)
    tried = await try_out(draft, functions, rng, grounds)
    with_gold, at_start = tried.with_gold, tried.at_start
    _refuse(
        [test for test in named if not with_gold.get(test)],
        "with the patch tests do not pass here (do they need what is not installed?)",
    )
    _refuse(
        [test for test in row.fail_to_pass if at_start.get(test)],
        "FAIL_TO_PASS names tests that pass without the patch",
    )
    _refuse(
        [test for test in row.pass_to_pass if not at_start.get(test)],
        "PASS_TO_PASS names tests that fail without the patch",
    )
    # Of a function all tests run: what a row does not name of one counts as it was seen.
    others = [test for test in with_gold if test not in named]
    hidden = draft.hidden_functions
    _refuse(
        [
            each
            for each in others
            if not with_gold[each] or not (at_start.get(each) or function_of(each) in hidden)
        ],
        "the row leaves out tests that run with those that it names, and fail",
    )
    task = replace(
        draft,
        fail_to_pass=(*draft.fail_to_pass, *(each for each in others if not at_start.get(each))),
        pass_to_pass=(*draft.pass_to_pass, *(each for each in others if at_start.get(each))),
    )
    return await turn(task, functions, tried, rng, grounds)


def draft_task(row: Row, tree: Mapping[str, bytes], environment: Environment, place: Place) -> RepositoryTask:
    """The task before anything has run. Raises ImportRefused."""
    repaired, gone = _apply("patch", row.patch, tree)
    tests, gone_tests = _apply("test_patch", row.test_patch, tree)
    holders = {test.partition("::")[0] for test in (*row.fail_to_pass, *row.pass_to_pass)}
    after = {path: content for path, content in tree.items() if path not in gone_tests} | tests
    _refuse([path for path in sorted(holders) if path not in after], "after the test patch there is no file")
    task = RepositoryTask(
        task_id=f"{place.suite}/{row.name}",
        suite=place.suite,
        split=place.split,
        family=row.repo,
        request="",
        base={},
        gold={},
        test_files={
            path: content
            for path, content in after.items()
            if is_test_module(path) or path in holders or path in tests
        },
        fail_to_pass=tuple(sorted(row.fail_to_pass)),
        pass_to_pass=tuple(sorted(row.pass_to_pass)),
        twins={},
        plain=(),
        roots=import_roots(tree),
        source=place.source,
        environment=environment,
    )
    base = _without_hidden(task, {path: content for path, content in tree.items() if path not in gone_tests})
    command = " ".join(
        ["pytest", *sorted({test.partition("::")[0] for test in task.fail_to_pass} & base.keys())]
    )
    task = replace(task, base=base, test_command=command)
    gold = {path: content for path, content in repaired.items() if task.is_source(path)}
    if lost := [path for path in gone if task.is_source(path)]:
        raise ImportRefused(f"its patch deletes {lost[0]}: a gold here changes files and adds some")
    if not gold:
        raise ImportRefused(
            f"its patch changes no source, but {_names(repaired)}; what lies beside tests counts as theirs"
        )
    request = (
        f"{row.problem.strip()}\n\nResolve this in the repository, and change no test. `{command}` runs tests that are "
        f"there; others decide. Only what changes in {', '.join(sorted(task.source_names))} is graded."
    )
    return replace(task, gold=gold, request=request)


def _apply(name: str, diff: str, tree: Mapping[str, bytes]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    try:
        changed, deleted = apply_diff(tree, diff)
    except DiffRefused as error:
        raise ImportRefused(f"its {name}: {error}") from error
    for path in changed:
        check_path(path)
        if is_left_out(path):
            raise ImportRefused(f"its {name} changes {path}, which is in no base tree")
    return changed, deleted


def _without_hidden(task: RepositoryTask, tree: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a commit without the hidden tests, where it has some already."""
    base = dict(tree)
    for path in {name.partition("::")[0] for name in task.hidden_functions} & tree.keys():
        names = {
            name.partition("::")[2].replace("::", ".")
            for name in task.hidden_functions
            if name.startswith(f"{path}::")
        }
        try:
            source = tree[path].decode()
            base[path] = remove_tests(source, names & written_tests(source)).encode()
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ImportRefused(f"the hidden tests of {path} cannot be taken out: {error}") from error
    return base


def _refuse(names: Sequence[str], reason: str) -> None:
    """Raises ImportRefused where there are names."""
    if names:
        raise ImportRefused(f"{reason}: {_names(names)}")


def _names(names: Iterable[str]) -> str:
    """Some of the names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return ", ".join(listed[:_MOST_NAMED]) + more
