"""Whether an image does for a task: what has to be in it is there, and what nobody may read is not.

The walls themselves are tried before a sandbox of an image serves at all (`sandbox.surroundings`). Here the warden's
own Python looks through the container as an episode would see it, whatever the image has. Not covered: what lies in
archives, and what an episode may not read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gym_service.grading.records import parse_answers
from gym_service.sandbox.base import CallFunction, Execute, RunPython
from gym_service.sandbox.pool import PooledSandbox
from gym_service.tasks.environment import Environment

OLDEST_PYTHON = (3, 8)
_SEARCH_SECONDS = 300.0
"""An image can have gigabytes."""
_SECONDS = 30.0
_MOST_LINES = 50

_SEARCH = """
import mmap, os, shutil, stat

def search(markers, in_each, program, path):
    lines, set_ids = [], 0
    markers = [bytes.fromhex(marker) for marker in markers]
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/dev")]
        if ".git" in folders or ".git" in files or {"objects", "refs"} <= {*folders} and "HEAD" in files:
            lines.append(f"a version history in {folder}")
        for name in files:
            file = os.path.join(folder, name)
            try:
                status = os.lstat(file)
                if not stat.S_ISREG(status.st_mode): continue
                set_ids += bool(status.st_mode & (stat.S_ISUID | stat.S_ISGID))
                if not status.st_size: continue
                with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as content:
                    if content.find(in_each.encode()) < 0: continue
                    if any(content.find(marker) >= 0 for marker in markers):
                        lines.append(f"a hidden test in {file}")
            except (OSError, ValueError):
                continue
    if os.path.exists("/opt/gym/runtime") and os.path.realpath("/opt/gym") != "/opt/gym":
        lines.append("/opt is a link in the image: make it a folder")
    if program and not shutil.which(program, path=path):
        lines.append(f"no program {program} in {path}: install it, or set PATH in the task's variables")
    printable = [line.encode("ascii", "backslashreplace").decode() for line in lines]
    return [printable[:50], set_ids]
"""
_COPIES = """
import importlib.util, os, sys
here = os.getcwd()
inside = lambda path: path == here or path.startswith(here + "/")
sys.path[:] = [path for path in sys.path if not inside(os.path.abspath(path))]
for name in sys.argv[1:]:
    spec = importlib.util.find_spec(name)
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else ()
    if any(not inside(place) for place in places if place):
        print("a second copy of", name)
"""
_ABOUT_PYTHON = (
    "import sys; print(*sys.version_info[:2], flush=True); import pytest; print(pytest.__version__)"
)


@dataclass(frozen=True, slots=True)
class ImageCheck:
    """What was found."""

    faults: tuple[str, ...]
    """What has to change before a task can be served, one sentence each."""
    notes: tuple[str, ...] = ()
    """What is worth knowing."""


async def check_image(
    sandbox: PooledSandbox,
    environment: Environment,
    markers: Sequence[bytes] = (),
    *,
    in_each: str = "assert",
    packages: Sequence[str] = (),
    program: str = "",
) -> ImageCheck:
    """Looks through a sandbox of an environment, in which the base tree may lie. Raises SandboxLost, FileRefused.

    No file may hold one of `markers` and `in_each`, the texts of hidden tests and what is in all of them; none of
    `packages` may be installed a second time; `program` is what the test command starts.
    """
    faults = await _python_faults(sandbox, environment.python) if environment.python else []
    notes: list[str] = []
    path = environment.variables.get("PATH", "/usr/bin:/bin")
    hidden = [marker.hex() for marker in markers if marker]
    await sandbox.write_file("search.py", _SEARCH.encode())
    # Time is limited call by call; a command of an episode takes less.
    sandbox.limits = replace(sandbox.limits, command_timeout_seconds=_SEARCH_SECONDS)
    job = CallFunction("search.py", "search", [[hidden, in_each, program, path]])
    done = await sandbox.run(job, _SEARCH_SECONDS)
    [answer] = parse_answers(done.output, 1, truncated=done.output_truncated)
    match answer.value:
        case [list(lines), int(set_ids)]:
            faults += map(str, lines)
            if set_ids:
                notes.append(
                    f"{set_ids} files with a set-user-ID or set-group-ID bit, which has no effect here"
                )
        case _:
            faults.append(f"the search through the container failed{' in time' if done.timed_out else ''}")
    if packages and not (environment.python and faults):
        await sandbox.write_file("search.py", _COPIES.encode())
        done = await sandbox.run(RunPython(("search.py", *packages)), _SECONDS)
        faults += done.output.decode(errors="replace").splitlines()[:_MOST_LINES]
        if done.exit_status != 0 or done.timed_out:
            faults.append("the search for second copies of its packages failed")
    return ImageCheck(tuple(faults), tuple(notes))


async def _python_faults(sandbox: PooledSandbox, python: str) -> list[str]:
    done = await sandbox.run(Execute((python, "-s", "-c", _ABOUT_PYTHON)), _SECONDS)
    version, _, rest = done.output.decode(errors="replace").partition("\n")
    try:
        major, minor = map(int, version.split())
    except ValueError:
        return [f"the interpreter {python} does not start in the image: {version[:200]!a}"]
    if (major, minor) < OLDEST_PYTHON:
        return [f"the interpreter {python} is Python {major}.{minor}: the oldest that does is 3.8"]
    if done.exit_status != 0:
        reason = (rest.strip().splitlines() or ["it ends without a word"])[-1]
        return [f"the interpreter {python} cannot import pytest ({reason[:200]!a}): install it in the image"]
    return []
