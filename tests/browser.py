"""A browser without a window, where this machine has one."""

import asyncio
import os
import shutil

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60


async def dump_page(address, folder, *options):
    """Gives the document that a browser has made of an address after some seconds; skips the test without one."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")
    # Its own sandbox does not run as root.
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    process = await asyncio.create_subprocess_exec(
        *(program, "--headless", "--disable-gpu", f"--user-data-dir={folder}", *as_root, *options),
        *("--virtual-time-budget=4000", "--dump-dom", address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode()
