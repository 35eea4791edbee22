"""The README's pictures of the status page: a real fleet whose assistants are talked to meanwhile.

python -m tests.ui_pictures [--minutes N] [--into DIRECTORY]
"""

import argparse
import asyncio
import sys
from pathlib import Path

from playwright.async_api import expect

from router.cli import console
from router.cli.cluster import LocalCluster
from router.cli.demo import CONCURRENCY
from router.cli.demo.play import play
from router.cli.demo.screen import Screen
from router.cli.demo.workload import schedule
from router.cli.log_dir import log_dir
from router.cli.model import fetch_model
from tests.chromium import opened

PICTURES = Path(__file__).parent.parent / "deploy"
SIZE = {"width": 1240, "height": 1180}
MAX_BYTES = 150_000
SLOTS = 2600
QUESTION = "How do I count rows in a table?"


async def talk(router: str) -> None:
    """The demo's conversations, over and over."""
    while True:
        with Screen(console.stderr(), brief=True) as screen:
            await play(router, schedule(), concurrency=CONCURRENCY, screen=screen)


async def take(url: str, scheme: str, path: Path) -> None:
    """What one sees first, with a branch of a mirror opened."""
    async with opened(url, color_scheme=scheme, viewport=SIZE) as page:
        await page.locator("#tree > [aria-expanded=false]").first.click()
        await expect(page.locator("#tree [aria-level='2']").first).to_be_visible()
        await page.get_by_label("Prompt", exact=True).fill(QUESTION)
        await page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        size = len(await page.screenshot(path=path))
    if size > MAX_BYTES:
        raise ValueError(f"{path} has {size} bytes, at most {MAX_BYTES} are good for a README")
    print(f"{path}: {size} bytes")


async def pictures(cluster: LocalCluster, minutes: float, into: Path) -> None:
    talking = asyncio.create_task(talk(cluster.router.address))
    try:
        await asyncio.wait([talking], timeout=60 * minutes)
        for scheme in ("light", "dark"):
            await take(cluster.status_page_url, scheme, into / f"status-page-{scheme}.png")
    finally:
        talking.cancel()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=6.0, help="of load before them")
    parser.add_argument("--into", type=Path, default=PICTURES)
    args = parser.parse_args()
    with (
        log_dir() as logs,
        LocalCluster(
            model=fetch_model(),
            state_dir=logs.path,
            replica_flags=["--slots", str(SLOTS)],
        ) as cluster,
    ):
        asyncio.run(pictures(cluster, args.minutes, args.into))
    return 0


if __name__ == "__main__":
    sys.exit(main())
