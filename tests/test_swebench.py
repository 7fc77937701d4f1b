"""Rows of SWE-bench: read, made into drafts, and proven or refused by what their tests do in sandboxes."""

import gzip
import json

import docker
import pytest

from gym_service.proof import ProofBook
from gym_service.state import StateFolder
from gym_service.swebench_authoring import Place, draft_task
from gym_service.tasks.environment import Environment
from gym_service.tasks.importing import ImportRefused
from gym_service.tasks.model import Split
from gym_service.tasks.store import known_suites, load_suite_folder, save_task
from gym_service.tasks.swebench import read_rows
from sandbox_images.build import image_reference
from tests.imported import tasks_import
from tests.repositories import FILE, FILES, PATCH, ROW, TEST_PATCH, git, make_clone

PLACE = Place("shop", Split.TEST, "rows.jsonl sha256:0")
TREE = {path: text.encode() for path, text in FILES.items()}
FULL = ROW | {"base_commit": "0" * 40}


@pytest.fixture
def read(tmp_path):
    def read(*rows, name="rows.jsonl", text=None):
        path = tmp_path / name
        text = "\n".join(map(json.dumps, rows)) if text is None else text
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return read_rows(path)

    return read


@pytest.fixture
def draft(read):
    def draft(tree=TREE, **changes):
        return draft_task(read(FULL | changes).rows[0], tree, Environment(), PLACE)

    return draft


def diff(path, before, after):
    """A diff that replaces a line of a file by another."""
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-{before}\n+{after}\n"


# Reading


def test_a_row_is_read_with_lists_as_they_are_and_as_text(read):
    as_text = FULL | {name: json.dumps(FULL[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")}

    [row] = read(FULL).rows

    assert (row.name, row.repo, row.number, row.image) == ("acme__shop-1", "acme/shop", 1, "")
    assert row.fail_to_pass == tuple(ROW["FAIL_TO_PASS"])
    assert read(as_text).rows == (row,)


def test_a_list_and_a_packed_file_are_read_like_lines(read):
    rows = read(FULL).rows

    assert read(name="rows.json", text=json.dumps([FULL], indent=1)).rows == rows
    assert read(FULL, name="rows.jsonl.gz").rows == rows


@pytest.mark.parametrize("name", ["image", "image_name", "docker_image"])
def test_an_image_has_several_names(read, name):
    assert read(FULL | {name: "shop:1"}).rows[0].image == "shop:1"


def test_images_by_id_come_from_a_file_of_their_own(tmp_path, read):
    read(FULL)
    (tmp_path / "images.json").write_text(json.dumps({"acme__shop-1": "shop:2"}))

    assert read_rows(tmp_path / "rows.jsonl", tmp_path / "images.json").rows[0].image == "shop:2"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"instance_id": ""}, "row 2: it has no instance_id"),
        ({"instance_id": "x" * 101}, "row 2: its instance_id has more than 100 characters"),
        ({"patch": ""}, "row 2, other: it has no patch"),
        ({"repo": None}, "row 2, other: it has no repo"),
        ({"FAIL_TO_PASS": []}, "row 2, other: FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "tests.py::test_a"}, "FAIL_TO_PASS is a text, and no list in JSON"),
        ({"PASS_TO_PASS": [1]}, "it has no PASS_TO_PASS"),
        ({"PASS_TO_PASS": ["test_b (shop.tests.Case)"]}, "which is how Django's runner names a test"),
        ({"PASS_TO_PASS": ["test_b"]}, "tests are named like"),
        ({"PASS_TO_PASS": ["tests/test_a.py::test_b[1"]}, "tests are named like"),
        ({"PASS_TO_PASS": ROW["FAIL_TO_PASS"]}, "is in FAIL_TO_PASS and in PASS_TO_PASS"),
        ({"image": 3}, "its image is no text"),
        ({"problem_statement": "\ud800"}, "surrogates not allowed"),
        ({"instance_id": "acme__shop-1"}, "row 2, acme__shop-1: it was there before"),
    ],
)
def test_a_row_that_is_none_is_refused_with_number_and_reason_and_the_others_kept(read, change, reason):
    found = read(FULL, FULL | {"instance_id": "other"} | change)

    assert len(found.rows) == 1
    assert reason in found.refused[0]


def test_lines_that_are_no_objects_are_refused_by_their_number(read):
    found = read(text=f"{json.dumps(FULL)}\n\n[\n3\n")

    assert [line.partition(":")[0] for line in found.refused] == ["row 3", "row 4"]


@pytest.mark.parametrize("text", ["", "{}", "[{}", "[]", "x"])
def test_a_file_without_a_row_is_refused(read, text):
    with pytest.raises(ImportRefused):
        read(text=text)


# The draft


def test_an_episode_starts_from_the_commit_without_the_hidden_tests(draft):
    task = draft()

    assert task.base.keys() == FILES.keys() - {"tests/test_old.py"}
    assert b"def test_a_discount" not in task.base[FILE]
    assert b"def test_nothing_costs_nothing" in task.base[FILE]
    assert task.base["shop/prices.py"] == TREE["shop/prices.py"]


def test_graded_is_with_the_tests_and_the_data_of_the_test_patch(draft):
    task = draft()

    assert b"assert total([200], 10) == 180" in task.test_files[FILE]
    assert task.test_data == {"tests/data/expected.txt": b"20\n"}
    assert "tests/test_old.py" not in task.test_files
    assert task.fail_to_pass == tuple(ROW["FAIL_TO_PASS"])


def test_the_gold_is_what_the_patch_changes_of_the_sources(draft):
    task = draft()

    assert task.gold.keys() == {"shop/prices.py"}
    assert b"* (100 - discount_percent)" in task.gold["shop/prices.py"]
    assert not task.is_source("tests/data/expected.txt")
    assert not task.is_source("conftest.py")


def test_a_policy_reads_the_issue_and_what_is_graded(draft):
    request = draft().request

    assert request.startswith(ROW["problem_statement"])
    assert f"`pytest {FILE}`" in request
    assert "Only what changes in shop is graded" in request


@pytest.mark.parametrize("root", ["src", "lib"])
def test_packages_below_a_folder_are_imported_from_there(draft, root):
    tree = {path.replace("shop/", f"{root}/shop/"): content for path, content in TREE.items()}
    task = draft(tree, patch=PATCH.replace("/shop/", f"/{root}/shop/"))

    assert task.roots == (root,)
    assert task.gold.keys() == {f"{root}/shop/prices.py"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"patch": "a word"}, "its patch: it holds no change of a file"),
        ({"patch": diff("shop/prices.py", "x", "y")}, "its patch: line 3: the hunk does not match"),
        ({"patch": diff("shop/none.py", "x", "y")}, "there is no file 'shop/none.py'"),
        ({"patch": diff("README.md", "A shop.", "y")}, "its patch changes no source, but README.md"),
        ({"patch": diff("tests/test_old.py", "def test_old():", "def test_new():")}, "changes no source"),
        ({"patch": PATCH + "GIT binary patch\nliteral 3\n"}, "'GIT binary patch' is not taken"),
        ({"patch": f"{PATCH}similarity index 100%\n"}, "is not taken"),
        ({"patch": "--- a/shop/__init__.py\n+++ b/shop/other.py\n@@ -0,0 +1 @@\n+x\n"}, "is renamed"),
        (
            {"patch": "new file mode 120000\n--- /dev/null\n+++ b/shop/x.py\n@@ -0,0 +1 @@\n+/etc\n"},
            "not taken",
        ),
        ({"patch": PATCH + "--- a/tests/test_old.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n"}, "not match"),
        (
            {"test_patch": "rename from tests/test_old.py\nrename to tests/test_new.py\n"},
            "its test_patch: line 1",
        ),
        ({"FAIL_TO_PASS": ["tests/test_none.py::test_a"]}, "there is no file: tests/test_none.py"),
        ({"PASS_TO_PASS": ["tests/test_old.py::test_old"]}, "there is no file: tests/test_old.py"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_before_anything_runs(draft, change, reason):
    with pytest.raises(ImportRefused, match=reason):
        draft(**change)


@pytest.mark.parametrize(
    "path", ["../x.py", "/etc/x.py", "shop/../../x.py", ".git/hooks/post-checkout", "./x.py", "shop//x.py"]
)
@pytest.mark.parametrize("field", ["patch", "test_patch"])
def test_a_diff_that_writes_elsewhere_is_refused(draft, field, path):
    new = f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x = 1\n"

    with pytest.raises(ImportRefused, match=r"no plain path|is in no base tree"):
        draft(**{field: new + FULL[field]})


def test_a_patch_that_deletes_a_source_is_refused(draft):
    tree = TREE | {"shop/old.py": b"x\n"}

    with pytest.raises(ImportRefused, match=r"its patch deletes shop/old\.py"):
        draft(tree, patch=PATCH + "--- a/shop/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n")


def test_hidden_tests_that_others_use_are_refused(draft):
    tests = FILES[FILE] + "\n\ndef test_uses():\n    test_a_discount()\n"

    with pytest.raises(ImportRefused, match="what is left of the module uses test_a_discount"):
        draft(TREE | {FILE: tests.encode()})


def test_a_stored_task_is_read_as_it_was(tmp_path, draft):
    task = draft()
    save_task(tmp_path / "shop", task)

    assert load_suite_folder(tmp_path / "shop") == (task,)


# With sandboxes


def changed(name, **changes):
    return FULL | {"instance_id": name} | changes


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_the_command_proves_what_holds_and_refuses_the_rest_one_by_one(tmp_path, engine):
    head = make_clone(tmp_path / "repos/acme/shop")
    needy = FILES | {"shop/prices.py": f"import numpy\n{FILES['shop/prices.py']}"}
    needy_head = make_clone(tmp_path / "repos/acme__needy", needy)
    vague = (
        TEST_PATCH.replace("== 180", "- 180 == 0")
        .replace("== expected", "- expected == 0")
        .replace('== "20\\n"', '!= ""')
        .replace("== 20", "- 20 == 0")
    )
    more = f"{FILE}::test_discounts[0-40]"
    lacking_head = make_clone(tmp_path / "repos/acme/lacking")
    blob = git(tmp_path / "repos/acme/lacking", "rev-parse", "HEAD:README.md")
    (tmp_path / "repos/acme/lacking/.git/objects" / blob[:2] / blob[2:]).unlink()
    clash = "--- /dev/null\n+++ b/README.md/more.txt\n@@ -0,0 +1 @@\n+x\n"
    deep = f"--- /dev/null\n+++ b/tests/test_deep.py\n@@ -0,0 +1 @@\n+x = {'-' * 100_000}1\n"
    rows = [
        changed("good", base_commit=head),
        changed("needy", base_commit=needy_head, repo="acme/needy"),
        changed("passes", base_commit=head, FAIL_TO_PASS=[*ROW["FAIL_TO_PASS"], more], PASS_TO_PASS=[]),
        changed(
            "fails", base_commit=head, PASS_TO_PASS=ROW["FAIL_TO_PASS"], FAIL_TO_PASS=[f"{FILE}::test_x"]
        ),
        changed("turned", base_commit=head, FAIL_TO_PASS=[f"{FILE}::test_a_discount[1]"]),
        changed("sibling", base_commit=head, FAIL_TO_PASS=ROW["FAIL_TO_PASS"][1:], PASS_TO_PASS=[]),
        changed("vague", base_commit=head, test_patch=vague),
        changed("nowhere", base_commit=head, repo="acme/nowhere"),
        changed("commit", base_commit="1" * 40),
        changed("image", base_commit=head, image="there-is-no/such-image:1"),
        changed("name", base_commit=head, image="No Name: of an image"),
        changed("lacking", base_commit=lacking_head, repo="acme/lacking"),
        changed("clash", base_commit=head, test_patch=TEST_PATCH + clash),
        changed(
            "deep",
            base_commit=head,
            test_patch=TEST_PATCH + deep,
            FAIL_TO_PASS=["tests/test_deep.py::test_a"],
        ),
        {"instance_id": "empty"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    state = StateFolder(tmp_path / "state")

    done = imported(tmp_path, "--repos", str(tmp_path / "repos"))

    assert done.returncode == 1, done.stderr
    refused = {
        line.split(":")[1].rpartition(" ")[2]: line
        for line in done.stdout.splitlines()
        if "refused: " in line
    }
    reasons = {
        "needy": f"with the patch tests do not pass here (do they need what is not installed?): {FILE}::",
        "passes": f"FAIL_TO_PASS names tests that pass without the patch: {more}",
        "fails": f"its test files hold no such test function: {FILE}::test_x",
        "turned": "with the patch tests do not pass here",
        "vague": "no hidden test says what a value is",
        "nowhere": "there is no clone",
        "commit": "git does not read it from",
        "image": "the engine has no image there-is-no/such-image:1",
        "name": "the engine has no image No Name: of an image",
        "lacking": "lacks the content of 'README.md': make it a whole clone",
        "clash": "a sandbox does not take its files: ",
        "deep": "tests/test_deep.py cannot be read as Python: it is nested too deep",
        "empty": "it has no FAIL_TO_PASS",
    }
    assert refused.keys() == reasons.keys()
    for name, reason in reasons.items():
        assert reason in refused[name]
    tasks = known_suites(state.suites).suite("rows")
    assert [task.task_id for task in tasks] == ["rows/good", "rows/sibling"]
    book = ProofBook(state.proofs, engine.facts.image_digest)
    assert all(map(book.holds, tasks))
    # Of a function with parameters all tests run; one that the row leaves out counts as it was seen.
    assert tasks[1].pass_to_pass == (more,)


@pytest.fixture
def image(tmp_path):
    """An image as SWE-bench's are: with a Python of its own, and the commit in /testbed with its history."""
    make_clone(tmp_path / "context/testbed")
    # It tells of times and inodes; without it the engine has the image already the next time.
    (tmp_path / "context/testbed/.git/index").unlink()
    # A copy of the files, because an image that has the warden in it is refused.
    (tmp_path / "context/Dockerfile").write_text(
        f"FROM {image_reference()} AS gym\nRUN rm -rf /opt/gym\n"
        "FROM scratch\nCOPY --from=gym / /\nCOPY testbed /testbed\n"
        "ENV PATH=/usr/local/bin:/usr/bin:/bin KIND=shop PYTHONPATH=/x\n"
    )
    client = docker.from_env(timeout=100)
    made, _ = client.images.build(path=str(tmp_path / "context"), network_mode="host", rm=True)
    return made.id


@pytest.mark.docker
@pytest.mark.timeout(300)
def test_a_row_with_an_image_and_no_clone_is_proven_in_that_image(tmp_path, image):
    rows = [FULL, changed("neither")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "images.json").write_text(json.dumps({"acme__shop-1": image}))
    (tmp_path / "commands.toml").write_text('commands = ["head"]')
    options = ("--images", str(tmp_path / "images.json"))
    options += ("--commands", str(tmp_path / "commands.toml"))

    done = imported(tmp_path, *options)

    assert "refused: row 2, neither: there is no clone" in done.stdout
    [task] = known_suites(StateFolder(tmp_path / "state").suites).suite("rows")
    assert task.base.keys() == FILES.keys() - {"tests/test_old.py"}
    assert [each.name for each in task.environment.commands] == ["head"]
    assert task.environment == Environment(
        image, "/testbed", "/usr/bin/python3", {"PATH": "/usr/bin:/usr/local/bin:/bin", "KIND": "shop"}
    )
    assert "refused: row 1, acme__shop-1: its image holds no /x/python: say with --python" in (
        imported(tmp_path, *options, "--python", "/x/python").stdout
    )


def imported(tmp_path, *options):
    """What the import of rows.jsonl says."""
    return tasks_import(tmp_path / "state", tmp_path / "rows.jsonl", "--as", "swebench", *options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--as", "swebench", "--repos", "nowhere"), "--repos nowhere is no folder"),
        (("--as", "mbpp", "--repos", "."), "--repos goes with --as swebench"),
        (("--as", "mbpp", "--python", "/x"), "--python goes with --as swebench and with folders of Harbor"),
    ],
)
def test_an_option_that_has_no_effect_is_refused(tmp_path, options, reason):
    (tmp_path / "rows.jsonl").write_text(json.dumps(FULL))

    done = tasks_import(tmp_path / "state", tmp_path / "rows.jsonl", *options)

    assert done.returncode == 2
    assert reason in done.stderr
