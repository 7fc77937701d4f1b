"""What can go wrong between trainer and gym.

The tree:

    GymError
    +-- NoGym               no gym to talk to: no endpoint file, or one that others can read, or a token would go
    |                       to another machine in the clear
    +-- GymUnavailable      the gym was there and does not answer any more
    +-- EpisodeLost         one episode is gone through no act of the policy: play it again
    +-- GymRefused          the gym answered no: the request is wrong, or it stays without capacity
    +-- ContractBroken      the gym answered what the contract rules out
"""


class GymError(Exception):
    """Something went wrong between trainer and gym."""


class NoGym(GymError):
    """There is no gym to talk to."""


class GymUnavailable(GymError):
    """The gym did not come back within the time that the client waits."""


class EpisodeLost(GymError):
    """An episode is gone: the gym was restarted, the lease ran out, or the sandbox failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The episode is lost: {reason}. Play it again from its start.")
        self.reason = reason
        """In a few words, such as the gym's reason in UPPER_SNAKE_CASE and its message."""


class GymRefused(GymError):
    """The gym refused a request, and the same request would be refused again."""

    def __init__(self, code: str, reason: str, message: str) -> None:
        super().__init__(f"The gym refused: {message} ({code}, {reason})")
        self.code = code
        """The name of the gRPC status code, such as INVALID_ARGUMENT."""
        self.reason = reason
        """The gym's reason in UPPER_SNAKE_CASE; empty when the refusal came from gRPC itself."""
        self.message = message
        """What happened and what to change."""


class ContractBroken(GymError):
    """The gym's answer is not what the contract promises, so nothing can be learnt from it."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. Restart the gym from this checkout (make gym-down gym-up) and file a bug.")
