"""Whether an episode can be opened as it is asked for, whatever else goes on in the gym."""

from gym_service.episode import Creation
from gym_service.errors import InvalidRequest
from gym_service.tasks.suites import Task
from gym_service.toolsets.base import Toolset
from gym_service.toolsets.coding import Coding
from gym_service.toolsets.menu import Menu

TOOLSETS: dict[str, Toolset] = {toolset.name: toolset for toolset in (Menu(), Coding())}

_MAX_REQUEST_ID_CHARACTERS = 128
_MAX_GROUP_CHARACTERS = 256


def check_creation(creation: Creation, task: Task, max_lease_seconds: float) -> Toolset:
    """Gives the toolset that a task is to be played with. Raises InvalidRequest."""
    if not 1 <= len(creation.request_id) <= _MAX_REQUEST_ID_CHARACTERS:
        message = f"request_id must have 1 to {_MAX_REQUEST_ID_CHARACTERS} characters"
        raise InvalidRequest(message, "REQUEST_ID_INVALID")
    toolset = TOOLSETS.get(creation.toolset)
    if toolset is None:
        known = ", ".join(sorted(TOOLSETS))
        raise InvalidRequest(f"no toolset {creation.toolset[:40]!r}; there is {known}", "TOOLSET_UNKNOWN")
    if not toolset.plays(task):
        message = f"{task.task_id} cannot be played with the toolset {toolset.name}"
        raise InvalidRequest(message, "TOOLSET_NOT_FOR_TASK")
    if not 0 <= creation.max_turns <= toolset.turns_for(task):
        message = f"max_turns must be from 0 to {toolset.turns_for(task)}"
        raise InvalidRequest(message, "MAX_TURNS_INVALID")
    if creation.max_edits < -1:
        raise InvalidRequest("max_edits must be at least -1", "MAX_EDITS_INVALID")
    if len(creation.seed.group) > _MAX_GROUP_CHARACTERS:
        message = f"seed.group must have at most {_MAX_GROUP_CHARACTERS} characters"
        raise InvalidRequest(message, "GROUP_INVALID")
    if not 0 <= creation.lease_seconds <= max_lease_seconds:
        raise InvalidRequest(f"lease must be from 0 to {max_lease_seconds:g} s", "LEASE_INVALID")
    return toolset
