"""What the status page asks its router for, over HTTP."""

import re
from typing import Any
from urllib.parse import urlencode

import pytest

from proto.prefixlb.v1.admin_pb2 import ExplainRequest
from proto.prefixlb.v1.inference_pb2 import ChatMessage
from router.ui.api import MAX_BRANCHES
from router.ui.site import MAX_ASKED_BYTES
from tests.fake_replica import FakeReplica, replicas
from tests.http_page import Page, ask
from tests.live_router import LiveRouter, live_router, prompt_of, request_of, until
from tests.tiny_tokenizer import tiny_codec

pytestmark = pytest.mark.redis

API = "/ui/api"
HOSTILE = "<img src=x onerror=alert(1)>\"'&r0"
SECRET = "the quick brown secret"


async def read(router: LiveRouter, name: str, **more: Any) -> Page:
    return await ask(router.running.metrics_port, f"{API}/{name}", **more)


async def test_every_answer_forbids_what_a_page_could_be_abused_for(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        paths = ("/ui", "/ui/", "/ui/main.js", "/ui/nothing", f"{API}/fleet", f"{API}/nothing")
        for path in paths:
            page = await ask(router.running.metrics_port, path)
            policy = page.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy and "http" not in policy
            assert page.headers["X-Content-Type-Options"] == "nosniff"
            assert page.headers["Cross-Origin-Resource-Policy"] == "same-origin"
            assert page.headers["Referrer-Policy"] == "no-referrer"
        assert (await read(router, "fleet")).headers["Cache-Control"] == "no-store"


async def test_the_page_loads_what_the_router_has_and_nothing_else(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        port = router.running.metrics_port
        moved = await ask(port, "/ui")
        assert (moved.status, moved.headers["Location"]) == (308, "ui/")
        index = (await ask(port, "/ui/")).body.decode()
        assert not re.search(r"<script(?![^>]*\bsrc=)|\bon\w+=|\bstyle=|https?:", index)
        seen, left = set(), set(re.findall(r'(?:src|href)="([^"#]+)"', index))
        while left:
            name = left.pop()
            seen.add(name)
            page = await ask(port, f"/ui/{name}")
            assert page.status == 200, name
            if name.endswith(".js"):
                assert page.headers["Content-Type"].startswith("text/javascript")
                assert b"innerHTML" not in page.body and b"eval(" not in page.body
                left |= set(re.findall(r'from "\./([\w.]+)"', page.body.decode())) - seen
        assert {"style.css", "icon.svg", "main.js", "dom.js", "tree.js"} <= seen
        for path in ("/ui/../admin.py", "/ui/%2e%2e/admin.py", "/ui/gate.py", "/ui/static/main.js"):
            assert (await ask(port, path)).status == 404, path


async def test_the_fleet_is_what_the_router_believes_of_it(redis_url: str) -> None:
    r0, hostile = FakeReplica("r0", redis_url), FakeReplica(HOSTILE, redis_url)
    refused = FakeReplica("stranger", redis_url, secret=b"another one")
    async with replicas(r0, hostile, refused), live_router(redis_url) as router:
        await router.synced(r0, hostile)
        prompt = prompt_of(40)
        for _ in range(2):
            await router.generate(prompt)
        await until(lambda: sum(m.state.tokens.requests for m in members(router)) == 2)
        router.parts.history.take()
        fleet = (await read(router, "fleet")).json
        assert fleet["router"]["policy"] == "cost" and fleet["router"]["index_bytes"] > 0
        by_id = {replica["id"]: replica for replica in fleet["replicas"]}
        assert by_id.keys() == {"r0", HOSTILE, "stranger"}
        assert by_id["stranger"]["state"] == "refused: hash_secret"
        assert not by_id["stranger"]["live"]
        for name in ("r0", HOSTILE):
            assert (by_id[name]["state"], by_id[name]["mirror"]) == ("live", "streaming")
            assert by_id[name]["breaker"] == "closed" and by_id[name]["lag_s"] >= 0
        totals = {
            name: sum(replica[name] for replica in by_id.values())
            for name in ("requests", "prompt_tokens", "delivered_tokens", "recent_prompt_tokens")
        }
        assert totals == {
            "requests": 2,
            "prompt_tokens": 80,
            "delivered_tokens": 39,
            "recent_prompt_tokens": 80,
        }

        history = (await read(router, "history")).json
        expected = {"prompt": 80, "requests": 2, "delivered": 39, "first_tokens": 2}
        assert {name: sum(history[name]) for name in expected} == expected
        (served,) = [name for name in ("r0", HOSTILE) if by_id[name]["requests"]]
        own = await ask_with(router, "history", replica=served)
        assert (sum(own.json["prompt"]), sum(own.json["delivered"])) == (80, 39)


def members(router: LiveRouter) -> list[Any]:
    return list(router.parts.fleet.members.values())


async def ask_with(router: LiveRouter, name: str, **query: object) -> Page:
    return await read(router, f"{name}?{urlencode(query)}")


async def test_a_mirror_is_browsed_node_by_node_and_page_by_page(redis_url: str) -> None:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with replicas(r0, r1), live_router(redis_url) as router:
        trunk = prompt_of(40)
        branches = [[*trunk, *prompt_of(20, seed)] for seed in range(1, 8)]
        for branch in branches:
            await r0.store(branch)
        await r0.store(prompt_of(12, 99))
        await r1.store(trunk)
        await router.synced(r0, r1)

        top = (await ask_with(router, "tree", replica="r0")).json
        assert (top["block_size"], top["blocks"], top["next"]) == (4, 10 + 7 * 5 + 3, None)
        by_blocks = {each["blocks"]: each for each in top["branches"]}
        assert by_blocks.keys() == {10, 3}
        assert by_blocks[10]["first"] == f"{r0.chain(trunk)[0]:016x}"
        assert (by_blocks[10]["replicas"], by_blocks[3]["replicas"]) == (2, 1)
        assert by_blocks[10]["branches_below"] == 7 and by_blocks[10]["blocks_below"] == 35
        assert by_blocks[10]["used_within_s"] < 60 and top["reaches_back_s"] > 0
        # Nothing here is made of tokens but hashes.
        assert by_blocks[3].keys() == {
            *("first", "blocks", "replicas", "detached", "used_within_s"),
            *("branches_below", "blocks_below", "all_below"),
        }

        seen, start = [], {}
        while True:
            query = {"replica": "r0", "below": by_blocks[10]["first"], "limit": 3, **start}
            page = (await ask_with(router, "tree", **query)).json
            assert len(page["branches"]) <= 3
            seen += [each["first"] for each in page["branches"]]
            if page["next"] is None:
                break
            start = {"start": page["next"]}
        assert seen == [f"{r0.chain(branch)[10]:016x}" for branch in reversed(branches)]

        own = (await ask_with(router, "tree", replica="r1")).json
        assert [each["branches_below"] for each in own["branches"]] == [0]


async def test_what_is_wrong_with_a_look_into_a_mirror_is_said(redis_url: str) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await r0.store(prompt_of(40))
        await router.synced(r0)
        for query, status, said in (
            ({}, 404, "no replica '' is in the fleet"),
            ({"replica": "nobody"}, 404, "no replica 'nobody'"),
            ({"replica": "r0", "limit": 0}, 400, "limit: expected 1 to 200, got '0'"),
            ({"replica": "r0", "limit": MAX_BRANCHES + 1}, 400, "limit: expected 1 to 200"),
            ({"replica": "r0", "limit": "many"}, 400, "got 'many'"),
            ({"replica": "r0", "below": "xyz"}, 400, "below: expected up to 16 hexadecimal digits"),
            ({"replica": "r0", "below": "0" * 17}, 400, "below: expected up to 16"),
            ({"replica": "r0", "below": "ab"}, 404, "begins with block 00000000000000ab"),
            ({"replica": "r0", "start": "-1"}, 400, "start: expected"),
            ({"replica": "r0", "befow": "ab"}, 400, "unknown field 'befow', expected one of"),
            ({f"q{n}": n for n in range(40)}, 400, "Max number of fields exceeded"),
        ):
            page = await ask_with(router, "tree", **query)
            assert (page.status, said in page.error) == (status, True), (query, page.body)
        assert (await ask_with(router, "history", replica="nobody")).status == 404
        assert (await ask_with(router, "fleet", limit=1)).status == 400


async def test_explain_says_what_the_command_says(redis_url: str) -> None:
    codec = tiny_codec()
    r0, r1 = (FakeReplica(f"r{i}", redis_url, codec=codec) for i in range(2))
    async with replicas(r0, r1), live_router(redis_url) as router:
        prompt = prompt_of(40)
        await r0.store(prompt[:24])
        await router.synced(r0, r1)
        await until(lambda: router.has_codecs(r0, r1))
        page = await read(router, "explain", post={"tokens": prompt, "model": "tiny"})
        explained = await router.admin.Explain(ExplainRequest(request=request_of(prompt)))
        assert page.json["pick"] == {
            "replica_id": "r0",
            "address": r0.address,
            "prompt_tokens": 40,
            "matched_tokens": 24,
            "reason": "prefix",
        }
        assert page.json["pick"]["replica_id"] == explained.pick.replica_id
        matched = [each["matched_tokens"] for each in page.json["candidates"]]
        assert matched == [each.matched_tokens for each in explained.candidates] == [24, 0]
        costs = [each["cost_tokens"] for each in page.json["candidates"]]
        assert costs == [each.cost_tokens for each in explained.candidates]

        as_text = await read(router, "explain", post={"text": SECRET})
        as_chat = await read(router, "explain", post={"text": SECRET, "chat": True})
        tokens = [page.json["pick"]["prompt_tokens"] for page in (as_text, as_chat)]
        assert tokens == [codec_length(codec, SECRET), codec_length(codec, SECRET, chat=True)]
        assert router.parts.router.in_flight("r0") == 0


def codec_length(codec: Any, text: str, *, chat: bool = False) -> int:
    messages = [ChatMessage(role="user", content=text)]
    return len(codec.encode_chat(messages) if chat else codec.encode(text))


async def test_a_prompt_that_cannot_be_explained_is_refused_by_what_is_wrong(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    r0 = FakeReplica("r0", redis_url)
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        posts: list[tuple[Any, int, str]] = [
            ({}, 400, "expected either text or tokens"),
            ({"text": SECRET, "tokens": [1]}, 400, "expected either text or tokens"),
            ({"text": 5}, 400, "text: expected a string, got int"),
            ({"tokens": "1, 2"}, 400, "tokens: expected a list of whole numbers"),
            ({"tokens": [1, True]}, 400, "tokens: expected a list of whole numbers"),
            ({"tokens": [1, 2.5]}, 400, "tokens: expected a list of whole numbers"),
            ({"tokens": [-1]}, 400, "not a request"),
            ({"tokens": []}, 400, "prompt is empty"),
            ({"tokens": [1], "chat": True}, 400, "chat goes with text"),
            ({"text": SECRET, "chat": "yes"}, 400, "chat: expected true or false"),
            ({"tokens": [1], "model": 3}, 400, "model: expected a string, got int"),
            ({"tokens": [1], "model": "other"}, 404, "unknown model 'other'"),
            ({"tokens": [1], "max_tokens": 3}, 400, "unknown field 'max_tokens'"),
            ([1], 400, "expected a JSON object, got list"),
            (b"{" + SECRET.encode(), 400, "the body is no JSON"),
            (b"[" * 100_000, 400, "the body is no JSON"),
            (b"", 400, "the body is no JSON"),
        ]
        for post, status, said in posts:
            page = await read(router, "explain", post=post)
            assert (page.status, said in page.error) == (status, True), (post, page.body)
            assert SECRET not in page.error
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await read(router, "explain", post=b"text=x", headers=form)).status == 400
        elsewhere = {"Origin": "http://evil.example"}
        page = await read(router, "explain", post={"tokens": [1]}, headers=elsewhere)
        assert (page.status, "another site" in page.error) == (403, True)
        assert (await read(router, "explain")).status == 405
        assert (await read(router, "fleet", post={})).status == 405
        too_long = {"Content-Length": str(MAX_ASKED_BYTES + 1)}
        page = await read(router, "explain", post=b"", headers=too_long)
        assert (page.status, f"at most {MAX_ASKED_BYTES} " in page.error) == (413, True)
        for length in ("-1", "x", "1e3"):
            page = await read(router, "explain", post=b"", headers={"Content-Length": length})
            assert (page.status, "Content-Length" in page.error) == (411, True)
        assert (await ask(router.running.metrics_port, "/metrics", post={})).status == 405
    assert SECRET not in caplog.text


async def test_with_nobody_there_the_page_still_shows_that(redis_url: str) -> None:
    async with live_router(redis_url) as router:
        assert (await read(router, "fleet")).json["replicas"] == []
        page = await read(router, "explain", post={"tokens": [1]})
        assert (page.status, page.error) == (503, "no replica is there")
