"""Tasks with a test command: from a folder to a proven task, and what is drawn and judged of them."""

import random
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from gym_service import authoring
from gym_service.evaluation.tampering import shown_evidence
from gym_service.grading import command
from gym_service.grading.changes import Refused, changes_of
from gym_service.grading.rounds import Run, grade_rounds, judge
from gym_service.grading.submissions import Completion, Diff, Files, known_submissions, take_submission
from gym_service.grading.value_twins import value_twins
from gym_service.proof import prove
from gym_service.tasks.command import CommandInstance, CommandTask
from gym_service.tasks.environment import Environment
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.ready_commands import READY
from gym_service.tasks.scaffold import read_folder, write_example
from gym_service.tasks.store import load_suite_folder, save_task
from gym_service.toolsets.base import Misuse
from gym_service.toolsets.bash import parse_command
from gym_service.toolsets.coding import Coding
from gym_service.values import Submission, TestCount

NO_GROUNDS = SimpleNamespace(image_digest="sha256:0")
"""For what is refused before anything runs."""


def a_task(**fields):
    """A task with two hidden checks and a public one, that nothing has run."""
    hidden = {"tests/a.t": b"is(f(1), 2)", "tests/b.t": b"is(f(2), 4)"}
    public = {"tests/c.t": b"is(f(0), 0)"}
    return CommandTask(
        **{
            "task_id": "own/f",
            "suite": "own",
            "split": Split.TRAIN,
            "family": "authored",
            "request": "Repair it.",
            "base": {"lib/F.pm": b"0", **public},
            "gold": {"lib/F.pm": b"1"},
            "test_files": {**hidden, **public},
            "fail_to_pass": tuple(hidden),
            "pass_to_pass": tuple(public),
            "twins": {path: tuple(b"is(f(9), %d)" % number for number in range(6)) for path in hidden},
            "test_command": ("perl", "-Ilib", "{file}"),
            "test_names": "*.t",
            "sources": ("lib/**", "*.js"),
        }
        | fields
    )


TASK = a_task()
A, B, C = TASK.test_files


# What a submission may change


@pytest.mark.parametrize("path", ["lib/F.pm", "lib/deep/er/G.pm", "lib/new.txt", "index.js"])
def test_what_the_patterns_name_is_a_source(path):
    assert TASK.is_source(path)


@pytest.mark.parametrize("path", ["F.pm", "src/index.js", "library/F.pm", "lib", "index.jsx", "other"])
def test_nothing_else_is_a_source(path):
    assert not TASK.is_source(path)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("**/*.go", "a.go", True),
        ("**/*.go", "a/b.go", True),
        ("src/*.rs", "src/a/b.rs", False),
        ("a+b.js", "a+b.js", True),
        ("a.js", "abjs", False),
    ],
)
def test_a_star_stays_in_its_folder_and_two_do_not(pattern, path, matches):
    assert a_task(sources=(pattern,)).is_source(path) is matches


@pytest.mark.parametrize(
    "path",
    [
        "tests/a.t", "tests/helper.pm", "lib/more.t", ".proverc", ".perlrc", ".npmrc", "lib/.npmrc", ".env",
        ".cargo/config.toml", ".mocharc.json", "package.json", "lib/package.json", "jest.config.js", "go.mod", "go.sum",
        "go.work", "Cargo.toml", "build.rs", "Makefile", "lib/rules.mk", "Makefile.PL", "cpanfile", "Gemfile.lock",
        "pom.xml", "node_modules/assert/index.js", "lib/node_modules/x.js", "vendor/a/b.go", "local/lib/perl5/x.pm",
        "lib/Test/More.pm", "Test2/API.pm", "TAP/Harness.pm", "sitecustomize.pl", "conftest.py",
    ],
)  # fmt: skip
def test_what_says_how_tests_run_is_protected_whatever_the_patterns_say(path):
    task = a_task(sources=("**",))

    assert not task.is_source(path)
    assert task.is_source("lib/" + "F.pm")
    assert changes_of(task, {path: b"x\n"}, ()) == Submission(ignored=(path,))


@pytest.mark.parametrize("path", [A, "lib/evil_test.go", "tests/TestMain.go"])
def test_no_test_file_is_added_beside_the_sources(path):
    assert not a_task(sources=("**",), test_names="*_test.go").is_source(path)


def test_changed_and_deleted_sources_cross():
    task = a_task(base={**TASK.base, "lib/G.pm": b"2"})

    assert changes_of(task, {"lib/F.pm": b"3"}, ["lib/G.pm"]) == Submission(
        {"lib/F.pm": b"3"}, deleted=("lib/G.pm",)
    )
    with pytest.raises(Refused, match="compiled"):
        changes_of(task, {"lib/F.so": b"3"}, ())


def test_what_is_handed_in_from_outside_is_files_or_a_diff():
    diff = "--- a/lib/F.pm\n+++ b/lib/F.pm\n@@ -1 +1 @@\n-0\n\\ No newline at end of file\n+7\n"
    taken = [take_submission(TASK, content, "s")[1] for content in (Files({"lib/F.pm": b"7\n"}), Diff(diff))]

    assert taken == [Submission({"lib/F.pm": b"7\n"})] * 2
    assert "takes files or a diff" in take_submission(TASK, Completion("7"), "s")[1].refusal


def test_the_known_submissions_are_the_gold_and_nothing():
    assert known_submissions(CommandInstance(TASK)) == (Submission({"lib/F.pm": b"1"}), Submission())


# What runs


def test_the_command_runs_one_file_or_its_folder():
    assert TASK.command_for("tests/deep/x.t") == ("perl", "-Ilib", "tests/deep/x.t")
    assert a_task(test_command=("go", "test", "./{folder}")).command_for("tests/x.t")[2] == "./tests"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("tests/discount.t", r"tests/[a-z]{8}\.t"),
        ("tests/a/discount.test.js", r"tests/a/[a-z]{8}\.test\.js"),
        ("tests/discount_test.go", r"tests/[a-z]{8}_test\.go"),
        ("tests/test_discount.rb", r"tests/test_[a-z]{8}\.rb"),
        ("tests/01-basic.t", r"tests/[a-z]{8}-[a-z]{8}\.t"),
        ("tests/discount", r"tests/[a-z]{8}"),
    ],
)
def test_a_name_is_another_each_time_and_still_that_of_a_test(name, pattern):
    names = {command.random_name(name, random.Random(seed)) for seed in range(20)}

    assert len(names) == 20
    assert all(re.fullmatch(pattern, each) for each in names)


@pytest.mark.parametrize(
    ("hidden", "rounds"), [(1, 20), (2, 10), (3, 8), (4, 6), (5, 4), (9, 4), (10, 2), (40, 2)]
)
def test_there_are_as_many_pairs_of_rounds_as_ten_guesses_take(hidden, rounds):
    paths = tuple(f"tests/{number}.t" for number in range(hidden))
    task = a_task(
        fail_to_pass=paths, test_files=dict.fromkeys(paths, b""), twins=dict.fromkeys(paths, (b"1",) * 12)
    )

    drawn = command.draw_rounds(task, random.Random(0))

    assert len(drawn) == rounds
    turned = Counter(path for each in drawn for path, role in each.roles.items() if role is not None)
    assert turned == dict.fromkeys(paths, rounds // 2)


def test_the_rounds_of_a_pair_are_opposites_and_twins_come_again_only_when_all_have_been():
    drawn = command.draw_rounds(TASK, random.Random(1))

    for first, second in zip(drawn[::2], drawn[1::2], strict=True):
        for path in (A, B):
            assert [first.roles[path], second.roles[path]].count(None) == 1
    for path in (A, B):
        roles = [each.roles[path] for each in drawn if each.roles[path] is not None]
        assert len(roles) == len(set(roles)) == 5
    assert [C in each.roles for each in drawn] == [True] + [False] * 9


def test_which_check_of_a_pair_is_turned_first_is_drawn():
    seen = Counter(command.draw_rounds(TASK, random.Random(seed))[0].roles[A] is None for seed in range(1000))

    assert 400 < seen[True] < 600


# What is judged


def ran(roles, *passed, **fields):
    """A round in which these passed."""
    outcomes = {path: "passed" if path in passed else "failed" for path in roles}
    return Run(
        **{
            "roles": roles,
            "outcomes": outcomes,
            "anomalies": (),
            "complete": True,
            "timed_out": False,
            "out_of_memory": False,
        }
        | fields
    )


ONE, OTHER = {A: None, B: 3, C: None}, {A: 0, B: None}


@pytest.mark.parametrize(
    ("runs", "status", "hidden", "public"),
    [
        # Each passes as it is, and no twin does.
        ([ran(ONE, A, C), ran(OTHER, B)], "RESOLVED", 2, 1),
        # B fails as it is.
        ([ran(ONE, A, C), ran(OTHER)], "UNRESOLVED", 1, 1),
        # Only the public one fails.
        ([ran(ONE, A), ran(OTHER, B)], "UNRESOLVED", 2, 0),
        # Wrong code that is honest may meet a twin; both it never meets.
        ([ran(ONE, B, C), ran(OTHER, A)], "UNRESOLVED", 0, 1),
        # B and its twin both pass.
        ([ran(ONE, A, B, C), ran(OTHER, B)], "TAMPER_SUSPECTED", 2, 1),
        ([ran(ONE, A, B, C), ran(OTHER, A, B)], "TAMPER_SUSPECTED", 2, 1),
        # Right in one pair and wrong in the next.
        ([ran(ONE, A, C), ran(OTHER, B), ran(OTHER, B), ran(ONE)], "UNRESOLVED", 1, 0),
        ([ran(ONE, A, C), ran(OTHER, timed_out=True, complete=False)], "TIMEOUT", 1, 1),
        ([ran(ONE, A, C), ran(OTHER, out_of_memory=True, complete=False)], "OUT_OF_MEMORY", 1, 1),
    ],
)
def test_a_verdict_goes_by_what_passed_as_it_is_and_turned(runs, status, hidden, public):
    verdict = judge(TASK, runs, "sha")

    assert (verdict.status.name, verdict.hidden, verdict.public) == (
        status,
        TestCount(hidden, 2),
        TestCount(public, 1),
    )


async def test_a_hidden_check_that_was_lucky_once_does_not_count_as_passed():
    """All rounds run for who passes a part, and none for who passes nothing."""
    began = []

    def rounds(*runs):
        async def one(run):
            began.append(run)
            return run

        return [partial(one, run) for run in runs]

    lucky = [ran(ONE, A), ran(OTHER), ran(OTHER), ran({A: None, B: 1})]
    verdict = await grade_rounds(TASK, Submission(), rounds(*lucky), counts_parts=True)
    assert (verdict.hidden.passed, len(began)) == (0, 4)

    wrong = [ran(ONE, C), ran(OTHER), *lucky]
    verdict = await grade_rounds(TASK, Submission(), rounds(*wrong), counts_parts=True)
    assert (verdict.hidden.passed, len(began)) == (0, 6)


def test_an_evaluator_reads_how_many_contradict_and_no_name_of_a_hidden_check():
    verdict = judge(TASK, [ran(ONE, A, B, C), ran(OTHER, A, B)], "sha")

    assert shown_evidence(CommandInstance(TASK), Submission(), verdict) == (
        "2 hidden tests pass, and so do their twins, which have to fail",
    )


# Twins by their values


@pytest.mark.parametrize(
    ("line", "others"),
    [
        ("is(f(), 5);\n", {"1", "2", "3", "4", "6", "7", "8", "9"}),
        ("is(f(), 0);\n", {"1", "2", "3", "4"}),
        ("is(f(), 200);\n", {"100", "300", "400", "500", "600", "0"}),
        ("if got != 1.25 {\n", {"1.21", "1.22", "1.23", "1.24", "1.26", "1.27", "1.28", "1.29"}),
        ("assert.equal(f(), 0.1)\n", {"0.0", "0.2", "0.3", "0.4", "0.5"}),
        ("expect(f()).toBe(true);\n", {"false"}),
    ],
)
def test_a_value_becomes_one_near_it_and_as_round(line, others):
    old = {"is(f(), 5);\n": "5"}.get(line) or next(
        each for each in ("200", "1.25", "0.1", "true", "0") if each in line
    )

    assert set(value_twins(line, random.Random(0))) == {line.replace(old, other) for other in others}


def test_of_a_text_one_character_is_another_of_its_kind():
    found = list(value_twins("eq('aB-7')", random.Random(0)))

    assert len(found) == len(set(found)) == 25 + 25 + 9
    assert all(sum(a != b for a, b in zip(each, "eq('aB-7')", strict=True)) == 1 for each in found)
    assert "eq('aB-8')" in found


@pytest.mark.parametrize(
    "line",
    [
        "use 5.010;\n",
        "plan tests => 3;\n",
        "exit 0;\n",
        "use lib 'lib';\n",
        "my $x1 = f($1);\n",
        "assert(x);\n",
    ],
)
def test_a_line_without_a_claim_or_a_value_is_left_alone(line):
    assert list(value_twins(line, random.Random(0))) == []


def test_every_place_has_had_its_turn_before_one_comes_again():
    first = list(value_twins("is(f(), 22);\nmy $y = 3;\nis(g(), 55);\n", random.Random(3)))[:2]

    assert {tuple(value in each for value in ("22)", "55)")) for each in first} == {
        (False, True),
        (True, False),
    }


@pytest.mark.parametrize(
    ("line", "last"),
    [
        ("is(Shop::f([7], 1), 22);\n", ("[7]", "1)")),
        ("is_deeply([f(7)], [(2, 3)]);\n", ("f(7)",)),
        ("expect(f(7)).toBe(22);\n", ("f(7)",)),
        ("if (f(7) != 22) {\n", ("f(7)",)),
        ("assert_eq!(f(7), 22);\n", ("f(7)",)),
        ("assert.equal(f(g(7), 1), 22)\n", ("g(7)", "1)")),
    ],
)
def test_what_goes_in_is_turned_after_all_that_comes_out(line, last):
    """Honest code that passes over an argument passes such a twin, too."""
    turned_inside = [any(value not in each for value in last) for each in value_twins(line, random.Random(0))]

    assert turned_inside == sorted(turned_inside)
    assert {*turned_inside} == {False, True}


# The folder


@pytest.fixture
def folder(tmp_path):
    write_example(tmp_path / "prices", with_command=True)
    return tmp_path / "prices"


def test_the_example_is_read_with_all_its_parts(folder):
    (folder / "twins/first").mkdir(parents=True)
    (folder / "twins/first/discount.t").write_text("x")
    with (folder / "task.toml").open("a") as file:
        file.write('[environment]\nworkspace = "/app"\n[environment.variables]\nPATH = "/opt/bin"\n')

    read = read_folder(folder)

    assert (read.test_command, read.tests, read.sources) == (("perl", "{file}"), "*.t", ("*.pm",))
    assert read.hidden.keys() == {"discount.t"}
    assert read.twins == {"first/discount.t": b"x"}
    assert read.environment == Environment(workspace="/app", variables={"PATH": "/opt/bin"})


@pytest.mark.parametrize(
    ("command", "call", "argv"),
    [
        ('"perl", "{file}"', "perl tests/x.t", ["perl", "tests/x.t"]),
        ('"/opt/bin/raku", "{file}"', "raku tests/x.t", ["/opt/bin/raku", "tests/x.t"]),
        ('"lua", "check", "{file}"', "lua check tests/x.t", ["lua", "check", "tests/x.t"]),
        ('"ruby", "-w", "--yjit", "{file}"', "ruby -w tests/x.t", ["ruby", "-w", "--yjit", "tests/x.t"]),
        ('"node", "--test", "{file}"', "node --test tests/x.js", ["node", "--test", "tests/x.js"]),
    ],
)
def test_a_policy_may_call_the_test_command_with_one_file(folder, command, call, argv):
    text = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(text.replace('"perl", "{file}"', command))

    allowed = parse_command(call, read_folder(folder).environment.commands)

    assert [word for word in argv if word in allowed.job.argv] == argv
    assert allowed.files == (argv[-1],)
    with pytest.raises(Misuse):
        parse_command(call.replace("tests/", "../"), read_folder(folder).environment.commands)


@pytest.mark.parametrize(
    "command", ['"sh", "{file}"', '"go", "test", "./{folder}"', '"{file}"', '"perl", "-e{file}"']
)
def test_what_no_task_may_allow_is_not_allowed_for_running_tests(folder, command):
    text = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(text.replace('"perl", "{file}"', command))

    assert read_folder(folder).environment.commands == ()


def test_a_command_that_the_author_describes_goes_before_the_test_command(folder):
    with (folder / "task.toml").open("a") as file:
        file.write('[commands.perl]\nprogram = "perl"\nflags = ["-w"]\n[commands.head]\n')

    commands = read_folder(folder).environment.commands

    assert [each.name for each in commands] == ["perl", "head"]
    assert commands[0].flags == ("-w",)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"{file}"', '"file"', "test_command has no {file}"),
        ('["perl", "{file}"]', '"perl {file}"', "test_command in task.toml is a list of texts"),
        ('["perl", "{file}"]', "[]", "go with a test_command"),
        ('tests = "*.t"', "", "task.toml has tests and sources"),
        ('sources = ["*.pm"]', "", "task.toml has tests and sources"),
        ('sources = ["*.pm"]', 'sources = ["*.pm"]\n[environment]\nimage = "perl:5"', "named by its digest"),
        (
            'sources = ["*.pm"]',
            'sources = ["*.pm"]\n[environment]\npyton = "x"',
            "has pyton; there is dockerfile, image, python",
        ),
        ('sources = ["*.pm"]', 'sources = ["*.pm"]\n[environment]\nvariables = 5', "are texts"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_with_what_to_write(folder, old, new, reason):
    text = (folder / "task.toml").read_text()
    assert old in text
    (folder / "task.toml").write_text(text.replace(old, new))

    with pytest.raises(ImportRefused, match=reason):
        read_folder(folder)


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("gold/tests/total.t", "x", "gold/tests/total.t is none of the sources"),
        ("gold/.proverc", "x", "is none of the sources"),
        ("hidden/data.txt", "x", "hidden/data.txt is no \\*.t"),
        ("hidden/total.t", "x", "tests/total.t is there twice"),
        ("hidden/a b.t", "x", "is no test file"),
        ("hidden/\u00e9.t", "x", "is no test file"),
        ("twins/1/total.t", "x", "twins/1/total.t is no twin of a hidden test"),
        ("twins/discount.t", "x", "twins/discount.t is no twin of a hidden test"),
        ("twins/1/discount.t", "x", "more than one line, or in none"),
    ],
)
async def test_a_file_that_does_not_belong_there_is_refused(folder, path, text, reason):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)

    with pytest.raises(ImportRefused, match=reason):
        await authoring.make_task(read_folder(folder), NO_GROUNDS)


@pytest.mark.parametrize("dockerfile", ["../Dockerfile", "/etc/Dockerfile", "there/Dockerfile"])
def test_a_dockerfile_outside_of_the_folder_is_refused(folder, dockerfile):
    (folder / "there").symlink_to("/etc")
    with (folder / "task.toml").open("a") as file:
        file.write(f'[environment]\ndockerfile = "{dockerfile}"\n')

    with pytest.raises(ImportRefused, match="lies outside of the task's folder"):
        read_folder(folder)


async def test_a_dockerfile_that_nobody_built_is_not_passed_over(folder):
    with (folder / "task.toml").open("a") as file:
        file.write('[environment]\ndockerfile = "environment/Dockerfile"\n')

    read = read_folder(folder)

    assert read.dockerfile == "environment/Dockerfile"
    with pytest.raises(ImportRefused, match="is not built"):
        await authoring.make_task(read, NO_GROUNDS)


def test_a_task_is_stored_and_read_as_it_was(tmp_path):
    task = a_task(
        environment=Environment("sha256:" + "0" * 64, variables={"A": "b"}, commands=(READY["perl"],))
    )
    save_task(tmp_path / "own", task)

    assert load_suite_folder(tmp_path / "own") == (task,)
    assert load_suite_folder(tmp_path / "own")[0].environment.commands == (READY["perl"],)
    assert load_suite_folder(tmp_path / "own")[0].sha256 == task.sha256


@pytest.mark.parametrize(
    "change",
    [
        {"sources": ("lib/*",)},
        {"test_command": ("perl", "{file}")},
        {"twins": {**TASK.twins, A: (b"is(f(1), 3)",)}},
        {"test_files": {**TASK.test_files, A: b"is(f(1), 3)"}},
    ],
)
def test_whatever_decides_is_in_the_hash(change):
    assert replace(TASK, **change).sha256 != TASK.sha256


def test_an_episode_has_the_turns_of_a_repository():
    assert Coding().turns_for(TASK) == 40


# Over the engine


async def made(folder, grounds):
    """The task of a folder."""
    return await authoring.make_task(read_folder(folder), grounds)


@pytest.mark.docker
async def test_the_example_is_proven_and_graded(folder, grounds):
    task = await made(folder, grounds)

    assert (task.fail_to_pass, task.pass_to_pass) == (("tests/discount.t",), ("tests/total.t",))
    assert len(task.twins["tests/discount.t"]) == 12
    assert (await prove(task, grounds)).faults == ()


@pytest.mark.docker
async def test_a_proof_names_what_does_not_hold(folder, grounds):
    task = await made(folder, grounds)
    path = "tests/discount.t"
    check = task.test_files[path]
    passing = check.replace(b"a tenth less", b"a tenth off")
    no_program = check.replace(b"use Prices;", b"use Prizes;")

    task = replace(task, twins={path: (passing, no_program)}, base={**task.base, path: check})

    faults = (await prove(task, grounds)).faults

    assert {
        "the gold patch does not pass: the tests were not run as they are",
        f"a twin of {path} does not fail with the gold by what the sources do",
        "there are fewer than 10 twins of hidden checks",
        f"a hidden test in /workspace/{path}",
    } <= set(faults)


USE = "use lib '.'; use Prices;\n"
SILENT = USE + "Prices::total([200], 10) == 180 or exit 1;\n"
WITHOUT_VALUES = USE + "exit(Prices::total([200], 10) - 180 and 1);\n"


@pytest.mark.docker
@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("gold/Prices.pm", "package Prices; 1;\n", "does not pass with gold/: its exit status is 255"),
        ("public/more.t", "exit 1;\n", "tests/more.t does not pass with gold/: its exit status is 1$"),
        ("public/more.t", "exit 127;\n", "there is no such program in the image"),
        ("public/more.t", "kill 9, $$;\n", "it is killed by the signal 9"),
        ("hidden/more.t", "exit 0;\n", "tests/more.t passes at the start"),
        (
            "public/more.t",
            USE + "exit(Prices::total([200], 10) != 180);\n",
            "tests/more.t fails at the start",
        ),
        ("hidden/discount.t", WITHOUT_VALUES, "tests/discount.t has no twin: write claims"),
        ("hidden/discount.t", SILENT, "there are . twins of hidden tests, and 10 are needed: write claims"),
    ],
)
async def test_a_folder_that_does_not_hold_is_refused_with_what_to_change(
    folder, grounds, path, text, reason
):
    (folder / path).write_text(text)

    with pytest.raises(ImportRefused, match=reason):
        await made(folder, grounds)


@pytest.mark.docker
async def test_a_program_that_the_image_lacks_is_named_so(folder, grounds):
    text = (folder / "task.toml").read_text()
    (folder / "task.toml").write_text(text.replace('"perl"', '"pearl"'))

    with pytest.raises(ImportRefused, match="its exit status is 127: there is no such program") as refusal:
        await made(folder, grounds)
    assert "pearl" in str(refusal.value)


@pytest.mark.docker
async def test_twins_of_the_author_count_and_one_that_passes_or_is_no_program_is_refused(folder, grounds):
    check = (folder / "hidden/discount.t").read_text()
    (folder / "twins/mine").mkdir(parents=True)
    twin = check.replace("50), 20", "50), 40")
    (folder / "twins/mine/discount.t").write_text(twin)
    assert twin.encode() in (await made(folder, grounds)).twins["tests/discount.t"]

    for other in (check.replace("a tenth less", "less"), check.replace("use Prices;", "use Prices")):
        (folder / "twins/mine/discount.t").write_text(other)
        with pytest.raises(ImportRefused, match="1 of the twins of tests/discount"):
            await made(folder, grounds)
