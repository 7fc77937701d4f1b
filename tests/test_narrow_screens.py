"""What is shown in a browser fits on the screen of a phone: nobody has to scroll to the side."""

import pytest

from tests.browser import page_at
from tests.conftest import fake_sandbox, gym_over
from tests.test_evaluation_command import RIGHT, SHARE, WRONG, Gym, row
from tests.test_viewer import HOSTILE, MENU_SOLUTION, link, played

NARROW = 390
WIDTH = "document.documentElement.scrollWidth"
UNFOLD = "document.querySelectorAll('details').forEach(each => each.open = true)"


@pytest.mark.parametrize("shows_one", [False, True], ids=["list", "episode"])
async def test_the_page_of_the_service_is_as_wide_as_the_screen(tmp_path, shows_one):
    async with gym_over(fake_sandbox, tmp_path, viewer_port=0) as gym:
        episode_id = await played(gym, (HOSTILE, "x" * 500, *MENU_SOLUTION))
        address = gym.running.viewer + await link(gym) + (f"#episode={episode_id}" if shows_one else "")
        async with page_at(address, tmp_path / "browser", NARROW) as page:
            await page.run(UNFOLD)
            assert await page.run(WIDTH) == NARROW
            assert episode_id in await page.run("document.body.textContent")


async def test_a_report_is_as_wide_as_the_screen(tmp_path):
    gym = Gym(tmp_path)
    await gym.run(row(RIGHT), row(f"import os\n{WRONG}# os._exit {'x' * 500}\n"), {"task_id": SHARE * 9})
    async with page_at((tmp_path / "out.html").as_uri(), tmp_path / "browser", NARROW) as page:
        await page.run(UNFOLD)

        assert await page.run(WIDTH) == NARROW
        assert "Review sheet" in await page.run("document.body.textContent")
