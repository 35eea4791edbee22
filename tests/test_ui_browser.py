"""The status page as people use it, in a real browser."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from proto.prefixlb.v1.delta_pb2 import Lease
from tests.chromium import CONTRASTS, opened
from tests.fake_replica import FakeReplica, replicas
from tests.live_router import LiveRouter, live_router, prompt_of, until
from tests.test_tokens import CALLER, STRANGER, token_file
from tests.test_ui_api import HOSTILE
from tests.tiny_tokenizer import tiny_codec

pytestmark = pytest.mark.redis

BRANCHES = 60
"""More than a page of them."""

TEXT = "Name three rivers."

PERIOD_MS = 5000
"""Between two looks of the page."""

READABLE = 4.5
"""Contrast of text with what is behind it, at least (WCAG 2.1, AA)."""


@asynccontextmanager
async def a_fleet_at_work(redis_url: str) -> AsyncIterator[tuple[LiveRouter, str, FakeReplica]]:
    """Two replicas, one with a hostile name, and some history; the page's URL."""
    codec = tiny_codec()
    r0, hostile = (FakeReplica(name, redis_url, codec=codec) for name in ("r0", HOSTILE))
    async with replicas(r0, hostile), live_router(redis_url) as router:
        trunk = prompt_of(40)
        for seed in range(1, BRANCHES + 1):
            await r0.store([*trunk, *prompt_of(8, seed)])
        await hostile.store(trunk)
        await router.synced(r0, hostile)
        await until(lambda: router.has_codecs(r0, hostile))
        for seed in range(1, 4):
            await router.generate([*trunk, *prompt_of(8, seed), *prompt_of(8, 100 + seed)])
            router.parts.history.take()
        yield router, f"http://127.0.0.1:{router.running.metrics_port}/ui", r0


async def test_one_sees_the_fleet_and_goes_through_a_mirror_by_keyboard_alone(
    redis_url: str,
) -> None:
    async with a_fleet_at_work(redis_url) as (_, url, r0), opened(url) as page:
        row = page.get_by_role("row", name="r0").filter(has_text=r0.address)
        await expect(row).to_contain_text("live")
        await expect(row).to_contain_text("streaming")
        await expect(page.locator("#now")).to_contain_text("2 of 2")
        await expect(page.get_by_role("img", name="Prompt tokens that were cached")).to_be_visible()

        await page.get_by_label("Replica", exact=True).select_option("r0")
        await expect(page.locator("#tree-size")).to_contain_text("blocks of 4 tokens")
        await page.get_by_role("button", name="Look again").focus()
        await page.keyboard.press("Tab")
        first = f"{r0.chain(prompt_of(40))[0]:016x}"[:8]
        assert await focused(page) == first
        await page.keyboard.press("ArrowRight")
        below = page.locator("#tree [aria-level='2']:not(.more)")
        await expect(below).to_have_count(50)
        assert await page.locator("#tree > [role=treeitem]").get_attribute("aria-expanded") == (
            "true"
        )
        await page.keyboard.press("ArrowRight")
        newest = f"{r0.chain([*prompt_of(40), *prompt_of(8, BRANCHES)])[10]:016x}"[:8]
        assert await focused(page) != first
        assert newest in await texts(page)
        await page.keyboard.press("End")
        assert await focused(page) == "More …"
        await page.keyboard.press("Enter")
        await expect(below).to_have_count(BRANCHES)
        assert len(await focused(page)) == 8, "the first of the new ones"
        await page.keyboard.press("Home")
        await page.keyboard.press("ArrowLeft")
        await expect(below).to_have_count(0)
        await page.keyboard.press("Shift+Tab")
        await expect(page.get_by_role("button", name="Look again")).to_be_focused()


async def focused(page: Page) -> str:
    """The name of the node that has the focus."""
    node = "document.activeElement"
    named = f"({node}.querySelector('code') ?? {node}).textContent"
    return str(await page.evaluate(named))


async def texts(page: Page) -> list[str]:
    return await page.locator("#tree code").all_text_contents()


async def test_a_node_that_went_meanwhile_is_told_and_looked_at_again(redis_url: str) -> None:
    async with a_fleet_at_work(redis_url) as (router, url, r0), opened(url) as page:
        await page.get_by_label("Replica", exact=True).select_option("r0")
        node = page.locator("#tree > [aria-expanded=false]")
        await expect(node).to_have_count(1)
        await r0.flush()
        await until(lambda: router.parts.router.mirror("r0").count == 0)
        await node.click()
        await expect(page.locator("#tree .notice")).to_contain_text("Look again")
        await page.get_by_role("button", name="Look again").click()
        await expect(page.locator("#tree-size")).to_contain_text("Nothing is cached there")


async def test_the_form_explains_text_and_tokens_and_says_what_is_wrong(redis_url: str) -> None:
    async with a_fleet_at_work(redis_url) as (_, url, _), opened(url) as page:
        prompt, verdict = page.get_by_label("Prompt", exact=True), page.locator("#verdict")
        await page.get_by_label("token ids").check()
        await prompt.fill(", ".join(map(str, [*prompt_of(40), *prompt_of(8, 5), 7])))
        await page.get_by_role("button", name="Explain").click()
        await expect(verdict).to_have_text("r0 (prefix): 48 of 49 prompt tokens are cached there.")
        table = page.get_by_role("table", name="What each replica would cost")
        await expect(table.get_by_role("row", name="r0 picked")).to_contain_text("48")
        await expect(table.get_by_role("rowheader")).to_have_count(2)

        await page.get_by_label("a chat message").check()
        await prompt.fill(TEXT)
        await prompt.press("Tab")
        await page.get_by_role("button", name="Explain").press("Enter")
        await expect(verdict).to_contain_text("(cold): 0 of")

        await page.get_by_label("token ids").check()
        await page.get_by_role("button", name="Explain").click()
        await expect(verdict).to_have_text('expected whole numbers such as 1, 15, 9, got "Name"')
        await prompt.fill("4294967296")
        await page.get_by_role("button", name="Explain").click()
        await expect(verdict).to_contain_text("not a request")


class Detained:
    """Requests of a page that stand still until they are let go."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    async def take(self, route: Route) -> None:
        self.routes.append(route)

    async def let_go(self, page: Page, number: int) -> None:
        """Until the page has the answer, and has drawn what it makes of it."""
        async with page.expect_event("requestfinished"):
            await self.routes[number].continue_()
        await page.evaluate("() => new Promise((drawn) => setTimeout(drawn, 100))")


async def test_what_is_asked_twice_before_the_answer_comes_is_shown_once(redis_url: str) -> None:
    async with a_fleet_at_work(redis_url) as (_, url, _), opened(url) as page:
        await page.get_by_label("Replica", exact=True).select_option("r0")
        node, detained = page.locator("#tree > [role=treeitem]"), Detained()
        await expect(node).to_have_count(1)
        await page.get_by_role("button", name="Pause").click()
        await page.route("**/api/tree?*", detained.take)
        for _ in range(2):
            await page.get_by_role("button", name="Look again").click()
        await until(lambda: len(detained.routes) == 2)
        for number in (1, 0):
            await detained.let_go(page, number)
        assert await node.count() == 1

        await page.unroute("**/api/tree?*")
        await node.click()
        below, detained = page.locator("#tree [aria-level='2']:not(.more)"), Detained()
        await expect(below).to_have_count(50)
        await page.route("**/api/tree?*", detained.take)
        for _ in range(2):
            await page.locator("#tree .more").click()
        await until(lambda: len(detained.routes) == 2)
        for number in (0, 1):
            await detained.let_go(page, number)
        assert await below.count() == BRANCHES


async def test_the_answer_to_an_older_prompt_does_not_replace_a_newer_ones(redis_url: str) -> None:
    async with a_fleet_at_work(redis_url) as (_, url, _), opened(url) as page:
        await expect(page.locator("#fresh")).to_contain_text("As of")
        await page.get_by_role("button", name="Pause").click()
        detained, verdict = Detained(), page.locator("#verdict")
        await page.route("**/api/explain*", detained.take)
        await page.get_by_label("token ids").check()
        for prompt in ("1 2 3", "1 2 3 4 5"):
            await page.get_by_label("Prompt", exact=True).fill(prompt)
            await page.get_by_role("button", name="Explain").click()
        await until(lambda: len(detained.routes) == 2)
        for number in (1, 0):
            await detained.let_go(page, number)
            await expect(verdict).to_contain_text("of 5 prompt tokens")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_all_is_readable_by_day_by_night_and_on_a_phone(
    redis_url: str, scheme: str, tmp_path: Path
) -> None:
    async with (
        a_fleet_at_work(redis_url) as (_, url, _),
        opened(url, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as page,
    ):
        await page.get_by_label("Prompt", exact=True).fill(TEXT)
        await page.get_by_role("button", name="Explain").click()
        await expect(page.get_by_role("table", name="What each replica")).to_be_visible()
        await page.locator("#tree > [role=treeitem]").first.click()
        await page.locator("summary").click()
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(247, 248, 249)", "dark": "rgb(18, 22, 26)"}[scheme]
        for width in (1280, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            await page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
            contrasts = await page.evaluate(CONTRASTS)
            assert len(contrasts) > 60
            assert contrasts[0][0] >= READABLE, contrasts[:3]
            wide = await page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} pixels of {width}"
            smallest = await page.evaluate(
                "Math.min(...[...document.querySelectorAll('body *')].filter((e) => e.innerText)"
                ".map((e) => parseFloat(getComputedStyle(e).fontSize)))"
            )
            assert smallest >= 11


async def test_a_hostile_name_is_text_wherever_it_is_shown(redis_url: str) -> None:
    async with a_fleet_at_work(redis_url) as (router, url, _), opened(url) as page:
        router.parts.fleet.departures.add(Lease(replica_id=f"{HOSTILE}9"), "it is no longer found")
        left = page.locator("#fleet-notes").filter(has_text=f"{HOSTILE}9 left ")
        await expect(left).to_be_visible(timeout=2 * PERIOD_MS)
        await expect(page.locator("#fleet tbody b").filter(has_text=HOSTILE)).to_be_visible()
        await page.get_by_label("Replica", exact=True).select_option(HOSTILE)
        await expect(page.locator("#tree-size")).to_contain_text("10 blocks of 4 tokens")
        await page.get_by_label("token ids").check()
        await page.get_by_label("Prompt", exact=True).fill("1 2 3")
        await page.get_by_role("button", name="Explain").click()
        await expect(page.locator("#candidates b").filter(has_text=HOSTILE)).to_be_visible()
        assert await page.locator("main img, script:not([src])").count() == 0


async def test_beyond_this_machine_one_signs_in_by_token_and_out_again(
    redis_url: str, tmp_path: Path
) -> None:
    tokens = token_file(tmp_path, CALLER)
    r0 = FakeReplica("r0", redis_url)
    async with (
        replicas(r0),
        live_router(redis_url, metrics_host="0.0.0.0", ui_token_file=tokens) as router,
        opened(f"http://{own_address()}:{router.running.metrics_port}/ui") as page,
    ):
        await router.synced(r0)
        token = page.get_by_label("Token of the status page")
        await expect(token).to_be_focused()
        await expect(page.locator("#fleet")).to_be_hidden()
        await token.fill(STRANGER)
        await token.press("Enter")
        await expect(page.get_by_role("alert")).to_have_text("this token is not known")
        await token.fill(CALLER)
        await token.press("Enter")
        await expect(page.locator("#fleet tbody")).to_contain_text("r0")
        (cookie,) = await page.context.cookies()
        assert cookie["httpOnly"] and cookie["sameSite"] == "Strict" and cookie["path"] == "/ui"
        assert CALLER not in cookie["value"]
        await page.reload()
        await expect(page.locator("#fleet tbody")).to_contain_text("r0")
        await page.get_by_label("token ids").check()
        await page.get_by_label("Prompt", exact=True).fill("1 2 3")
        await page.get_by_role("button", name="Explain").click()
        await expect(page.locator("#candidates table")).to_be_visible()
        await page.get_by_role("button", name="Sign out").click()
        await expect(token).to_be_visible()
        for left in ("#verdict", "#candidates"):
            await expect(page.locator(left)).to_be_empty()
        await expect(page.locator("#prompt")).to_have_value("")
        assert await page.context.cookies() == []


def own_address() -> str:
    """An address of this machine that is no loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


async def test_it_goes_on_by_itself_rests_when_told_and_says_when_nobody_answers(
    redis_url: str,
) -> None:
    async with a_fleet_at_work(redis_url) as (_, url, _), opened("about:blank") as page:
        await page.clock.install()
        await page.goto(url)
        fresh, asked = page.locator("#fresh"), list[str]()
        page.on("request", lambda request: asked.append(request.url.partition("/api/")[2]))
        await expect(fresh).to_contain_text("As of")
        await until(lambda: any(url.startswith("tree") for url in asked))
        asked.clear()
        await page.clock.fast_forward(PERIOD_MS)
        await until(lambda: sorted(asked) == ["fleet?", "history?"])
        await page.get_by_role("button", name="Pause").click()
        await expect(fresh).to_contain_text("Paused at")
        asked.clear()
        await page.clock.fast_forward(10 * PERIOD_MS)
        await asyncio.sleep(0.3)
        assert asked == []
        await page.route("**/api/**", lambda route: route.abort())
        await page.get_by_role("button", name="Go on").click()
        await expect(fresh).to_contain_text("The router does not answer since")
        await page.unroute("**/api/**")
        await page.clock.fast_forward(PERIOD_MS)
        await expect(fresh).to_contain_text("As of")
