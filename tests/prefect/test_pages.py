"""What a person sees of a job in Prefect's own pages: a real server with its pages, looked at in a real browser.

`DISPATCH_TEST_SHOTS=folder` leaves a picture of each page there, for whoever wants to look as well.
"""

import json
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from dispatch_core.environments import Environment
from tests.prefect.server import Prefect

pytestmark = [pytest.mark.long, pytest.mark.promise("F1")]

CHROMIUM = "/usr/bin/chromium"
SECONDS = 60
"""For a page to be there: the machine may be busy."""

PAGES = "http://dispatch.example:8766"

COMMAND = r"""true '*.csv' 'a|b' '<b>bold</b>' '[link](http://127.0.0.1:9)' _under_ '`tick`' '&lt;' 'back\slash'"""
"""As a person would write it in a shell."""


@pytest.fixture(scope="module")
def shown(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server with its pages, and the flow run on it that has had a job."""
    home = tmp_path_factory.mktemp("pages")
    prefect = Prefect(environment, home, {"PREFECT_SERVER_UI_ENABLED": "true", "DISPATCH_PAGES": PAGES})
    with prefect.server():
        made = prefect.run(environment.python, "-m", "prefect_collection.setup")
        assert made.returncode == 0, made.stderr
        ran = prefect.run(environment.python, "-m", "tests.prefect.steps", "shown", home)
        assert ran.returncode == 0, ran.stderr
        yield prefect.url.removesuffix("/api"), json.loads(ran.stdout.splitlines()[-1])["flow_run"]


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    expect.set_options(timeout=SECONDS * 1000)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1400, "height": 1300})
        page.set_default_timeout(SECONDS * 1000)
        yield page
        await browser.close()


async def shot(page: Page, name: str) -> None:
    if folder := os.environ.get("DISPATCH_TEST_SHOTS"):
        await page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.parametrize("pages", ["/v2", ""], ids=["new pages", "old pages"])
async def test_the_artifacts_of_a_job(shown: tuple[str, str], page: Page, pages: str) -> None:
    """From the flow run's page to each of its artifacts, as a person would go."""
    site, flow_run = shown
    key = f"prefect/{flow_run}/train"

    async def go_to_artifacts() -> None:
        await page.goto(f"{site}{pages}/runs/flow-run/{flow_run}")
        await page.get_by_text("Artifacts", exact=True).last.click()
        await expect(page.get_by_text("dispatch-train", exact=True).first).to_be_visible()

    async def go_to(artifact: str) -> None:
        await go_to_artifacts()
        await page.get_by_text(artifact, exact=True).last.click()
        await page.wait_for_url("**/artifacts/**")

    await go_to_artifacts()
    await expect(page.get_by_text(f"settled, succeeded: {key}").first).to_be_visible()
    await shot(page, f"list{pages.replace('/', '-')}")

    await go_to("dispatch-train")
    await expect(page.get_by_role("heading", name="train", exact=True)).to_be_visible()
    story = page.get_by_role("listitem")
    await expect(
        story.filter(has_text=re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d the job was created$"))
    ).to_be_visible()
    await expect(story.filter(has_text="the job has succeeded, by dispatch:default")).to_be_visible()
    await expect(page.get_by_role("cell", name=COMMAND, exact=True)).to_be_visible()
    await expect(page.get_by_text("settled, succeeded", exact=True)).to_be_visible()
    await shot(page, f"story{pages.replace('/', '-')}")

    await go_to("dispatch-train-progress")
    await expect(page.get_by_text("100").first).to_be_visible()
    await shot(page, f"progress{pages.replace('/', '-')}")

    await go_to("dispatch-train-link")
    link = page.get_by_role("link", name=key, exact=True)
    address = await link.get_attribute("href")
    assert address is not None
    assert address.startswith(f"{PAGES}/job?key=prefect%2F{flow_run}%2Ftrain&uid=")
    await shot(page, f"link{pages.replace('/', '-')}")
