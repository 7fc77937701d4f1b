"""Images of somebody else's: the warden needs nothing of them and changes nothing in them; what does not do is told."""

import ast
import asyncio
import hashlib
import tarfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gym_service.grading.image_check import check_image
from gym_service.proof import prove
from gym_service.sandbox.base import (
    EnvironmentRefused,
    Execute,
    RunChecks,
    RunPytest,
    RunPython,
    RunTests,
    SandboxLost,
)
from gym_service.sandbox.surroundings import Surroundings
from gym_service.tasks.environment import Environment
from gym_service.tasks.suites import Catalogue
from gym_service.toolsets.calls import write_calls
from gym_service.values import ToolCall
from sandbox_images import own
from tests.bench.oracle import edit_of
from tests.conftest import DOCKER_LIMITS, gym_over
from tests.own_images import PYTHON, build, client, hostile, one_program, with_python, without_python

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]

UID = 2_050_000_001


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("GYM_STATE_DIR", str(tmp_path / "state"))


@asynccontextmanager
async def sandbox_of(engine, image, **more):
    sandbox = await engine.within(Environment(image, "/testbed", **more)).start()
    sandbox.uid = UID
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def python(sandbox, source):
    await sandbox.write_file("a.py", source.encode())
    return (await sandbox.run(RunPython(("a.py",)), 10)).output.decode()


# What the warden needs of an image


@pytest.mark.parametrize("image", [one_program, without_python, hostile])
async def test_the_warden_serves_on_any_image_and_loads_nothing_of_it(engine, image):
    async with sandbox_of(engine, image()) as sandbox:
        seen = await python(
            sandbox,
            "import os, sys, ssl, hashlib, pytest, locale\n"
            "hashlib.new('sha512'), locale.setlocale(locale.LC_ALL, '')\n"
            "files = {line.split()[-1] for line in open('/proc/self/maps') if '/' in line}\n"
            "print(sorted(each for each in files if not each.startswith('/opt/gym/')))\n"
            "print([path for path in sys.path if not path.startswith(('/opt/gym/', '/testbed'))])\n"
            "print(sorted(os.environ), 'sitecustomize' in sys.modules, os.getcwd())\n",
        )
        await sandbox.write_file("test_a.py", b"def test_a():\n    assert 1 + 1 == 3\n")
        tested = await sandbox.run(RunPytest(("-q",)), 20)

        variables = ["HOME", "LANG", "PATH", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTHONDONTWRITEBYTECODE"]
        assert seen.splitlines() == [
            "[]", "[]", f"{[*variables, 'PYTHONHASHSEED', 'USER']} False /testbed"
        ]  # fmt: skip
        assert b"assert (1 + 1) == 3" in tested.output
        assert await sandbox.scrub() == ""


async def test_what_is_hostile_in_the_image_gets_into_its_own_programs_alone(engine):
    """So that the test above is about something."""
    async with sandbox_of(engine, hostile()) as sandbox:
        done = await sandbox.run(Execute(("/bin/cat", "/proc/self/maps")), 5)

    assert b"libpcre2-8" in done.output


async def test_a_python_that_is_started_again_is_the_warden_s_own(engine):
    async with sandbox_of(engine, one_program()) as sandbox:
        seen = await python(
            sandbox, "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(6 * 7)'])"
        )

    assert seen == "42\n"


@pytest.mark.parametrize("workspace", ["/srv/app", "/root"])
async def test_every_wall_holds_on_an_image_of_one_program(engine, workspace):
    surroundings = Surroundings(engine)
    environment = Environment(one_program(), workspace)
    assert surroundings.isolation_of(environment) is None

    await surroundings.open(environment)

    measured = surroundings.isolation_of(environment)
    assert measured.image_digest == surroundings.image_of(environment) != engine.facts.image_digest
    assert measured.observed["seccomp_mode"] == "2"
    assert surroundings.isolation_of(replace(environment, variables={"A": "1"})) == measured


async def test_an_image_that_is_removed_while_it_serves_is_made_and_tried_anew(engine, tmp_path):
    environment = Environment(build(f"FROM BASE\nRUN echo {tmp_path} > /unique\n"), "/srv/app")
    surroundings = Surroundings(engine)
    await (await (await surroundings.open(environment))()).close()
    removed = surroundings.image_of(environment)
    client().images.remove(own.reference(environment.image), force=True, noprune=True)

    with pytest.raises(SandboxLost, match="No such image"):
        await (await surroundings.open(environment))()

    await (await (await surroundings.open(environment))()).close()
    made = surroundings.image_of(environment)
    assert made == surroundings.isolation_of(environment).image_digest != removed


async def test_an_engine_that_fails_while_an_image_is_tried_is_not_the_image_s_fault(engine, monkeypatch):
    async def away(*_):
        raise SandboxLost("no engine answers")

    monkeypatch.setattr("gym_service.sandbox.docker.DockerEngine.start", away)
    surroundings = Surroundings(engine)

    with pytest.raises(SandboxLost) as lost:
        await surroundings.open(Environment(without_python(), "/srv/app"))

    assert not isinstance(lost.value, EnvironmentRefused)


async def test_two_that_put_the_warden_on_top_of_an_image_at_once_both_can(tmp_path):
    image = build(f"FROM BASE\nRUN echo {tmp_path} > /unique\n")

    made = await asyncio.gather(*(asyncio.to_thread(own.derive, client(), image) for _ in range(3)))

    assert own.find(client(), image) in made


# What becomes of the image


def _files_of(image):
    """The hash of each file of an image, and what else lies in it."""
    container = client().api.create_container(image, command=["none"])["Id"]
    try:
        with tarfile.open(fileobj=_Stream(client().api.export(container)), mode="r|") as archive:
            return {
                entry.name: (
                    *(entry.mode, entry.uid, entry.gid, entry.linkname),
                    hashlib.sha256(archive.extractfile(entry).read()).hexdigest() if entry.isfile() else "",
                )
                for entry in archive
            }
    finally:
        client().api.remove_container(container)


class _Stream:
    def __init__(self, chunks):
        self._chunks, self._left = chunks, b""

    def read(self, size):
        while len(self._left) < size and (chunk := next(self._chunks, b"")):
            self._left += chunk
        data, self._left = self._left[:size], self._left[size:]
        return data


def test_no_file_of_the_image_is_touched():
    image = without_python()
    derived = own.derive(client(), image)

    before, after = _files_of(image), _files_of(derived)
    layers = [client().images.get(each).attrs["RootFS"]["Layers"] for each in (image, derived)]

    assert {name: what for name, what in after.items() if not name.startswith("opt/gym")} == before
    assert layers[1][:-1] == layers[0]


def test_an_image_is_made_once():
    image = one_program()

    assert own.derive(client(), image) == own.derive(client(), image) == own.find(client(), image)


# What is refused


REFUSED = {
    "volumes": ("VOLUME /data\n", r"declares volumes \(/data\).*take VOLUME out"),
    "triggers": ("ONBUILD RUN touch /x\n", "take ONBUILD out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_image_may_not_say_is_refused_with_what_to_change(engine, case):
    line, message = REFUSED[case]

    with pytest.raises(EnvironmentRefused, match=message):
        engine.within(Environment(build(f"FROM BASE\n{line}")))


@pytest.mark.parametrize(
    ("image", "message"),
    [("sha256:" + "0" * 64, "there is no image .* on this engine"), ("debian:bookworm", "is no digest")],
)
def test_an_image_that_is_not_there_is_refused(engine, image, message):
    with pytest.raises(EnvironmentRefused, match=message):
        engine.within(Environment(image))


def test_an_image_with_the_warden_in_it_is_refused(engine):
    with pytest.raises(EnvironmentRefused, match="name the image that it was put on top of"):
        engine.within(Environment(engine.facts.image_digest))


@pytest.mark.parametrize(
    "workspace",
    ["/", "/opt", "/opt/gym/x", "/proc/x", "/dev/shm", "/tmp", "app", "/a/../b", "/a b", "/a,b", ""],
)
def test_a_workspace_that_is_the_sandbox_s_own_is_refused(engine, workspace):
    with pytest.raises(EnvironmentRefused, match="workspace"):
        engine.within(Environment(workspace=workspace))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("RUN ln -s /srv /testbed", "/testbed is a link to /srv: name that"),
        ("RUN mkdir -m 700 /closed", "above the workspace /closed/app is closed"),
    ],
)
async def test_a_workspace_that_nobody_can_enter_is_named(engine, make, message):
    workspace = "/closed/app" if "closed" in make else "/testbed"
    inside = engine.within(Environment(build(f"FROM BASE\n{make}\n"), workspace))

    with pytest.raises(SandboxLost, match=message):
        await inside.start()


def test_a_dockerfile_that_fails_is_told_with_its_log(tmp_path):
    with pytest.raises(
        own.ImageRefused, match=r"cannot be built: .*returned a non-zero code: 3; see "
    ) as error:
        build("FROM BASE\nRUN echo so far; exit 3\n")

    assert "so far" in Path(str(error.value).rpartition("see ")[2]).read_text()
    with pytest.raises(own.ImageRefused, match="Dockerfile is missing"):
        own.build_image(client(), tmp_path)


# What is found in an image


async def faults_of(engine, image, markers=(b"assert f(2) == 4",), **more):
    environment = {key: more.pop(key) for key in ("python", "variables") if key in more}
    async with sandbox_of(engine, image, **environment) as sandbox:
        return await check_image(sandbox, Environment(image, "/testbed", **environment), markers, **more)


async def test_an_image_that_does_has_no_faults(engine):
    found = await faults_of(engine, with_python(), python=PYTHON, program="perl", packages=["ledger"])

    assert found.faults == ()


async def test_what_nobody_may_read_is_found_wherever_it_lies(engine):
    image = build(
        "FROM BASE\n"
        "RUN mkdir -p /srv/x/.git /srv/bare.git/objects /srv/bare.git/refs /testbed && touch /srv/bare.git/HEAD\n"
        "COPY hidden /srv/x/notes.txt\nCOPY hidden /testbed/out_of_sight.py\n"
        "RUN touch /srv/program && chmod 4755 /srv/program\n",
        hidden="def test_f():\n    assert f(2) == 4\n",
    )

    found = await faults_of(engine, image)

    assert set(found.faults) == {
        "a version history in /srv/x",
        "a version history in /srv/bare.git",
        "a hidden test in /srv/x/notes.txt",
    }
    (note,) = found.notes
    assert "files with a set-user-ID or set-group-ID bit, which has no effect here" in note


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"python": "/usr/bin/python3"}, "the interpreter /usr/bin/python3 does not start in the image"),
        (
            {"program": "node"},
            "no program node in /usr/bin:/bin: install it, or set PATH in the task's variables",
        ),
        ({"program": "perl", "variables": {"PATH": "/nowhere"}}, "no program perl in /nowhere"),
    ],
)
async def test_what_a_task_needs_and_the_image_lacks_is_named(engine, more, fault):
    (found,) = (await faults_of(engine, without_python(), **more)).faults

    assert found.startswith(fault)


async def test_an_interpreter_without_pytest_is_named(engine):
    image = with_python("RUN rm -r /usr/lib/python3/dist-packages/pytest\n")

    (fault,) = (await faults_of(engine, image, python=PYTHON)).faults

    assert fault.startswith(f"the interpreter {PYTHON} cannot import pytest")


# What runs in an image


async def test_a_program_is_found_on_the_path_of_the_task(engine):
    async with sandbox_of(
        engine, without_python(), variables={"PATH": "/sbin:/bin", "COLOR": "red"}
    ) as sandbox:
        found = await sandbox.run(Execute(("ldconfig", "--version")), 5)
        seen = await sandbox.run(Execute(("sh", "-c", "echo $COLOR $HOME; yes | head -1; echo $?")), 5)
        missing = await sandbox.run(Execute(("python3", "-V")), 5)
        closed = await sandbox.run(Execute(("/etc/passwd",)), 5)

    assert b"ldconfig" in found.output
    assert seen.output == b"red /testbed\ny\n0\n"
    assert (missing.exit_status, closed.exit_status) == (127, 126)
    assert missing.output == b"python3: No such file or directory\n"


async def test_a_pipe_that_nobody_reads_ends_its_writer_as_in_any_shell(engine):
    async with sandbox_of(engine, without_python()) as sandbox:
        done = await sandbox.run(Execute(("bash", "-c", "yes | true; echo ${PIPESTATUS[0]}")), 5)

    assert done.output == b"141\n"


async def test_the_image_s_interpreter_runs_files_and_tests(engine):
    async with sandbox_of(engine, with_python(), python=PYTHON) as sandbox:
        seen = await python(sandbox, "import only_here, sys; print(only_here.PLACE, sys.executable)")
        await sandbox.write_file(
            "test_a.py",
            b"import only_here, sys\ndef test_a():\n    assert sys.executable == 0\ndef test_b(): pass\n",
        )
        shown = await sandbox.run(RunPytest(("-q",)), 20)
        with_pytest = await sandbox.run(RunTests(("test_a.py",), ("",)), 20)
        without = await sandbox.run(RunChecks(("test_a.py::test_b",), ("",)), 20)
        assert await sandbox.scrub() == ""

    assert seen == f"/opt/venv/lib/python3.11/site-packages/only_here.py {PYTHON}\n"
    assert f"'{PYTHON}' == 0".encode() in shown.output
    assert b"1 failed, 1 passed in 0.00s" in shown.output
    assert with_pytest.output.decode().splitlines() == [
        '{"id": "test_a.py::test_a", "outcome": "failed"}',
        '{"id": "test_a.py::test_b", "outcome": "passed"}',
        '{"end": 1}',
    ]
    assert without.output == b'{"id": "test_a.py::test_b", "outcome": "passed"}\n{"end": 0}\n'


async def test_a_run_without_pytest_has_none_in_the_image_s_interpreter_either(engine):
    check = b"import sys\ndef test_a():\n    assert not [each for each in sys.modules if 'pytest' in each]\n"
    async with sandbox_of(engine, with_python(), python=PYTHON) as sandbox:
        await sandbox.write_file("test_a.py", check)
        done = await sandbox.run(RunChecks(("test_a.py::test_a",), ("",)), 20)

    assert b'"passed"' in done.output


def test_what_runs_in_the_image_s_interpreter_keeps_to_old_python(tmp_path):
    """By its syntax, which is what keeps a file from being read at all."""
    folder = Path(own.__file__).parent / "warden"
    for name in ("__init__", "in_image", "by_name", "graded", "pytest_records"):
        source = (folder / f"{name}.py").read_text()
        ast.parse(source, feature_version=(3, 8))
        assert not {"removesuffix", "removeprefix"} & set(source.replace("(", ".").split("."))
        assert name == "__init__" or "from __future__ import annotations" in source


# From task to verdict


@pytest.fixture(scope="module")
def task(ledger_tasks):
    """A repository task in an image of its own, with its own interpreter."""
    task = next(task for task in ledger_tasks if "ledger/money.py" in task.gold)
    return replace(task, environment=Environment(with_python(), "/testbed", PYTHON))


async def test_a_task_in_an_image_of_its_own_is_proven(grounds, task):
    assert (await prove(task, grounds)).faults == ()


async def test_a_proof_names_a_hidden_test_of_the_image(grounds, task):
    path = task.fail_to_pass[0].partition("::")[0]
    image = build(
        "FROM GYM AS gym\nFROM BASE\nCOPY --from=gym /usr/ /usr/\nCOPY hidden /srv/hidden.py\n",
        hidden=task.test_files[path].decode(),
    )

    proof = await prove(
        replace(task, environment=Environment(image, "/testbed", "/usr/bin/python3")), grounds
    )

    assert proof.faults == ("a hidden test in /srv/hidden.py",)


async def test_a_proof_names_an_image_that_is_not_there(grounds, task):
    (fault,) = (await prove(replace(task, environment=Environment("sha256:" + "0" * 64)), grounds)).faults

    assert "there is no image" in fault


async def test_an_episode_is_played_and_graded_in_the_image_of_its_task(engine, task, ledger_tasks, tmp_path):
    plain = next(each for each in ledger_tasks if each.task_id != task.task_id)
    catalogue = Catalogue({"ledger": [task, plain]})
    path = "ledger/money.py"
    old, new = edit_of(task.base[path].decode(), task.gold[path].decode())
    surroundings = Surroundings(engine)
    async with gym_over(
        engine.start, tmp_path, catalogue, limits=DOCKER_LIMITS, elsewhere=surroundings
    ) as gym:

        async def call(turn, tool, **arguments):
            step = await gym.step(episode.episode_id, turn, write_calls([ToolCall(tool, arguments)]))
            return step.observation.tool_results[0]

        episode = await gym.create(task_id=task.task_id, toolset="coding")
        assert "/testbed" in episode.messages[0].content
        assert "/workspace" not in episode.messages[0].content
        read = await call(0, "Read", file_path=f"/testbed/{path}")
        edited = await call(1, "Edit", file_path=path, old_string=old, new_string=new)
        await call(2, "Write", file_path="probe.py", content="import only_here; print(only_here.PLACE)")
        ran = await call(3, "Bash", command="python /testbed/probe.py")
        tested = await call(4, "Bash", command="pytest -q tests/test_money.py")
        listed = await call(5, "Bash", command="ls /testbed/ledger")
        outside = await call(6, "Read", file_path="/workspace/x")
        await gym.end(episode.episode_id)
        verdict = (await gym.grade(episode.episode_id)).verdict

        other = await gym.create("r2", plain.task_id, "coding")
        await gym.end(other.episode_id)
        at_home = (await gym.grade(other.episode_id)).verdict
        pool = (await gym.info()).pool

    assert "def split" in read.text
    assert edited.text == f"edited {path}"
    assert ran.text == "/opt/venv/lib/python3.11/site-packages/only_here.py\n"
    assert "passed" in tested.text
    assert "money.py" in listed.text
    assert "outside /testbed" in outside.text
    assert verdict.status == 1, verdict.reason
    image = own.find(client(), task.environment.image)
    assert image == verdict.image_digest == verdict.isolation.image_digest
    assert at_home.isolation.image_digest != image
    assert pool.retired["own_image"] >= 1


@pytest.mark.parametrize(
    "place",
    ["/opt/gym/runtime/lib/python3.11/sitecustomize.py", "/opt/gym/nopreload", "/srv/gym/nocache"],
    ids=["module", "preload", "behind_a_link"],
)
async def test_an_image_with_anything_where_the_gym_is_put_is_refused(engine, place):
    """The warden would load it as its own: a module or a library of a stranger's, in PID 1."""
    image = build(
        f"FROM BASE\nCOPY evil {place}\nRUN [ -e /opt/gym ] || {{ rm -rf /opt; ln -s /srv /opt; }}\n",
        evil="x",
    )

    with pytest.raises(EnvironmentRefused, match="has something in /opt/gym, where the gym is put: move it"):
        engine.within(Environment(image))


def test_what_is_no_dockerfile_is_told(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM scratch\nNONSENSE\n")

    with pytest.raises(own.ImageRefused, match=r"cannot be built: .*NONSENSE"):
        own.build_image(client(), tmp_path)
