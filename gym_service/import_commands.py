"""`python -m gym_service tasks import`: tasks of others, out of files and folders in the forms that they come in."""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gym_service.state import StateFolder
from gym_service.task_proving import prove, say, show_progress, with_engine
from gym_service.visible import visible

if TYPE_CHECKING:
    from gym_service.sandbox.docker import DockerEngine
    from gym_service.tasks.command import CommandTask
    from gym_service.tasks.repository import RepositoryTask
    from gym_service.tasks.scaffold import TaskFolder

_SPLITS = ("train", "validation", "test")
_ROWS = "swebench"
_HARBOR_SUITE = "harbor"
_FORMS = ("humaneval", "humanevalfix", "mbpp", _ROWS)


def add_options(imported: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
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


def run(arguments: argparse.Namespace, state: StateFolder) -> int:
    """Imports what is named and returns the exit status. Raises ImportRefused, DamagedSuite, CommandRefused."""
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
    from gym_service.tasks.store import check_new_suite

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
        except (ImportRefused, EnvironmentRefused, FileRefused) as error:
            return _refuse(error)
        return await _keep(task, state, engine)

    return with_engine(make, state)


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
                except (ImportRefused, EnvironmentRefused, FileRefused) as error:
                    refused.append(f"{row.label}: {_reason(error)}")
                except SandboxLost as error:
                    if not error.by_policy:
                        raise
                    refused.append(f"{row.label}: its code brings the sandbox down: {error}")
                show_progress(done, len(found.rows))
        print(proof.table(kept))
        for line in refused:
            print(visible(f"refused: {line}"))
        if kept:
            say(f"The tasks are the suite {suite}, in {folder}; a gym serves them from its next start")
        return 1 if refused else 0

    return with_engine(make, state)


def _import_folder(arguments: argparse.Namespace, state: StateFolder) -> int:
    from gym_service import authoring, proof
    from gym_service.sandbox.base import FileRefused
    from gym_service.tasks.command import CommandTask
    from gym_service.tasks.importing import ImportRefused
    from gym_service.tasks.repository import RepositoryTask
    from gym_service.tasks.scaffold import read_folder
    from gym_service.tasks.store import check_new_suite, check_not_taken
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
        except (ImportRefused, SetupError, FileRefused) as error:
            return _refuse(error)
        return await _keep(task, state, engine)

    return with_engine(make, state)


def _with_image(folder: "TaskFolder", path: Path) -> "TaskFolder":
    """The folder with the image of its Dockerfile, built. Raises ImageRefused."""
    from sandbox_images.engine import connect
    from sandbox_images.own import build_image

    if not folder.dockerfile:
        return folder
    place = path / folder.dockerfile
    say(f"{place} is built")
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
        all_proven = await prove(found.tasks, state, engine)
        for line in found.refused:
            print(visible(f"refused: {line}"))
        drop_other_sources(folder, found.source)
        for task in found.tasks:
            save_task(folder, task)
        say(f"The tasks are the suite {suite}, in {folder}; what is not proven is not served")
        return 0 if all_proven and not found.refused else 1

    return with_engine(make, state)


async def _keep(task: "RepositoryTask | CommandTask", state: StateFolder, engine: "DockerEngine") -> int:
    """Proves the task of a folder and puts it into its suite; returns the exit status."""
    from gym_service.tasks.store import save_task

    if not await prove([task], state, engine):
        return 1
    save_task(state.suites / task.suite, task)
    say(f"{task.task_id} is in {state.suites / task.suite}")
    return 0


def _refuse(error: Exception) -> int:
    say(visible(f"refused: {_reason(error)}"))
    return 1


def _reason(error: Exception) -> str:
    """Why a task is refused, for its author."""
    from gym_service.sandbox.base import FileRefused

    if isinstance(error, FileRefused):
        return f"a sandbox does not take its files: {error.kind}"
    return str(error)


def _check_unused(arguments: argparse.Namespace, *names: str) -> None:
    from gym_service.tasks.importing import ImportRefused

    for name in names:
        if getattr(arguments, name):
            harbor = " and with folders of Harbor" if name == "python" else ""
            raise ImportRefused(f"--{name} goes with --as {_ROWS}{harbor}")
