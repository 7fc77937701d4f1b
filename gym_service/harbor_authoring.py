"""A task of Harbor's or terminal-bench's (`tasks.harbor`) becomes a proven task, or the reason why it does not fit.

What an episode starts from is the working folder of the image. The solution runs once, in a sandbox of the image,
without network and without rights; what it changes in that folder is the gold. The tests are all hidden: those that
pass only with the gold decide, the others have to go on passing. They lie in a folder of their own beside the rest, so
whatever names another place, such as /tests, does not fit; nor does what is changed elsewhere, because a verdict is
about the folder alone.
"""

import asyncio
import random
import re
from collections.abc import Mapping
from dataclasses import replace

from gym_service.authoring import find_functions, try_out, turn
from gym_service.grading.changes import take_changes
from gym_service.proof import Grounds
from gym_service.sandbox.base import Execute
from gym_service.sandbox.image_files import Image
from gym_service.tasks.environment import Environment
from gym_service.tasks.harbor import HarborFolder, paths_outside
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.repository import RepositoryTask, function_of

TEST_FOLDER = "verifier"
"""Where the tests lie in a graded folder."""
SOLUTION_SECONDS = 60.0
_SHELLS = ("/bin/bash", "/bin/sh")
_MOST_SAID = 300
_NETWORK = re.compile(r"\b(apt|apt-get|pip3?|curl|wget|git clone|npm|uv|uvx|conda)\b")


def draft_task(
    folder: HarborFolder, image: Image, python: str, suite: str, split: Split, image_digest: str
) -> tuple[RepositoryTask, str]:
    """The task before anything has run, and the shell that its solution runs in. Raises ImportRefused.

    `python` is the interpreter in the image that runs the tests; empty for the gym's own.
    """
    workspace = image.folder.rstrip("/")
    if not workspace:
        raise ImportRefused("its image has no WORKDIR: a task is about the files of one folder, such as /app")
    for path, file in paths_outside(folder.tests, workspace):
        raise ImportRefused(f"tests/{file} looks at {path}, outside of {workspace}, where nothing is graded")
    tree = image.read_folder(workspace)
    if any(path.partition("/")[0] == TEST_FOLDER for path in tree):
        raise ImportRefused(f"{workspace} holds a folder {TEST_FOLDER}, where the tests would lie")
    shell = next(filter(image.holds, _SHELLS[0 if folder.solution.startswith("#!") else 1 :]), "")
    if python and not image.holds(python):
        raise ImportRefused(f"its image holds no {python}: say with --python where its Python is")
    if not shell:
        raise ImportRefused("its image has no /bin/sh to run the solution")
    task = RepositoryTask(
        task_id=f"{suite}/{folder.name}",
        suite=suite,
        split=split,
        family="harbor",
        request=folder.request,
        base=tree,
        gold={},
        test_files={f"{TEST_FOLDER}/{path}": content for path, content in folder.tests.items()},
        fail_to_pass=(),
        pass_to_pass=(),
        twins={},
        plain=(),
        # The tests import nothing of the folder, and no file of it stands in for a module.
        roots=(),
        image_digest=image_digest,
        source=f"the folder {folder.name}",
        environment=Environment(image.digest, workspace, python, image.variables),
        sources="all",
    )
    return task, shell


async def make_task(
    draft: RepositoryTask, shell: str, folder: HarborFolder, grounds: Grounds
) -> RepositoryTask:
    """Makes a task of a draft, yet to be proven. Raises ImportRefused, SandboxLost."""
    task = replace(draft, gold=await _solve(draft, [shell, "-c", folder.solution], grounds))
    functions = find_functions(task, task.test_files)
    rng = random.Random(task.sha256)
    tried = await try_out(task, functions, rng, grounds)
    seen = {function_of(test) for test in tried.with_gold}
    failing = [test for test, passed in tried.with_gold.items() if not passed]
    if wrong := [*failing, *(name for name in functions if name not in seen)]:
        raise ImportRefused(
            f"{wrong[0]} does not pass with what the solution leaves in the workspace (do the tests need what is not "
            "installed? --python names an interpreter of the image, with pytest)"
        )
    task = replace(
        task,
        fail_to_pass=tuple(sorted(test for test in tried.with_gold if not tried.at_start.get(test))),
        pass_to_pass=tuple(sorted(test for test in tried.with_gold if tried.at_start.get(test))),
    )
    if not task.fail_to_pass:
        raise ImportRefused("all its tests pass before anything is solved")
    return await turn(task, functions, tried, rng, grounds)


async def _solve(task: RepositoryTask, command: list[str], grounds: Grounds) -> Mapping[str, bytes]:
    """What the solution changes in the workspace. Raises ImportRefused, SandboxLost."""
    async with grounds.pool.lend(task.environment) as sandbox:
        await asyncio.gather(*(sandbox.write_file(path, content) for path, content in task.base.items()))
        done = await sandbox.run(Execute(tuple(command)), SOLUTION_SECONDS)
        if done.timed_out or done.out_of_memory:
            raise ImportRefused("its solution takes too much of time or memory")
        if done.exit_status != 0:
            said = done.output.decode(errors="replace").strip()[-_MOST_SAID:]
            needs = _NETWORK.search(command[-1])
            hint = f" (it uses {needs[0]}, and a sandbox has no network)" if needs else ""
            raise ImportRefused(f"its solution ends with {done.exit_status}{hint}: {said}")
        changes = await take_changes(sandbox, task)
    if changes.refusal:
        raise ImportRefused(f"its solution leaves what is not graded: {changes.refusal}")
    if changes.deleted:
        raise ImportRefused(
            f"its solution deletes {changes.deleted[0]}: a gold here changes files and adds some"
        )
    if not changes.files:
        raise ImportRefused(f"its solution changes nothing in {task.environment.workspace} that is graded")
    return changes.files
