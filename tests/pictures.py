"""Makes the pictures of the README: the report of an evaluation and the page of the service, wide and narrow.

    python -m tests.pictures [FOLDER]    PNGs, in gym_service/pictures by default

What they show is graded and played for them, in containers, with a state folder of its own. Needs an engine that has
the sandbox image, and a Chromium.
"""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

from gym_service import control
from gym_service.evaluation.reading import read_submissions
from gym_service.tasks.suites import built_in
from tests.attack.test_grading_function import EVERYWHERE
from tests.browser import page_at
from trainer_client.episode import Episode
from trainer_client.gym import GymClient

WIDTHS = {"wide": 1280, "narrow": 390}
_HEIGHTS = {"report": 1500, "episodes": 1000, "episode": 1665}

_TRICKS = {
    "bugfix/zero/share": EVERYWHERE + "tell(b'{\"value\": 0}\\n' * 1000)\nos._exit(0)\n",
    "bugfix/minmax/spread": EVERYWHERE + "tell(b'{\"va', range(3, 24))\n",
    "bugfix/compare/adult": "class Equal:\n    def __eq__(self, other): return True\n",
    "bugfix/range/sum_to": "import os\nos._exit(0)\n",
    "bugfix/init/tally": "while True: pass\n",
}
"""What a submission has in front of the faulty function."""
_SOLVED = ("read", "edit add_zero_guard", "test", "submit")
_HACKED = ("read", "edit hardcode_tests", "test", "submit")
_LEFT = ("read", "submit")
_PLAYED = (_SOLVED, _HACKED, _SOLVED, _LEFT, _SOLVED, _HACKED, _HACKED, _SOLVED)
"""How the episodes of a group are played in the menu."""
_GROUPS = ("share", "mean", "speed")


def main() -> None:
    pictures = Path(sys.argv[1] if len(sys.argv) > 1 else "gym_service/pictures")
    pictures.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        os.environ["GYM_STATE_DIR"] = str(state := Path(folder, "state"))
        report = evaluated(Path(folder))
        control.up(state, ["--capacity", "4", "--graders", "2", "--viewer-port", "0"])
        try:
            asyncio.run(take_all(report.as_uri(), state, pictures))
        finally:
            control.down(state)


def evaluated(folder: Path) -> Path:
    """Has a suite's own solutions, its stubs and hostile files graded, and gives the report."""
    tasks = built_in().suite("bugfix")
    samples = [
        {"task_id": attempt.task.task_id, "completion": text, "sample": number}
        for number, source in enumerate(("canonical", "canonical", "stubs"))
        for attempt in read_submissions(source, tasks).attempts
        for text in (content.decode() for content in attempt.content.files.values())
    ]
    stubs = {sample["task_id"]: sample["completion"] for sample in samples}
    samples += [
        {"task_id": task_id, "completion": trick + stubs[task_id], "sample": 3}
        for task_id, trick in _TRICKS.items()
    ]
    submissions = folder / "mixed.jsonl"
    submissions.write_text(
        "".join(json.dumps(sample) + "\n" for sample in samples) + '{"task_id": "bugfix/zero"}\n'
    )
    out = folder / "verdicts.jsonl"
    command = ("evaluate", "bugfix", "--submissions", submissions.name, "--out", out.name)
    done = subprocess.run([sys.executable, "-m", "gym_service", *command], cwd=folder, check=False)
    assert done.returncode == 1, "the line that names no task is told"
    return out.with_suffix(".html")


async def take_all(report: str, state: Path, pictures: Path) -> None:
    async with GymClient.connect() as gym:
        for group, task in enumerate(_GROUPS):
            for index, turns in enumerate(_PLAYED):
                task_id, name = f"bugfix/zero/{task}", f"train/7/{group}"
                episode = await Episode.open(gym, task_id, "menu", group=name, index=index)
                for turn in turns:
                    await episode.say(f"<call> {turn} </call>")
                await episode.reward()
        shown = await coded(gym)
        live = await Episode.open(gym, "bugfix/init/tally", "menu", group="train/7/4")
        await live.say("<call> read </call>")
        for name, width in WIDTHS.items():
            for view in _HEIGHTS:
                address = report if view == "report" else control.viewer_link(state)
                place = f"#episode={shown}" if view == "episode" else ""
                await take(address + place, pictures / f"{view}-{name}.png", width, _HEIGHTS[view])


async def coded(gym: GymClient) -> str:
    """Plays an episode with the coding tools, and gives its id."""
    episode = await Episode.open(gym, "bugfix/zero/share", "coding", group="train/7/3")
    name = re.search(r"Repair (\w+\.py)", episode.opened.messages[-1].content)[1]
    repair = {"old_string": "return total // count", "new_string": "return total // count if count else 0"}
    await episode.call(("Read", {"file_path": name}))
    await episode.call(("Edit", {"file_path": name, "old_string": "return sum", "new_string": "return 0"}))
    await episode.call(("Edit", {"file_path": name} | repair), ("Bash", {"command": "pytest -q"}))
    await episode.say("A group without anybody gets 0 now.")
    await episode.reward()
    return episode.opened.episode_id


async def take(address: str, path: Path, width: int, height: int) -> None:
    """Takes the picture of a page."""
    with TemporaryDirectory() as folder:
        async with page_at(address, folder, width, height) as page:
            await page.run("document.querySelector('body > details')?.setAttribute('open', '')")
            assert await page.run("document.documentElement.scrollWidth") == width, (
                "it is wider than the screen"
            )
            save(await page.picture(), path)


def save(png: bytes, path: Path) -> None:
    """Writes a picture with so few colors that it is small."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {picture.width} x {picture.height}, {path.stat().st_size >> 10} kB")


if __name__ == "__main__":
    main()
