"""A headless Chromium for the time of a test, and what it had to complain about."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Page, async_playwright

CONTRASTS = """
() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], below) =>
    [...[r, g, b].map((part, n) => part * a + below[n] * (1 - a)), 1];
  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
  };
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const contrasts = [];
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].filter((node) => node.nodeType === 3);
    const own = texts.some((node) => node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest(".skip, noscript")) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const colour = over(parse(element instanceof SVGElement ? style.fill : style.color), below);
    const [darker, lighter] = [luminance(colour), luminance(below)].sort((a, b) => a - b);
    contrasts.push([(lighter + 0.05) / (darker + 0.05), element.textContent.slice(0, 40)]);
  }
  return contrasts.sort((a, b) => a[0] - b[0]);
}
"""
"""Of every text that is seen with what is behind it, by WCAG 2.1; the worst first."""


def program() -> str:
    """Path of Chromium, which no Python package brings."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.fail("no chromium in PATH. Debian, Ubuntu: apt-get install chromium")


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program())
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def opened(url: str, **context: Any) -> AsyncIterator[Page]:
    """A page; afterwards it must have had nothing to complain about: no error, no broken rule of
    its policy, no dialog.
    """
    complaints: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page(**context)
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: _note(complaints, said.type, said.text))
        page.on("dialog", lambda dialog: complaints.append(f"dialog {dialog.message}"))
        await page.goto(url)
        yield page
    assert not complaints, complaints


def _note(complaints: list[str], kind: str, text: str) -> None:
    # That an answer was 401, or did not come, is told by the page itself.
    if kind == "error" and not text.startswith("Failed to load resource"):
        complaints.append(text)
