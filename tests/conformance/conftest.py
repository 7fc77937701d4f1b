"""The contract is tried on a gym in this process, or on a server of your own.

python -m pytest tests/conformance -k contract --target ADDRESS --token-file FILE
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.target import Target, connected, serving


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", help="host and port of a gym; left out, one is started in this process")
    parser.addoption("--token-file", help="a file with the token for it")


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    # Without this folder on the command line the options are not there.
    address = request.config.getoption("--target", None)
    if address:
        path = request.config.getoption("--token-file")
        with connected(address, Path(path).read_text().strip() if path else "") as found:
            yield found
    else:
        with serving(tmp_path_factory.mktemp("gym"), capacity=3) as found:
            yield found
