"""Parsing Python, one source at a time.

`ast.parse` counts how deep it is in a variable that all threads share before Python 3.11.8: when the collection of
garbage lets another thread go on in the middle of it, a sound source ends in a SystemError.
"""

import ast
import threading

_ONE_AT_A_TIME = threading.RLock()
"""Held while something is parsed; reentrant, because the collection of garbage may run anything."""


def parse(source: str) -> ast.Module:
    """Parses a source, from any thread. Raises SyntaxError and ValueError as `ast.parse` does."""
    with _ONE_AT_A_TIME:
        try:
            return ast.parse(source)
        except MemoryError:
            # So says the parser of what lies too deep in each other, before it has used any memory.
            raise ValueError("it is nested too deep") from None
