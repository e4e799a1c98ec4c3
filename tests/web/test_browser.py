"""The pages in a real browser: what a person clicks is in the record, and the page says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.web.jobs import HOSTILE, Floor, is_running
from tests.web.serving import ACTOR, VIEWER

CHROMIUM = "/usr/bin/chromium"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        await launched.close()


async def page_for(browser: Browser, user: tuple[str, str], **options: Any) -> tuple[Page, list[str]]:
    """A page of somebody's own, and what went wrong in it: scripts that were refused, errors, dialogs."""
    context = await browser.new_context(http_credentials={"username": user[0], "password": user[1]}, **options)
    page, wrong = await context.new_page(), list[str]()
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    return page, wrong


async def test_hold_why_not_running_and_cancel(floor: Floor, site: str, browser: Browser) -> None:
    await floor.submitted("train/one")
    page, wrong = await page_for(browser, ACTOR)
    await page.goto(site)
    await page.get_by_role("link", name="train/one").click()
    await expect(page.get_by_role("heading", name="Why is it not running?")).to_be_visible()
    await expect(page.locator("#why")).to_contain_text("nobody supervises it")

    await page.get_by_label("Hold, so that it does not start").fill("the disk is full")
    await page.get_by_role("button", name="Hold").click()
    await expect(page.get_by_role("status").first).to_contain_text("the disk is full")
    (hold,) = (await floor.store.read("train/one")).holds
    assert (hold.reason, hold.asked_by, hold.lifted) == ("the disk is full", "person ada", False)
    await expect(page.locator(".headline")).to_contain_text("It is held by person ada: the disk is full.")
    await expect(page.locator("#why")).to_contain_text("hold 1 by person ada: the disk is full")

    record = await floor.until("train/one", lambda record: bool(record.objects))
    await page.get_by_role("link", name="dispatch").click()
    await expect(page.get_by_role("row", name="train/one")).to_contain_text("held: the disk is full (person ada)")
    await page.get_by_role("link", name="train/one").click()
    await expect(page.locator("#why")).to_contain_text(f"the gate of {record.objects[0].id} was shut")

    await page.get_by_role("link", name="Cancel…").click()
    await expect(page.get_by_role("heading", name="Cancel train/one?")).to_be_visible()
    assert (await floor.store.read("train/one")).outcome is None
    await page.get_by_label("Why").fill("wrong data")
    await page.get_by_role("button", name="Cancel the job").click()
    await expect(page.locator(".headline")).to_contain_text("It is cancelled by person ada: wrong data")
    outcome = (await floor.store.read("train/one")).outcome
    assert outcome is not None
    assert (outcome.result, outcome.by, outcome.message) == ("cancelled", "person ada", "wrong data")
    assert wrong == []


async def test_it_works_without_a_script_by_keyboard_and_on_a_small_screen(
    floor: Floor, site: str, browser: Browser
) -> None:
    await floor.submitted("train/two")
    options: dict[str, Any] = {"java_script_enabled": False, "viewport": {"width": 400, "height": 800}}
    page, wrong = await page_for(browser, ACTOR, **options)
    await page.goto(f"{site}/job?key=train/two")
    await page.get_by_label("Hold, so that it does not start").focus()
    await page.keyboard.type("by keyboard")
    await page.keyboard.press("Enter")
    await expect(page.locator(".headline")).to_contain_text("by keyboard")
    assert [hold.reason for hold in (await floor.store.read("train/two")).holds] == ["by keyboard"]
    assert wrong == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_overflows_and_everything_can_be_read(
    floor: Floor, site: str, browser: Browser, scheme: str
) -> None:
    await floor.submitted(HOSTILE)
    await floor.client.hold(HOSTILE, reason="<script>alert(1)</script>" + "x" * 300)
    await floor.until(HOSTILE, lambda record: bool(record.objects))
    page, wrong = await page_for(browser, ACTOR, color_scheme=scheme, viewport={"width": 400, "height": 800})
    for go in ("list", "job"):
        if go == "list":
            await page.goto(site)
        else:
            await page.locator("td.name a").click()
            await expect(page.locator(".headline")).to_be_visible()
            await page.wait_for_load_state("load")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 400, go
        pale = await page.evaluate(CONTRAST)
        assert pale == [], go
        assert await page.evaluate(UNLABELLED) == [], go
    assert wrong == []


async def test_a_page_that_is_looked_at_keeps_up(floor: Floor, site: str, browser: Browser) -> None:
    await floor.submitted("train/three")
    page, wrong = await page_for(browser, VIEWER)
    await page.clock.install()
    await page.goto(f"{site}/job?key=train/three")
    await expect(page.locator(".badge").first).to_have_text("submitted")
    await floor.until("train/three", is_running)
    await page.clock.run_for(11_000)
    await expect(page.locator(".badge").first).to_have_text("running")
    assert await page.get_by_role("button").count() == 0
    assert wrong == []


UNLABELLED = """() => [...document.querySelectorAll('input:not([type=hidden]), select, button, a')]
  .filter((e) => !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.textContent.trim())
  .map((e) => e.outerHTML)"""
"""What a person who hears the page could not tell apart."""

CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [r, g, b].map((v) => linear(v / 255));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const pale = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) pale.push(element.className + ': ' + element.textContent.trim().slice(0, 40));
  }
  return pale;
}"""
"""Texts whose contrast is below 4.5 to 1."""
