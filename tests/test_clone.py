"""Files of a commit come out of a clone as they are, and nothing of the clone runs."""

import os

import pytest

from gym_service.tasks import base_tree, clone
from gym_service.tasks.clone import find_clone, read_commit
from gym_service.tasks.importing import ImportRefused
from tests.repositories import FILES, commit, git, make_clone, write


@pytest.fixture
def repos(tmp_path):
    make_clone(tmp_path / "acme/shop")
    return tmp_path


@pytest.fixture
def shop(repos):
    return repos / "acme/shop"


def head(folder):
    return git(folder, "rev-parse", "HEAD")


def test_a_commit_is_read_whole_whatever_is_checked_out(shop):
    first = head(shop)
    write(shop, {"shop/prices.py": "changed", "more.bin": b"\0\xff\n\n"})
    second = commit(shop)
    (shop / "README.md").write_text("not committed")

    assert read_commit(shop, first) == {path: text.encode() for path, text in FILES.items()}
    assert read_commit(shop, second)["more.bin"] == b"\0\xff\n\n"
    assert read_commit(shop, second)["README.md"] == b"A shop.\n"


@pytest.mark.parametrize("name", ["acme/shop", "acme__shop"])
def test_a_clone_is_found_under_either_name(tmp_path, name):
    make_clone(tmp_path / name)

    assert find_clone(tmp_path, "acme/shop") == tmp_path / name
    assert find_clone(tmp_path, "acme/other") is None


@pytest.mark.parametrize("repo", ["../shop", "acme/..", "acme", "/etc/acme", "acme/shop/more", "-x/shop", ""])
def test_a_repo_that_leads_elsewhere_is_refused(repos, repo):
    with pytest.raises(ImportRefused, match="OWNER/NAME is expected"):
        find_clone(repos, repo)


def test_a_bare_clone_does_too(shop, tmp_path):
    git(tmp_path, "clone", "-q", "--bare", str(shop), "bare")

    assert read_commit(tmp_path / "bare", head(shop)).keys() == FILES.keys()


@pytest.mark.parametrize("name", ["HEAD", "main", "--output=/tmp/x", "0" * 39, "", "A" * 40])
def test_a_commit_is_named_by_its_whole_hash(shop, name):
    with pytest.raises(ImportRefused, match="a whole hash is expected"):
        read_commit(shop, name)


def test_a_commit_that_is_not_there_is_refused(shop):
    with pytest.raises(ImportRefused, match=r"git does not read it from .* up to date"):
        read_commit(shop, "0" * 40)


def test_a_folder_inside_of_another_repository_is_no_clone(shop):
    (shop / "inner").mkdir()

    with pytest.raises(ImportRefused, match="is no git clone"):
        read_commit(shop / "inner", head(shop))


def test_nothing_that_a_clone_says_is_run(shop, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung-$1\ncat\n")
    trap.chmod(0o755)
    write(shop, {".gitattributes": "*.py filter=trap diff=trap text eol=crlf\nREADME.md export-ignore\n"})
    first = commit(shop)
    for hook in ("post-checkout", "pre-auto-gc", "reference-transaction", "post-index-change"):
        (shop / ".git/hooks" / hook).write_text(f"#!/bin/sh\n{trap} {hook}\n")
        (shop / ".git/hooks" / hook).chmod(0o755)
    settings = {
        "core.fsmonitor": f"{trap} fsmonitor",
        "core.pager": f"{trap} pager",
        "pager.ls-tree": f"{trap} pager",
        "filter.trap.clean": "cat",
        "filter.trap.smudge": f"{trap} smudge",
        "filter.trap.process": f"{trap} process",
        "filter.trap.required": "true",
        "diff.trap.textconv": f"{trap} textconv",
        "core.sshCommand": f"{trap} ssh",
        "core.alternateRefsCommand": f"{trap} alternates",
        "alias.ls-tree": f"!{trap} alias",
        "alias.cat-file": f"!{trap} alias",
    }
    for name, value in settings.items():
        git(shop, "config", name, value)
    # And what whoever calls has in the environment.
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"{trap} external")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))

    files = read_commit(shop, first)

    assert files["shop/prices.py"] == FILES["shop/prices.py"].encode()
    assert "README.md" in files
    assert not list(tmp_path.glob("sprung*"))
    # The trap is one: what a checkout would run does run.
    monkeypatch.undo()
    os.remove(shop / "shop/prices.py")
    git(shop, "config", "--unset", "filter.trap.process")
    git(shop, "checkout", "-q", "--", "shop/prices.py")
    assert (tmp_path / "sprung-smudge").exists()


def test_what_a_partial_clone_lacks_is_not_fetched(shop, tmp_path):
    git(shop, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--bare", "--filter=blob:none", f"file://{shop}", "partial")
    partial = tmp_path / "partial"
    git(partial, "config", "remote.origin.url", f"ext::sh -c touch% {tmp_path}/sprung")
    git(partial, "config", "protocol.ext.allow", "always")

    with pytest.raises(ImportRefused, match=r"git does not read it|make it a whole clone"):
        read_commit(partial, head(shop))
    assert not (tmp_path / "sprung").exists()


def test_a_replaced_commit_is_read_as_it_was(shop):
    first = head(shop)
    write(shop, {"shop/prices.py": "changed"})
    git(shop, "replace", first, commit(shop))

    assert read_commit(shop, first)["shop/prices.py"] == FILES["shop/prices.py"].encode()


def test_a_link_is_refused(shop):
    (shop / "passwd").symlink_to("/etc/passwd")

    with pytest.raises(ImportRefused, match="a link, 'passwd'"):
        read_commit(shop, commit(shop))


def test_a_submodule_is_left_out(shop, tmp_path):
    make_clone(tmp_path / "helpers")
    git(shop, "-c", "protocol.file.allow=always", "submodule", "-q", "add", str(tmp_path / "helpers"), "sub")

    assert not [path for path in read_commit(shop, commit(shop)) if path.startswith("sub")]


@pytest.mark.parametrize("entry", ["..", ".", "a\\b", "\x1b[2J"])
def test_a_tree_with_a_path_that_leads_elsewhere_is_refused(shop, entry):
    blob = git(shop, "hash-object", "-w", "README.md")
    made = git(shop, "commit-tree", _tree(shop, [(entry, "100644", blob)]), "-m", "odd")

    with pytest.raises(ImportRefused, match="no plain path"):
        read_commit(shop, made)


def test_a_git_folder_inside_of_a_tree_is_left_out(shop):
    blob = git(shop, "hash-object", "-w", "README.md")
    made = git(shop, "commit-tree", _tree(shop, [(".git", "100644", blob)]), "-m", "odd")

    assert read_commit(shop, made) == {}


@pytest.mark.parametrize(
    ("name", "most", "reason"),
    [
        ("MAX_FILES", 5, "more than 5 files"),
        ("MAX_BYTES", 300, "more than 0 MiB"),
        ("MAX_FILE_BYTES", 100, "MB"),
    ],
)
def test_a_repository_that_is_too_large_is_refused_before_it_is_read(shop, monkeypatch, name, most, reason):
    monkeypatch.setattr(base_tree, name, most)

    with pytest.raises(ImportRefused, match=reason):
        read_commit(shop, head(shop))


def test_a_tree_without_end_is_not_listed_to_its_end(shop, monkeypatch):
    blob = git(shop, "hash-object", "-w", "README.md")
    tree = _tree(shop, [(f"f{number}", "100644", blob) for number in range(10)])
    for _ in range(9):
        tree = _tree(shop, [(f"d{number}", "40000", tree) for number in range(10)])
    made = git(shop, "commit-tree", tree, "-m", "ten thousand million files")

    with pytest.raises(ImportRefused, match="too large"):
        read_commit(shop, made)


def _tree(folder, entries):
    raw = b"".join(
        f"{mode} {name}\0".encode() + bytes.fromhex(hashed) for name, mode, hashed in sorted(entries)
    )
    (folder / "tree").write_bytes(raw)
    return git(folder, "hash-object", "-w", "-t", "tree", "--literally", "tree")


def test_a_git_that_says_nothing_is_given_up(shop, monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec /bin/sleep 100\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setattr(clone, "_SECONDS", 0.2)
    commit_of = head(shop)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")

    with pytest.raises(ImportRefused, match="takes too long"):
        read_commit(shop, commit_of)
