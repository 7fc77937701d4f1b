"""Which files of an unpacked source distribution are sources, tests, or of no use to an episode.

Judged by names alone, since nothing is executed: packages are the folders with an `__init__.py` at the top or in
`src`. Packages without one (namespace packages) are not found. Documentation stays out of an episode, because
built pages may hold copies of the sources; so do generated metadata and everything compiled or of git.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.parser import BytesHeaderParser
from pathlib import PurePosixPath

from gym_service.tasks.sdist import SdistError

_TEST_FOLDERS = {"test", "tests"}
_NO_PACKAGES = _TEST_FOLDERS | {
    "benchmark", "benchmarks", "bench", "build", "ci", "dist", "doc", "docs", "example", "examples", "misc",
    "requirements", "scripts", "tools",
}  # fmt: skip
_NO_MODULES = {"conftest.py", "noxfile.py", "setup.py", "tasks.py", "versioneer.py"}
_KEPT_AT_TOP = {"conftest.py", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini"}
_KEPT_AT_TOP_STEMS = {"copying", "licence", "license", "notice", "readme"}
_COMPILED = {".a", ".dll", ".dylib", ".exe", ".o", ".pyc", ".pyd", ".pyo", ".so"}

_STATED_LICENSES = {
    "MIT": r"(the )?mit( license)?",
    "BSD": r"(the )?(new |modified |simplified |[023]-clause )?bsd([ -][23][ -]clause)?( license)?",
    "Apache": r"apache([ -]2(\.0)?|[ -]software)?( license)?(,? (version )?2\.0)?",
    "PSF": r"psf([ -]2\.0)?( license)?|python-2\.0|python software foundation( license)?",
    "ISC": r"isc( license)?( \(iscl\))?",
}
# As they read in lower case, without commas and line ends.
_LICENSE_SENTENCES = {
    "MIT": "permission is hereby granted free of charge to any person obtaining a copy",
    "BSD": "redistribution and use in source and binary forms with or without modification are permitted",
    "Apache": "apache license version 2.0",
    "PSF": "python software foundation license",
    "ISC": "distribute this software for any purpose with or without fee is hereby granted",
}
_NOT_PERMISSIVE = re.compile(r"gnu (affero |lesser |library )?general public|mozilla public|eclipse public")


@dataclass(frozen=True, slots=True)
class Layout:
    """What the files of one distribution are; every tuple is sorted."""

    roots: tuple[str, ...]
    """The folder that imports of its packages start from: the top, which is "", or src."""
    source_files: tuple[str, ...]
    """The modules that may hold a fault."""
    test_files: tuple[str, ...]
    """The modules that pytest collects by their names."""
    kept: tuple[str, ...]
    """What an episode's base tree holds: sources and tests with their data, configuration, readme, licence."""
    license: str
    """The kind of its licence."""


def find_layout(files: Mapping[str, bytes]) -> Layout:
    """Sorts the files of a distribution.

    Raises:
        SdistError: It has no packages, no tests or no permissive licence.
    """
    paths = {name: PurePosixPath(name) for name in sorted(files)}
    root = "src" if any(_package(_below(path, "src")) for path in paths.values()) else ""
    packages = {package for path in paths.values() if (package := _package(_below(path, root)))}
    kept, sources, tests = [], [], []
    for name, path in paths.items():
        if _is_dropped(path):
            continue
        below = _below(path, root)
        is_module = len(below) == 1 and path.suffix == ".py" and path.name not in _NO_MODULES
        is_test = path.suffix == ".py" and (path.name.startswith("test_") or path.stem.endswith("_test"))
        of_tests = is_test or path.name == "conftest.py" or bool(_TEST_FOLDERS & set(path.parts[:-1]))
        if is_test:
            tests.append(name)
        elif path.suffix == ".py" and not of_tests and (is_module or below[:1] in packages):
            sources.append(name)
        elif not (of_tests or below[:1] in packages or _is_kept_at_top(path)):
            continue
        kept.append(name)
    if not sources:
        raise SdistError(
            "the distribution has no Python packages at its top or in src; choose another package"
        )
    if not tests:
        raise SdistError("the distribution comes without tests (test_*.py); choose a package that ships them")
    return Layout((root,), tuple(sources), tuple(tests), tuple(kept), find_license(files))


def find_license(files: Mapping[str, bytes]) -> str:
    """The kind of licence, by what the metadata states or else by the text, which has to be there in any case.

    Raises:
        SdistError: There is no text, or a licence that is not known to be permissive.
    """
    texts = [files[path] for path in sorted(files) if re.match(r"(?i)(licen[cs]e|copying)[^/]*$", path)]
    if not texts:
        raise SdistError("the distribution holds no licence text; choose another package")
    stated = _stated_licenses(files.get("PKG-INFO", b""))
    text = re.sub(r"[\s,]+", " ", texts[0].decode("utf-8", "replace").lower())
    if stated:
        kinds = [_kind(each) for each in stated]
    elif _NOT_PERMISSIVE.search(text):
        kinds = [None]
    else:
        kinds = [kind for kind, words in _LICENSE_SENTENCES.items() if words in text]
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        named = ", ".join(stated) or "a text that is not known"
        raise SdistError(
            f"its licence is {named}; only packages under {', '.join(_STATED_LICENSES)} are used: choose another"
        )
    return known[0]


def _stated_licenses(metadata: bytes) -> list[str]:
    headers = BytesHeaderParser().parsebytes(metadata)
    if expression := headers.get("License-Expression"):
        # Strict on purpose: of `A OR B` both have to be permissive.
        return [each.strip("() ") for each in re.split(r"\b(?:AND|OR)\b", str(expression))]
    classifiers = [str(each) for each in headers.get_all("Classifier", [])]
    marked = [each.split(" :: ")[-1] for each in classifiers if each.startswith("License :: ")]
    if marked := [each for each in marked if each != "OSI Approved"]:
        return marked
    stated = str(headers.get("License", "")).strip()
    # Older packages put the whole text there.
    return [stated] if stated and stated != "UNKNOWN" and "\n" not in stated else []


def _kind(stated: str) -> str | None:
    words = stated.strip().lower()
    return next((kind for kind, form in _STATED_LICENSES.items() if re.fullmatch(form, words)), None)


def _below(path: PurePosixPath, root: str) -> tuple[str, ...]:
    """The parts of a path below the root; none if it lies elsewhere."""
    if not root:
        return path.parts
    return path.parts[1:] if path.parts[0] == root else ()


def _package(below: tuple[str, ...]) -> tuple[str, ...]:
    """The top package that a file makes by being its `__init__.py`, as a path of one part."""
    is_package = len(below) == 2 and below[1] == "__init__.py" and below[0].lower() not in _NO_PACKAGES
    return below[:1] if is_package else ()


def _is_kept_at_top(path: PurePosixPath) -> bool:
    if len(path.parts) > 1:
        return False
    stem = re.split(r"[.\-_]", path.name.lower())[0]
    return path.name in _KEPT_AT_TOP or stem in _KEPT_AT_TOP_STEMS


def _is_dropped(path: PurePosixPath) -> bool:
    return (
        any(
            part.startswith(".git")
            or part.endswith(".egg-info")
            or part.lower() in {"doc", "docs", "__pycache__"}
            for part in path.parts
        )
        or path.name == "PKG-INFO"
        or path.suffix in _COMPILED
    )
