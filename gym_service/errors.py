"""The tree of errors, and the one table from error to status.

    GymError                what a client is told, with a reason made for programs
     +- InvalidRequest      INVALID_ARGUMENT      change the request
     +- Unauthenticated     UNAUTHENTICATED       bring a token of this gym
     +- Forbidden           PERMISSION_DENIED     bring a token with another role
     +- NotFound            NOT_FOUND             the thing does not exist, or no longer
     +- NotDue              FAILED_PRECONDITION   the call does not fit the state of the episode
     +- Conflict            ABORTED               the key was used with other content
     +- AtCapacity          RESOURCE_EXHAUSTED    try again after the delay
     +- TooLarge            RESOURCE_EXHAUSTED    the answer does not fit into a message; find it elsewhere
     +- Unavailable         UNAVAILABLE           the gym's own failure; try again after the delay

What a policy does wrong is no error: it is an observation, or a verdict worth 0. A failure that is not in this
tree is a defect of the service and is answered as INTERNAL without its text.
"""

from enum import IntEnum
from typing import ClassVar


class Code(IntEnum):
    """The gRPC status codes that the gym uses, by their numbers."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_MAX_MESSAGE_CHARACTERS = 1000


class GymError(Exception):
    """An error that a client is told."""

    code: ClassVar[Code] = Code.INTERNAL

    def __init__(self, message: str, reason: str, retry_delay_seconds: float | None = None) -> None:
        super().__init__(message)
        # It travels in the trailers of a call, which hold little, and may quote what a stranger sent.
        printable = "".join(
            c if c.isascii() and c.isprintable() else "?" for c in message[:_MAX_MESSAGE_CHARACTERS]
        )
        self.message = printable
        self.reason = reason
        self.retry_delay_seconds = retry_delay_seconds


class InvalidRequest(GymError):
    """The request can never succeed as it is."""

    code = Code.INVALID_ARGUMENT


class Unauthenticated(GymError):
    """The call does not carry a token of the gym."""

    code = Code.UNAUTHENTICATED


class Forbidden(GymError):
    """The caller's role does not allow it."""

    code = Code.PERMISSION_DENIED


class NotFound(GymError):
    """What the request names does not exist."""

    code = Code.NOT_FOUND


class NotDue(GymError):
    """The call does not fit the state of the episode."""

    code = Code.FAILED_PRECONDITION


class Conflict(GymError):
    """The exactly-once key was used before with other content."""

    code = Code.ABORTED


class AtCapacity(GymError):
    """As many episodes are live as the gym can hold."""

    code = Code.RESOURCE_EXHAUSTED


class TooLarge(GymError):
    """The answer does not fit into a message."""

    code = Code.RESOURCE_EXHAUSTED


class Unavailable(GymError):
    """The gym itself cannot serve now: the engine is gone, or the gym drains."""

    code = Code.UNAVAILABLE
