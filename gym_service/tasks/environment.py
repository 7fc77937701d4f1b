"""What the container of a task holds beside its repository: an image of one's own, and what may be run in it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gym_service.tasks.commands import AllowedCommand, command_from_plain


@dataclass(frozen=True, slots=True)
class Environment:
    """The surroundings of a task; without anything the gym's own image and its own Python."""

    image: str = ""
    """The image by its digest, `sha256:` and 64 hexadecimal digits; empty for the gym's own."""
    workspace: str = "/workspace"
    """The folder of the container that holds the repository; what the image has there is out of sight."""
    python: str = ""
    """The image's interpreter, by its path, that runs Python files and tests; empty for the gym's own."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of what runs in an episode, such as PATH."""
    commands: tuple[AllowedCommand, ...] = field(default=(), compare=False)
    """What the policy may call beside the commands that every task has; nothing that sandboxes differ by."""

    @property
    def place(self) -> "Environment":
        """What a sandbox depends on: of two tasks with the same, each can have the other's."""
        return Environment(self.image, self.workspace, self.python, self.variables)

    def __hash__(self) -> int:
        return hash((self.image, self.workspace, self.python))

    def to_json(self) -> dict[str, object]:
        """As plain data; without commands where there are none, as tasks were hashed before there could be any."""
        plain = asdict(self)
        return plain if self.commands else {key: plain[key] for key in plain if key != "commands"}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "Environment":
        """Reads what `to_json` gives. Raises ValueError, KeyError, TypeError, AttributeError."""
        described = [dict(each) for each in plain.get("commands", ())]
        commands = tuple(command_from_plain(each.pop("name"), each) for each in described)
        return cls(**{**plain, "commands": commands})


PLAIN = Environment()
"""The gym's own image, and nothing else."""
