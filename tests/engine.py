"""What the tests ask of the Docker Engine themselves, past the service."""

import docker
from docker.errors import NotFound

from gym_service.sandbox.docker import OWNER_LABEL


def containers_of(owner):
    """The containers of a service that exist, as the engine describes them, but for those that are being removed.

    Asked one by one: where a container ends while it is removed, an engine can go on listing it until its own
    restart, though it no longer knows it (moby/moby#51692), or fail to remove the last files of one that is dead.
    """
    api = docker.from_env().api
    described = []
    for listed in api.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner}"}):
        try:
            found = api.inspect_container(listed["Id"])
        except NotFound:
            continue
        if found["State"]["Status"] not in ("removing", "dead"):
            described.append(found)
    return described
