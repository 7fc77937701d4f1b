"""`python -m gym_service tasks`: lists, proves and makes tasks."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gym_service.errors import NotFound
from gym_service.state import StateFolder

if TYPE_CHECKING:
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.tasks.scaffold import TaskFolder
    from gym_service.tasks.suites import Task

_Action: TypeAlias = "Callable[[DockerEngine], Coroutine[Any, Any, int]]"
_MOST_TASKS = 1000
_PROVEN_AT_ONCE = 20
"""After so many tasks what was found is written down, and told."""
_BAR_CHARACTERS = 40
_MOST_SHOWN = 10
"""Up to so many files are shown with what is in them."""
_MOST_SHOWN_BYTES = 4000
_SPLITS = ("train", "validation", "test")
_ROWS = "swebench"
_HARBOR_SUITE = "harbor"
_FORMS = ("humaneval", "humanevalfix", "mbpp", _ROWS)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command and its actions."""
    tasks = commands.add_parser("tasks", help="list, prove or make tasks")
    actions = tasks.add_subparsers(dest="action", required=True)
    listed = actions.add_parser("list", help="list the tasks of a suite")
    checked = actions.add_parser(
        "check", help="prove the tasks of a suite; a gym serves what is proven at its next start"
    )
    for action in (listed, checked):
        action.add_argument("suite", nargs="?", default="bugfix")
    imported = actions.add_parser(
        "import",
        help="take over the tasks of a file, or the task of a folder",
        description="Makes a suite of the tasks in a file, or puts the task of a folder into its suite. All are "
        "proven; what is not proven is not served. Nothing of them is executed outside a sandbox, except that a "
        "folder of Harbor or terminal-bench has the engine build its Dockerfile, whose steps have the network.",
    )
    imported.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="JSON lines, maybe compressed as .gz; or a folder: with a task.toml as `tasks new` writes it, or a "
        f"task of Harbor (instruction.md) or terminal-bench (task.yaml), as far as it fits; --split, --name and "
        f"--commands are for these, too, and {_HARBOR_SUITE} is the suite by default",
    )
    rows = imported.add_argument_group(
        f"--as {_ROWS}",
        "Rows of SWE-bench, as JSON lines or one list. Nothing is downloaded: the repositories and images are "
        "those that this machine has. A row is refused, and told, where its tests do not do here what it says.",
    )
    rows.add_argument(
        "--repos",
        type=Path,
        metavar="FOLDER",
        help="git clones, as FOLDER/OWNER/NAME or FOLDER/OWNER__NAME; for a row without one, /testbed of its image",
    )
    rows.add_argument(
        "--images", type=Path, metavar="FILE", help="an object in JSON with an image for each instance_id"
    )
    imported.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter, with pytest, in the images that runs the tests; by default for rows that of SWE-bench's "
        "images or python3, for a folder of Harbor the gym's own",
    )
    imported.add_argument("--as", dest="form", choices=_FORMS, help="how the lines of a file are written")
    imported.add_argument(
        "--split", choices=_SPLITS, help="where the tasks of a file belong; test by default"
    )
    imported.add_argument("--name", help="what the suite of a file is called; after the file by default")
    imported.add_argument(
        "--commands",
        type=Path,
        metavar="FILE",
        help="TOML with the commands that the tasks of a file allow beside those that every task has",
    )
    new = actions.add_parser("new", help="write a task to start from, as a folder")
    new.add_argument("path", type=Path, metavar="FOLDER")
    new.add_argument(
        "--command",
        dest="with_command",
        action="store_true",
        help="one in Perl, whose tests are run by a command; so are those of any other language",
    )
    seen = actions.add_parser("show", help="print what the policy will see of a task: messages, tools, files")
    seen.add_argument("task_id", metavar="TASK_ID")
    made = actions.add_parser(
        "synthesize",
        help="make repository-level tasks out of source distributions",
        description="Downloads source distributions by version and hash, puts one fault at a time into the sources, "
        "hides the tests that fail by it, proves each task, and keeps those of NAME as the suite NAME. Nothing of a "
        "package is executed outside a sandbox.",
    )
    made.add_argument(
        "--sdist",
        action="append",
        metavar="NAME==VERSION",
        help="a distribution; may be given again; by default all whose hashes are known here",
    )
    made.add_argument("--count", type=int, default=12, help="tasks to make of each; 12 by default")
    made.add_argument(
        "--sha256", help="the hash of the archive, for one --sdist whose hash is not known here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries out an action and returns the exit status."""
    # Not above: every other command would wait for what these import.
    from gym_service.tasks.commands import CommandRefused
    from gym_service.tasks.importing import ImportRefused
    from gym_service.tasks.sdist import SdistError
    from gym_service.tasks.store import DamagedSuite, known_suites

    state = StateFolder(arguments.state_folder)
    try:
        if arguments.action == "synthesize":
            return _synthesize(arguments, state)
        if arguments.action == "import":
            return _import(arguments, state)
        if arguments.action == "new":
            return _new(arguments.path, with_command=arguments.with_command)
        if arguments.action == "show":
            return _show(known_suites(state.suites).task(arguments.task_id))
        suite = known_suites(state.suites).suite(arguments.suite)
        if arguments.action == "list":
            for task in suite:
                print(f"{task.task_id:30} {task.split}")
            return 0
        return _check(suite, state)
    except (NotFound, DamagedSuite, SdistError, ImportRefused, CommandRefused) as error:
        print(f"error: {_printable(str(error))}", file=sys.stderr)
        return 2


def _import(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service.tasks.harbor import is_harbor
    from gym_service.tasks.importing import ImportRefused

    if not arguments.path.exists():
        raise ImportRefused(f"there is no {arguments.path}: name a file or a folder")
    if is_harbor(arguments.path):
        return _import_harbor(arguments, state)
    if arguments.path.is_dir():
        if not (arguments.path / "task.toml").is_file():
            raise ImportRefused(
                f"{arguments.path} is no task: it has no task.toml, nor an instruction.md (Harbor) or a task.yaml "
                "(terminal-bench); `tasks new FOLDER` writes one to start from"
            )
        _check_unused(arguments, "repos", "images", "python")
        return _import_folder(arguments, state)
    if arguments.form == _ROWS:
        return _import_rows(arguments, state)
    _check_unused(arguments, "repos", "images", "python")
    return _import_file(arguments, state)


def _import_harbor(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import harbor_authoring, proof
    from gym_service.sandbox import image_files
    from gym_service.sandbox.base import EnvironmentRefused, FileRefused
    from gym_service.tasks.harbor import read_harbor
    from gym_service.tasks.importing import ImportRefused
    from gym_service.tasks.model import Split
    from gym_service.tasks.ready_commands import read_command_file
    from gym_service.tasks.repository import RepositoryTask
    from gym_service.tasks.store import check_new_suite, save_task

    if arguments.form:
        raise ImportRefused("--as is for files: a folder is known by what lies in it")
    _check_unused(arguments, "repos", "images")
    commands = read_command_file(arguments.commands) if arguments.commands else ()
    folder = read_harbor(arguments.path)
    suite = arguments.name or _HARBOR_SUITE
    check_new_suite(state.suites, suite, RepositoryTask)
    split = Split(arguments.split or "test")

    async def make(engine: "DockerEngine") -> int:
        try:
            name = folder.image or await asyncio.to_thread(
                image_files.build, folder.context, folder.not_for_image
            )
            with image_files.open_image(name, f"{state.owner}-tasks") as image:
                draft, shell = harbor_authoring.draft_task(
                    folder, image, arguments.python or "", suite, split, engine.facts.image_digest
                )
            draft = replace(draft, environment=replace(draft.environment, commands=commands))
            async with proof.open_grounds(engine) as grounds:
                task = await harbor_authoring.make_task(draft, shell, folder, grounds)
        except FileRefused as error:
            _say(f"refused: a sandbox does not take its files: {error.kind}")
            return 1
        except (ImportRefused, EnvironmentRefused) as error:
            _say(_printable(f"refused: {error}"))
            return 1
        if not await _prove([task], state, engine):
            return 1
        save_task(state.suites / suite, task)
        _say(f"{task.task_id} is in {state.suites / suite}")
        return 0

    return _with_engine(make, state)


def _import_rows(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import proof, swebench_authoring
    from gym_service.sandbox.base import EnvironmentRefused, FileRefused, SandboxLost
    from gym_service.tasks.importing import ImportRefused, suite_name
    from gym_service.tasks.model import Split
    from gym_service.tasks.ready_commands import read_command_file
    from gym_service.tasks.repository import RepositoryTask
    from gym_service.tasks.store import check_new_suite, drop_other_sources, save_task
    from gym_service.tasks.swebench import read_rows

    if arguments.repos and not arguments.repos.is_dir():
        raise ImportRefused(f"--repos {arguments.repos} is no folder: name the one with the git clones")
    suite = arguments.name or suite_name(arguments.path.name)
    check_new_suite(state.suites, suite, RepositoryTask)
    found = read_rows(arguments.path, arguments.images)
    place = swebench_authoring.Place(suite, Split(arguments.split or "test"), found.source)
    folder = state.suites / suite
    owner = f"{state.owner}-tasks"
    commands = read_command_file(arguments.commands) if arguments.commands else ()

    async def make(engine: "DockerEngine") -> int:
        book = proof.ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
        refused = list(found.refused)
        kept: list[proof.Proof] = []
        async with proof.open_grounds(engine) as grounds:
            for done, row in enumerate(found.rows, start=1):
                try:
                    tree, environment = await asyncio.to_thread(
                        swebench_authoring.read_source, row, arguments.repos, arguments.python or "", owner
                    )
                    environment = replace(environment, commands=commands)
                    task = await swebench_authoring.make_task(row, tree, environment, place, grounds)
                    proven = await proof.prove(task, grounds)
                    if proven.faults:
                        raise ImportRefused("; ".join(proven.faults))
                    if not kept:
                        drop_other_sources(folder, found.source)
                    save_task(folder, task)
                    book.add([proven])
                    kept.append(proven)
                except (ImportRefused, EnvironmentRefused) as error:
                    refused.append(f"{row.label}: {error}")
                except FileRefused as error:
                    refused.append(f"{row.label}: a sandbox does not take its files: {error.kind}")
                except SandboxLost as error:
                    if not error.by_policy:
                        raise
                    refused.append(f"{row.label}: its code brings the sandbox down: {error}")
                _show_progress(done, len(found.rows))
        print(proof.table(kept))
        for line in refused:
            print(_printable(f"refused: {line}"))
        if kept:
            _say(f"The tasks are the suite {suite}, in {folder}; a gym serves them from its next start")
        return 1 if refused else 0

    return _with_engine(make, state)


def _check_unused(arguments: argparse.Namespace, *names: str) -> None:
    from gym_service.tasks.importing import ImportRefused

    for name in names:
        if getattr(arguments, name):
            harbor = " and with folders of Harbor" if name == "python" else ""
            raise ImportRefused(f"--{name} goes with --as {_ROWS}{harbor}")


def _check(suite: "Sequence[Task]", state: StateFolder) -> int:
    async def check(engine: "DockerEngine") -> int:
        return 0 if await _prove(suite, state, engine) else 1

    return _with_engine(check, state)


async def _prove(suite: "Sequence[Task]", state: StateFolder, engine: "DockerEngine") -> bool:
    """Proves tasks, keeps what was found and prints it; returns whether all are proven."""
    from gym_service import proof

    book = proof.ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
    proofs: list[proof.Proof] = []
    news = False
    async with proof.open_grounds(engine) as grounds:
        for first in range(0, len(suite), _PROVEN_AT_ONCE):
            found = await proof.prove_all(suite[first : first + _PROVEN_AT_ONCE], grounds)
            news = news or any(book.holds(each.task) is bool(each.faults) for each in found)
            book.add(found)
            proofs += found
            _show_progress(len(proofs), len(suite))
    print(proof.table(proofs))
    if news:
        print("A gym goes by this from its next start: make gym-down, make gym-up", file=sys.stderr)
    return not any(each.faults for each in proofs)


def _new(folder: Path, *, with_command: bool) -> int:
    from gym_service.tasks.scaffold import write_example

    write_example(folder, with_command=with_command)
    _say(f"{folder} is an example of a task. `python -m gym_service tasks import {folder}` proves it")
    return 0


def _show(task: "Task") -> int:
    from gym_service.tasks.suites import open_task
    from gym_service.toolsets.coding import Coding

    instance = open_task(task, "show")
    for message in Coding().opening(instance):
        _say(f"--- {message.role}\n{_printable(message.content)}")
    _say("--- tools")
    for tool in Coding().tools_for(task):
        _say(f"{tool.name}({', '.join(tool.properties)}): {tool.description}")
    _say("--- files")
    for path, content in sorted(instance.tree.items()):
        _say(f"{len(content):9}  {_printable(path)}")
        if len(instance.tree) <= _MOST_SHOWN and len(content) <= _MOST_SHOWN_BYTES:
            _say(_printable(content.decode(errors="replace")))
    return 0


def _import_folder(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import authoring, proof
    from gym_service.tasks.command import CommandTask
    from gym_service.tasks.importing import ImportRefused
    from gym_service.tasks.repository import RepositoryTask
    from gym_service.tasks.scaffold import read_folder
    from gym_service.tasks.store import check_new_suite, check_not_taken, save_task
    from sandbox_images.engine import SetupError

    if arguments.form or arguments.split or arguments.name or arguments.commands:
        raise ImportRefused(
            "--as, --split, --name and --commands are for files: a folder has them in its task.toml"
        )
    folder = read_folder(arguments.path)
    check_new_suite(state.suites, folder.suite, RepositoryTask, CommandTask)

    async def make(engine: "DockerEngine") -> int:
        try:
            async with proof.open_grounds(engine) as grounds:
                own = await asyncio.to_thread(_with_image, folder, arguments.path)
                task = await authoring.make_task(own, grounds)
            check_not_taken(state.suites / folder.suite, task)
        except (ImportRefused, SetupError) as error:
            _say(_printable(f"refused: {error}"))
            return 1
        if not await _prove([task], state, engine):
            return 1
        save_task(state.suites / folder.suite, task)
        _say(f"{task.task_id} is in {state.suites / folder.suite}")
        return 0

    return _with_engine(make, state)


def _with_image(folder: "TaskFolder", path: Path) -> "TaskFolder":
    """The folder with the image of its Dockerfile, built. Raises ImageRefused."""
    from sandbox_images.engine import connect
    from sandbox_images.own import build_image

    if not folder.dockerfile:
        return folder
    place = path / folder.dockerfile
    _say(f"{place} is built")
    client = connect()
    assert client is not None, "the engine that proves tasks is there"
    image = build_image(client, place.parent, place.name)
    return replace(folder, environment=replace(folder.environment, image=image))


def _import_file(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service.tasks import importing
    from gym_service.tasks.commands import CommandRefused
    from gym_service.tasks.completion import CompletionTask
    from gym_service.tasks.model import Split
    from gym_service.tasks.store import check_new_suite, drop_other_sources, save_task

    if arguments.form is None:
        raise importing.ImportRefused(f"a file is imported with --as, one of {', '.join(_FORMS)}")
    if arguments.commands:  # They are part of a task's environment, and a completion has none.
        raise CommandRefused(
            f"--commands is for tasks of repositories: a task of --as {arguments.form} is one file"
        )
    suite = arguments.name or importing.suite_name(arguments.path.name)
    check_new_suite(state.suites, suite, CompletionTask)
    found = importing.read_file(arguments.path, arguments.form, suite, Split(arguments.split or "test"))
    folder = state.suites / suite

    async def make(engine: "DockerEngine") -> int:
        all_proven = await _prove(found.tasks, state, engine)
        for line in found.refused:
            print(_printable(f"refused: {line}"))
        drop_other_sources(folder, found.source)
        for task in found.tasks:
            save_task(folder, task)
        _say(f"The tasks are the suite {suite}, in {folder}; what is not proven is not served")
        return 0 if all_proven and not found.refused else 1

    return _with_engine(make, state)


def _synthesize(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import proof, synthesis
    from gym_service.tasks.sdist import PINNED, fetch
    from gym_service.tasks.store import drop_other_sources, save_task

    requirements = arguments.sdist or list(PINNED)
    if not 1 <= arguments.count <= _MOST_TASKS:
        print(f"error: --count must be from 1 to {_MOST_TASKS}, not {arguments.count}", file=sys.stderr)
        return 2
    if arguments.sha256 and len(requirements) > 1:
        print("error: --sha256 goes with one --sdist", file=sys.stderr)
        return 2

    async def make(engine: "DockerEngine") -> int:
        book = proof.ProofBook(state.proofs, engine.facts.image_digest, engine.image_of)
        wanting = 0
        for requirement in requirements:
            archive = fetch(requirement, arguments.sha256, state.folder / "downloads")
            _say(f"{requirement}: {arguments.count} tasks are to be made")
            made = 0
            async with proof.open_grounds(engine) as grounds:
                async for task in synthesis.synthesize(requirement, archive, arguments.count, grounds, _say):
                    if made == 0:
                        drop_other_sources(state.suites / task.suite, task.source)
                    save_task(state.suites / task.suite, task)
                    book.add([proof.Proof(task, ())])  # As it was made.
                    made += 1
            wanting += arguments.count - made
            _say(f"{requirement}: {made} proven tasks in {state.suites}")
        _say("A gym serves them from its next start: make gym-down, make gym-up")
        if wanting:
            print(f"error: {wanting} tasks are wanting; the packages have no more", file=sys.stderr)
        return 1 if wanting else 0

    return _with_engine(make, state)


def _with_engine(action: _Action, state: StateFolder) -> int:
    from gym_service.sandbox.base import SandboxLost
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.sandbox.policy import SandboxLimits
    from sandbox_images.build import image_reference

    if not state.lock("tasks.lock"):
        print(
            f"error: another `tasks` command is at work in {state.folder}; wait for its end", file=sys.stderr
        )
        return 1
    try:
        # Not the service's own containers, which would be cleared away when it starts.
        engine = DockerEngine(image_reference(), SandboxLimits(), f"{state.owner}-tasks", reuse=True)
        engine.remove_leftovers()
        try:
            return asyncio.run(action(engine))
        finally:
            engine.remove_leftovers()
    except SandboxLost as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was made and proven so far is kept", file=sys.stderr)
        return 130


def _show_progress(done: int, of: int) -> None:
    """Draws a bar where somebody looks on."""
    if sys.stderr.isatty():
        bar = "#" * (done * _BAR_CHARACTERS // of)
        end = "\n" if done == of else ""
        print(f"\r[{bar:{_BAR_CHARACTERS}}] {done} of {of} tasks", end=end, file=sys.stderr, flush=True)


def _printable(text: str) -> str:
    """A text without what a terminal would obey."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _say(line: str) -> None:
    print(line, flush=True)
