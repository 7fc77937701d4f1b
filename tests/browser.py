"""A browser without a window, where this machine has one, driven over two pipes by its own protocol."""

import asyncio
import base64
import json
import os
import shutil
from contextlib import asynccontextmanager

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SECONDS = 60
_MOST_BYTES = 64 << 20
"""Of one answer; pictures are."""
_IS_DRAWN = 'document.readyState === "complete" && !document.body.textContent.includes("Loading.")'


class Page:
    """What is shown at an address, on a screen of a certain size."""

    def __init__(self, requests, answers):
        self._requests, self._answers = requests, answers
        self._sent, self._session = 0, {}

    async def open(self, address, width, height):
        target = await self.ask("Target.createTarget", url="about:blank")
        session = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = {"sessionId": session["sessionId"]}
        # A window is never narrower than 500 pixels, whatever it is told; a screen can be.
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        await self.ask("Page.navigate", url=address)
        while not await self.run(_IS_DRAWN):  # noqa: ASYNC110 - the page has no event that reaches us
            await asyncio.sleep(0.1)

    async def run(self, script):
        """Gives the value of an expression in the page."""
        return (await self.ask("Runtime.evaluate", expression=script, returnByValue=True))["result"].get(
            "value"
        )

    async def picture(self):
        """Gives a PNG of the screen."""
        return base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"])

    async def close(self):
        """Ends the browser."""
        self._session = {}
        await self.ask("Browser.close")

    async def ask(self, method, **parameters):
        self._sent += 1
        request = {"id": self._sent, "method": method, "params": parameters} | self._session
        self._requests.write(json.dumps(request).encode() + b"\0")
        while True:
            answer = json.loads((await self._answers.readuntil(b"\0"))[:-1])
            if answer.get("id") == self._sent:
                assert "result" in answer, answer
                return answer["result"]


@asynccontextmanager
async def page_at(address, folder, width=1280, height=1000):
    """Opens an address in a browser and waits until it is drawn; skips the test where there is no browser."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(_NAMES)} is installed")
    # Its own sandbox does not run as root.
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    command = [
        program,
        "--headless",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder}",
        *as_root,
    ]
    (read_by_browser, requests), (answers, written_by_browser) = os.pipe(), os.pipe()
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", f'exec "$@" 3<&{read_by_browser} 4>&{written_by_browser}', "bash"),
        *(*command, "--remote-debugging-pipe"),
        pass_fds=(read_by_browser, written_by_browser),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    os.close(read_by_browser)
    os.close(written_by_browser)
    reader = asyncio.StreamReader(limit=_MOST_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb", buffering=0)
    )
    try:
        with os.fdopen(requests, "wb", buffering=0) as writer:
            async with asyncio.timeout(_SECONDS):
                page = Page(writer, reader)
                await page.open(address, width, height)
                yield page
                await page.close()
                await process.wait()
    finally:
        transport.close()
        if process.returncode is None:
            process.kill()


async def dump_page(address, folder):
    """Gives the document that a browser has made of an address."""
    async with page_at(address, folder) as page:
        return await page.run("document.documentElement.outerHTML")
