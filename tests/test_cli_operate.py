"""`prefixlb audit` and `prefixlb explain` as operators run them: real processes, a live router.

A scripted one where mirrors differ, which a live one's do not.
"""

import json
from collections.abc import AsyncIterator

import pytest

from proto.prefixlb.v1 import admin_pb2
from proto.prefixlb.v1.inference_pb2 import ChatMessage
from tests.fake_replica import FakeReplica, replicas
from tests.fake_router import fake_router
from tests.http_page import ask
from tests.live_router import LiveRouter, live_router, prompt_of, until
from tests.test_cli import prefixlb
from tests.tiny_tokenizer import tiny_codec

pytestmark = pytest.mark.redis

PROMPT = prompt_of(40)
IDS = ",".join(map(str, PROMPT))


@pytest.fixture
async def router(redis_url: str) -> AsyncIterator[LiveRouter]:
    r0, r1 = FakeReplica("r0", redis_url), FakeReplica("r1", redis_url)
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r0.store(PROMPT)
        await router.synced(r0, r1)
        yield router


def address(router: LiveRouter) -> str:
    return f"127.0.0.1:{router.running.port}"


async def test_audit_of_equal_mirrors_ends_with_success(router: LiveRouter) -> None:
    done = await prefixlb("audit", router=address(router))
    assert (done.code, done.err) == (0, "")
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["replica", "mirror"],
        ["r0", "equal"],
        ["r1", "equal"],
    ]


async def test_audit_in_json_is_one_object_a_replica(router: LiveRouter) -> None:
    done = await prefixlb("audit", "r0", "--json", router=address(router))
    [audited] = map(json.loads, done.out.splitlines())
    assert done.code == 0
    assert (audited["replica_id"], audited["outcome"]) == ("r0", "equal")
    assert audited["tree_blocks"] == audited["mirror_blocks"] == 10
    assert (audited["missing_hashes"], audited["extra"]) == ([], 0)


async def test_audit_of_a_mirror_that_differs_fails_and_says_where() -> None:
    async with fake_router() as router:
        router.audited = [
            admin_pb2.AuditResponse(replica_id="r0", outcome=admin_pb2.AUDIT_OUTCOME_EQUAL),
            admin_pb2.AuditResponse(
                replica_id="r1",
                outcome=admin_pb2.AUDIT_OUTCOME_DIFFERENT,
                missing=250,
                missing_hashes=range(1, 101),
                extra=2,
                extra_hashes=[2**64 - 1, 7],
            ),
        ]
        table = await prefixlb("audit", router=router.address)
        read = await prefixlb("audit", "--json", router=router.address)
    assert (table.code, read.code) == (1, 1)
    row = table.out.splitlines()[-1]
    assert row.split()[:8] == ["r1", "different", "0", "0", "0", "0", "250", "2"]
    assert row.endswith(
        "missing 0000000000000001, 0000000000000002 and 248 more; "
        "extra ffffffffffffffff, 0000000000000007"
    )
    equal, different = map(json.loads, read.out.splitlines())
    assert (equal["outcome"], equal["missing_hashes"]) == ("equal", [])
    assert (different["outcome"], different["missing"]) == ("different", 250)
    assert different["missing_hashes"] == [f"{each:016x}" for each in range(1, 101)]
    assert different["extra_hashes"] == ["ffffffffffffffff", "0000000000000007"]


async def test_audit_shows_no_figures_where_nothing_was_compared_and_whom_it_misses() -> None:
    async with fake_router() as router:
        router.audited = [
            admin_pb2.AuditResponse(
                replica_id="r0", outcome=admin_pb2.AUDIT_OUTCOME_UNDECIDED, detail="no answer"
            )
        ]
        router.departures = [admin_pb2.Departure(replica_id="r1", why="it is silent", ago_s=3)]
        done = await prefixlb("audit", router=router.address)
    row, left = done.out.splitlines()[-2:]
    assert row.split() == ["r0", "undecided", *6 * "-", "no", "answer"]
    assert (done.code, left.rstrip()) == (1, "r1 left 3 s ago: it is silent")


async def test_audit_of_an_unknown_replica_fails_and_names_those_there_are(
    router: LiveRouter,
) -> None:
    done = await prefixlb("audit", "r7", router=address(router))
    assert (done.code, done.out) == (1, "")
    assert "error: unknown replica r7; in the fleet: r0, r1" in done.err


async def test_explain_shows_every_replica_and_marks_the_pick(router: LiveRouter) -> None:
    done = await prefixlb("explain", "--ids", IDS, router=address(router))
    assert done.code == 0
    _, first, second, verdict = done.out.splitlines()
    assert first.split()[:3] == [">", "r0", "40"]
    assert second.split()[:2] == ["r1", "0"]
    assert verdict == "r0 (prefix): 39 of 40 prompt tokens are cached there"


async def test_explain_in_json_has_pick_and_candidates(router: LiveRouter) -> None:
    done = await prefixlb("explain", "--ids", IDS, "--json", router=address(router))
    explained = json.loads(done.out)
    assert explained["pick"]["replica_id"] == "r0" and explained["pick"]["reason"] == "prefix"
    r0, r1 = explained["candidates"]
    assert (r0["replica_id"], r0["matched_tokens"], r0["eligible"]) == ("r0", 40, True)
    assert r0["cost_tokens"] < r1["cost_tokens"]


async def test_explain_takes_text_a_chat_message_or_what_a_pipe_brings(redis_url: str) -> None:
    codec, text = tiny_codec(), "Grüße: name three rivers.\n"
    chat = codec.encode_chat([ChatMessage(role="user", content=text)])
    r0, r1 = (FakeReplica(each, redis_url, codec=codec) for each in ("r0", "r1"))
    async with replicas(r0, r1), live_router(redis_url) as router:
        await r0.store(codec.encode(text))
        await r1.store(chat)
        await router.synced(r0, r1)
        await until(lambda: router.has_codecs(r0, r1), what="tokenizers are known")

        async def pick(*flags: str, stdin: str = "") -> tuple[str, int]:
            done = await prefixlb("explain", *flags, "--json", router=address(router), stdin=stdin)
            picked = json.loads(done.out)["pick"]
            return picked["replica_id"], picked["prompt_tokens"]

        assert await pick(text) == await pick("-", stdin=text) == ("r0", len(codec.encode(text)))
        assert await pick("--chat", text) == ("r1", len(chat))
        assert await pick("-", "--chat", stdin=text) == ("r1", len(chat))


async def test_explain_of_a_prompt_that_would_be_refused_fails_and_says_why(
    redis_url: str,
) -> None:
    r0 = FakeReplica("r0", redis_url)
    r0.context_length, r0.load.total_slots = 40, 1000
    async with replicas(r0), live_router(redis_url) as router:
        await router.synced(r0)
        done = await prefixlb("explain", "--ids", IDS, router=address(router))
        page = await ask(router.running.metrics_port, "/ui/api/explain", post={"tokens": PROMPT})
    why = "the prompt has 40 tokens, the model's context of 40 has room for 39 beside the answer"
    assert done.code == 1
    assert done.out.splitlines()[-1] == f"r0 would refuse it: {why}"
    assert page.json["refusal"] == why


async def test_explain_keeps_namespaces_apart(router: LiveRouter) -> None:
    done = await prefixlb(
        *("explain", "--ids", IDS, "--cache-salt", "other", "--json"), router=address(router)
    )
    assert [each["matched_tokens"] for each in json.loads(done.out)["candidates"]] == [0, 0]


async def test_explain_of_words_among_ids_says_what_is_expected(router: LiveRouter) -> None:
    done = await prefixlb("explain", "--ids", "1,two", router=address(router))
    assert (done.code, done.out) == (1, "")
    assert "--ids: expected whole numbers such as 1,15,9" in done.err
