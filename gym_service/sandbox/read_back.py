"""What an engine says of itself and of a container, beside what it was told."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says about itself and the image."""

    runtime: str
    runtime_version: str
    engine_version: str
    kernel_version: str
    image_digest: str
    socket_path: str


_CONFIG_KEYS = "Image", "User", "Hostname", "Env", "Tty", "NetworkDisabled", "Healthcheck", "StopTimeout"


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Compares what the engine was told with what it says it did; returns the keys that differ."""
    wrong = [
        key
        for key, value in wanted["HostConfig"].items()
        if _plain(found["HostConfig"].get(key)) != _plain(value)
    ]
    wrong += [key for key in _CONFIG_KEYS if _plain(found["Config"].get(key)) != _plain(wanted.get(key))]
    if found["Mounts"] or found["Config"].get("Volumes"):
        wrong.append("Volumes")
    return wrong


def _plain(value: Any) -> Any:
    """Capabilities have two spellings, no list has an order that matters, and what is nothing can be absent."""
    if isinstance(value, list):
        value = sorted(json.dumps(item, sort_keys=True).replace('"CAP_', '"') for item in value)
    return value or None


def distinct_runtimes(info: dict[str, Any], first: str) -> tuple[str, ...]:
    """Gives each runtime once: an engine lists a program under several names."""
    named: dict[str, str] = {}
    for name in (
        first,
        info["DefaultRuntime"],
        *sorted(info["Runtimes"], key=lambda name: ("." in name, name)),
    ):
        runtime = info["Runtimes"][name]
        program = json.dumps([runtime.get("path", name), runtime.get("runtimeArgs") or []])
        named.setdefault(program, name)
    return tuple(named.values())


def runtime_version(runtime: str, info: dict[str, Any], version: dict[str, Any]) -> str:
    """Gives the version of a runtime, from the engine or from the runtime's own program; "unknown" without one."""
    for component in version.get("Components") or []:
        if component["Name"] == runtime:
            return str(component["Version"])
    # The engine is on this machine, and so are its runtimes.
    program = shutil.which(info["Runtimes"][runtime].get("path") or runtime)
    if program is None:
        return "unknown"
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return (shown.splitlines() or ["unknown"])[0].split()[-1]
