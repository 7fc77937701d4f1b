"""The contract is tried on a gym in this process, or on a server of your own.

python -m pytest tests/conformance --target ADDRESS --token-file FILE --ca-file FILE

With a target only what tries the contract runs; the rest of this folder is about this implementation.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.target import Target, connected, serving


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", help="host and port of a gym; left out, one is started in this process")
    parser.addoption("--token-file", help="a file with the token for it")
    parser.addoption("--ca-file", help="the certificate of its authority, where it encrypts")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Without this folder on the command line the options are not there.
    if config.getoption("--target", None):
        others = [item for item in items if "target" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    address = request.config.getoption("--target", None)
    if address:
        token, authority = (request.config.getoption(name) for name in ("--token-file", "--ca-file"))
        with connected(
            address,
            Path(token).read_text().strip() if token else "",
            Path(authority).read_bytes() if authority else None,
        ) as found:
            yield found
    else:
        with serving(tmp_path_factory.mktemp("gym"), capacity=3) as found:
            yield found
