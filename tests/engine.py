"""What the tests ask of the Docker Engine themselves, past the service."""

import docker
from docker.errors import NotFound

from gym_service.sandbox.docker import OWNER_LABEL


def containers_of(owner):
    """The containers of a service that exist, in any state, as the engine describes them.

    Asked one by one: where a container ends while it is removed, an engine can go on listing it until its own
    restart, though it no longer knows it (moby/moby#51692).
    """
    api = docker.from_env().api
    described = []
    for listed in api.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner}"}):
        try:
            described.append(api.inspect_container(listed["Id"]))
        except NotFound:
            continue
    return described
