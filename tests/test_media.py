"""Prompts with images in them: what is shared, what is not, and which ranges are refused."""

from array import array
from typing import Any

import grpc
import pytest
from grpc import aio

from proto.errors import InvalidRequest
from proto.media import MAX_MEDIA_ITEMS, check_media, prompt_keys
from proto.prefixlb.v1.inference_pb2 import ChatPrompt, GenerateRequest, MediaItem
from radix_rs import derive_hash_key
from tests.live_router import live_router, until
from tests.replica_rig import replica_rig, token_ids, tokens_request

PLACEHOLDER = 7
BEFORE, IMAGE, AFTER = 40, 30, 10
CAT, DOG = b"c" * 32, b"d" * 32


def prompt(before: int = BEFORE) -> list[int]:
    return [*range(10, 10 + before), *[PLACEHOLDER] * IMAGE, *range(60, 60 + AFTER)]


def image(content_hash: bytes, start: int = BEFORE, end: int = BEFORE + IMAGE) -> MediaItem:
    return MediaItem(start=start, end=end, content_hash=content_hash)


def test_only_the_ids_of_media_are_replaced_and_lie_outside_every_vocabulary() -> None:
    tokens = array("I", prompt())
    keys = prompt_keys(tokens, [image(CAT)])
    assert tokens.tolist() == prompt()
    inside = keys[BEFORE : BEFORE + IMAGE]
    assert all(key >= 2**31 for key in inside) and len(set(inside)) == IMAGE
    keys[BEFORE : BEFORE + IMAGE] = tokens[BEFORE : BEFORE + IMAGE]
    assert keys == tokens
    assert prompt_keys(tokens, []) is tokens


def test_ids_follow_from_content_and_place_in_the_item_alone() -> None:
    def ids(content_hash: bytes, start: int, end: int) -> list[int]:
        tokens = array("I", [PLACEHOLDER] * 100)
        return prompt_keys(tokens, [image(content_hash, start, end)])[start:end].tolist()

    assert ids(CAT, 0, 30) == ids(CAT, 50, 80)
    assert ids(CAT, 0, 30) != ids(DOG, 0, 30)
    assert ids(CAT, 0, 30)[0] != ids(DOG, 0, 30)[0]
    # What routers and replicas of other versions have to agree on.
    assert ids(b"0123456789abcdef", 0, 2) == [3606932756, 3336801091]


@pytest.mark.parametrize(
    ("media", "complaint"),
    [
        ([image(CAT, 5, 5)], r"^media\[0\]: start 5 is not below end 5$"),
        ([image(CAT, 9, 5)], r"^media\[0\]: start 9 is not below end 5$"),
        ([image(CAT, 70, 81)], r"^media\[0\]: end 81 is past the prompt of 80 tokens$"),
        (
            [image(CAT, 0, 20), image(DOG, 19, 30)],
            r"^media\[1\]: start 19 is below the end 20 of the item before it$",
        ),
        (
            [image(CAT, 50, 60), image(DOG, 0, 10)],
            r"^media\[1\]: start 0 is below the end 60 of the item before it$",
        ),
        ([image(b"x" * 15)], r"content_hash has 15 bytes, expected 16 to 64$"),
        ([image(b"x" * 65)], r"content_hash has 65 bytes, expected 16 to 64$"),
        ([image(CAT, i, i + 1) for i in range(80)] * 13, r"^media has 1040 items, at most 1024 "),
    ],
)
def test_ranges_that_make_no_sense_are_refused_by_name(
    media: list[MediaItem], complaint: str
) -> None:
    assert len(prompt()) == 80
    with pytest.raises(InvalidRequest, match=complaint):
        check_media(tokens_request(prompt(), media=media))


@pytest.mark.parametrize(
    "form", [{"text": "a cat"}, {"chat": ChatPrompt()}, {}], ids=["text", "chat", "none"]
)
def test_media_is_refused_where_there_are_no_token_ids(form: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="media needs a prompt of token ids"):
        check_media(GenerateRequest(media=[image(CAT)], **form))


def test_ranges_at_the_edge_of_what_is_allowed_are_taken() -> None:
    ids = [PLACEHOLDER] * MAX_MEDIA_ITEMS
    media = [image(b"x" * (16 if i % 2 else 64), i, i + 1) for i in range(MAX_MEDIA_ITEMS)]
    check_media(tokens_request(ids, media=media))


@pytest.mark.parametrize(("page_size", "shared"), [(1, BEFORE), (16, 32)])
async def test_the_same_image_is_reused_and_another_parts_at_its_first_token(
    page_size: int, shared: int
) -> None:
    async with replica_rig(page_size=page_size) as rig:

        async def ask(**fields: Any) -> tuple[int, list[int]]:
            parts = await rig.generate(tokens_request(prompt(), 4, **fields))
            return parts[-1].usage.cached_tokens, token_ids(parts)

        whole = (len(prompt()) - 1) // page_size * page_size
        plain = await ask()
        cat = await ask(media=[image(CAT)])
        again = await ask(media=[image(CAT)])
        dog = await ask(media=[image(DOG)])
        unmarked = await ask()
    assert [cached for cached, _ in (plain, cat, again, dog)] == [0, shared, whole, shared]
    assert unmarked[0] == whole, "placeholders that are not marked are their own"
    # A model of text computes the placeholders, whatever they stand for.
    assert plain[1] == cat[1] == again[1] == dog[1] == unmarked[1]


async def test_replica_refuses_what_the_router_would_not_have_sent() -> None:
    async with replica_rig() as rig:
        with pytest.raises(aio.AioRpcError) as refused:
            await rig.generate(tokens_request(prompt(), media=[image(CAT, 0, 81)]))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "media[0]: end 81 is past the prompt of 80 tokens"


@pytest.mark.redis
async def test_router_sends_an_image_where_it_is_cached(redis_url: str) -> None:
    key = derive_hash_key(b"")
    settings = {"redis_url": redis_url, "cluster": "test"}
    async with (
        replica_rig(key, replica_id="cats", **settings) as cats,
        replica_rig(key, replica_id="dogs", **settings) as dogs,
        live_router(redis_url) as router,
    ):
        await router.ready()
        await cats.generate(tokens_request(prompt(), 1, media=[image(CAT)]))
        await dogs.generate(tokens_request(prompt(), 1, media=[image(DOG)]))
        mirror, blocks = router.parts.router.mirror, len(prompt()) // 16
        await until(lambda: mirror("cats").count == mirror("dogs").count == blocks)
        for content_hash, home in ((CAT, "cats"), (DOG, "dogs"), (CAT, "cats")):
            answer = await router.generate(prompt(), media=[image(content_hash)])
            assert answer.code is grpc.StatusCode.OK, answer.details
            assert answer.replica == home
            assert answer.metadata["prefixlb-matched-tokens"] == str(len(prompt()) - 1)
            assert answer.usage.cached_tokens == len(prompt()) - 1
        refused = await router.generate(prompt(), media=[image(CAT, 3, 2)])
        assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.details == "media[0]: start 3 is not below end 2"
