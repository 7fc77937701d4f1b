"""What the container of a task holds beside its repository: an image of one's own, and what may be run in it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


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

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)
