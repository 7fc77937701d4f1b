"""How a command of this package ends: with a code, and in one line where it could not do what it was asked for."""

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

from trainer_client.errors import GymError

FINISHED, FAILED, INTERRUPTED = 0, 1, 130
"""130 is 128 + SIGINT, as shells have it."""

_P = ParamSpec("_P")


def exit_code(*told: type[Exception]) -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """Has a command return FAILED for what its user can mend, and say it on stderr; INTERRUPTED for Ctrl-C.

    Args:
        told: Errors beside those of the gym, of files, of values and of libraries that are not there.
    """
    mended: tuple[type[Exception], ...] = (GymError, OSError, ValueError, ModuleNotFoundError, *told)

    def decorate(main: Callable[_P, int]) -> Callable[_P, int]:
        @wraps(main)
        def command(*args: _P.args, **kwargs: _P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except mended as error:
                print(error, file=sys.stderr)
                return FAILED
            except KeyboardInterrupt:
                print("stopped", file=sys.stderr)
                return INTERRUPTED

        return command

    return decorate
