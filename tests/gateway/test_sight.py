import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gateway.access import ANYBODY
from gateway.body import Intake
from gateway.choices import generates
from gateway.dialects.anthropic_messages import parse as parse_anthropic
from gateway.dialects.base import Asked
from gateway.dialects.ollama import parse_chat, parse_generate
from gateway.dialects.openai_chat import parse as parse_openai
from gateway.dialects.openai_responses_answer import Responses
from gateway.dialects.pictures import UNSEEN, pictures_of
from gateway.media.intake import Pictures
from gateway.media.pictures import Facts
from gateway.media.values import Taken
from gateway.sight import Sight, seen, unseen
from protocol.config import LimitsConfig, MediaConfig, QueueConfig, WorkerConfig
from protocol.errors import ClusterError, ErrorCode
from protocol.values import ChatMessage, ContentPart
from tests.gateway.fleet import Fleet
from tests.pictures import data_url, png

TAKEN = [Taken(Facts("image/png", 1, 1), b"one"), Taken(Facts("image/gif", 1, 1), b"two")]
TURNS: dict[str, tuple[dict[str, Any], ...]] = {
    "/chat/completions": (
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "U", "detail": "low"}},
        {"type": "image_url", "image_url": "U"},
    ),
    "/messages": (
        {"type": "text", "text": "a"},
        {"type": "image", "source": {"type": "url", "url": "U"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "B"}},
    ),
    "/responses": (
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "U"},
        {"type": "input_image", "image_url": {"url": "U"}},
    ),
}
PARSERS: dict[str, Callable[[bytes], Asked]] = {
    "/chat/completions": parse_openai,
    "/messages": parse_anthropic,
    "/responses": Responses().parse,
}


def parsed(path: str, *turns: dict[str, Any]) -> tuple[ChatMessage, ...]:
    body = {"model": "m", "max_tokens": 5, "messages": turns, "input": turns}
    return PARSERS[path](json.dumps(body).encode()).messages


def image(frame: int, media_type: str) -> ContentPart:
    return ContentPart(type="image", frame=frame, media_type=media_type)


@pytest.mark.parametrize("path", PARSERS)
def test_parts_keep_their_order_and_pictures_are_named_by_their_frames(path: str):
    text, first, second = TURNS[path]
    content = [first, text, text, second]
    messages = parsed(path, {"role": "user", "content": content}, {"role": "user", "content": "b"})
    assert seen(messages, TAKEN) == (
        ChatMessage(
            role="user",
            content=(image(1, "image/png"), ContentPart(type="text", text="a\na"), image(2, "image/gif")),
        ),
        ChatMessage(role="user", content="b"),
    )


@pytest.mark.parametrize("path", PARSERS)
def test_where_a_picture_is_and_what_it_is_goes_with_it(path: str):
    _text, first, second = TURNS[path]
    messages = parsed(path, {"role": "user", "content": [first, second]})
    field = "source" if path == "/messages" else "image_url"
    head = "input" if path == "/responses" else "messages"
    found = pictures_of(messages)
    assert [picture.path for picture in found] == [f"{head}[0].content[{i}].{field}" for i in (0, 1)]
    assert [(p.url, p.base64) for p in found] == [("U", ""), ("", "B") if path == "/messages" else ("U", "")]


@pytest.mark.parametrize("path", PARSERS)
def test_a_model_that_cannot_see_refuses_pictures_of_the_user(path: str):
    _text, first, _second = TURNS[path]
    messages = parsed(path, {"role": "user", "content": [first]})
    for seers, words in ((), "text only"), (("eye", "lens"), "text only; models that see: eye, lens"):
        with pytest.raises(ClusterError) as caught:
            unseen(messages, seers)
        assert str(caught.value.param).endswith("[0].content[0].type")
        assert (caught.value.reason, caught.value.code) == ("unsupported_value", ErrorCode.UNSUPPORTED)
        assert caught.value.message.endswith(words)


@pytest.mark.parametrize("role", ["system", "assistant"])
@pytest.mark.parametrize("path", PARSERS)
def test_pictures_belong_to_turns_of_the_user(path: str, role: str):
    with pytest.raises(ClusterError, match="text only"):
        parsed(path, {"role": role, "content": [TURNS[path][1]]})


def test_pictures_in_results_are_notes_to_a_model_that_cannot_see():
    text, first, _second = TURNS["/messages"]
    anthropic = {"type": "tool_result", "tool_use_id": "c", "content": [text, first], "is_error": True}
    responses = {"type": "function_call_output", "call_id": "c", "output": [*TURNS["/responses"][:2]]}
    for messages, words in (
        (parsed("/messages", {"role": "user", "content": [anthropic]}), "Error: a"),
        (parsed("/responses", responses), "a"),
    ):
        told = ChatMessage(role="tool", content=f"{words}\n{UNSEEN}", tool_call_id="c")
        assert unseen(messages, ()) == (told,)
        parts = (ContentPart(type="text", text=words), image(1, "image/png"))
        assert seen(messages, TAKEN[:1]) == (replace(told, content=parts),)


def test_pictures_of_ollama_come_before_their_text():
    chat = parse_chat(json.dumps({"messages": [{"role": "user", "content": "a", "images": ["B"]}]}).encode())
    generate = parse_generate(json.dumps({"prompt": "a", "images": ["B"]}).encode())
    for messages, path in ((chat.messages, "messages[0].images"), (generate.messages, "images")):
        assert [(p.path, p.base64) for p in pictures_of(messages)] == [(f"{path}[0]", "B")]
        content = (image(1, "image/png"), ContentPart(type="text", text="a"))
        assert seen(messages, TAKEN[:1]) == (ChatMessage(role="user", content=content),)
        with pytest.raises(ClusterError) as caught:
            unseen(messages, ())
        assert caught.value.param == path
    with pytest.raises(ClusterError, match="with raw"):
        parse_generate(json.dumps({"prompt": "a", "images": ["B"], "raw": True}).encode())


@pytest.mark.parametrize("source", [None, {}, 5, {"url": 5}, {"type": "file", "file_id": "f"}, []])
@pytest.mark.parametrize("path", PARSERS)
def test_a_picture_from_nowhere_is_one_without_anything(path: str, source: Any):
    part = {**TURNS[path][1], "image_url": source, "source": source}
    (picture,) = pictures_of(parsed(path, {"role": "user", "content": [part]}))
    assert picture.size == 0


# --- on the way to workers ---

SEES = {"modalities": ("text", "image"), "can_resume": True}
PICTURES = (b"one", b"two")


def test_pictures_go_to_workers_that_see_and_along_to_the_next_one():
    fleet = Fleet()
    fleet.join("blind", can_resume=True)
    fleet.join("eye", "lens", **SEES)
    fleet.ask("r", parts=PICTURES)
    (first,) = [name for name in (b"eye", b"lens") if fleet.at(name)]
    fleet.reject(first)
    (second,) = {b"eye", b"lens"} - {first}
    assert fleet.at(second) == ["r"]
    fleet.start(second)
    fleet.say(second, "a", token_ids=(1,))
    fleet.now = 1.0
    fleet.membership.lost(second, fleet.now, "its connection closed")
    assert fleet.last(first).resume_token_ids == (1,)
    assert fleet.wire.parts == [(name, part) for name in (first, second, first) for part in PICTURES]
    assert not fleet.at(b"blind")


def test_what_has_no_pictures_goes_to_any():
    fleet = Fleet()
    fleet.join("blind")
    fleet.ask("r")
    assert (fleet.at(b"blind"), fleet.wire.parts) == (["r"], [])


def test_pictures_count_in_the_line():
    fleet = Fleet(queue=QueueConfig(max_requests=10))
    fleet.join("eye", slots=1, **SEES)
    fleet.ask("first", parts=(b"",))
    pictures = (bytes(200 * 2**20),)
    assert not fleet.ask("second", parts=pictures).code
    with pytest.raises(ClusterError, match="the queue is full"):
        fleet.ask("third", parts=pictures)
    assert not fleet.ask("fourth", parts=(b"",)).code


def test_pictures_that_several_answers_share_count_once_in_the_line():
    fleet = Fleet(queue=QueueConfig(max_requests=10))
    fleet.join("eye", slots=1, **SEES)
    fleet.ask("first", parts=(b"",))
    pictures = (bytes(100 * 2**20),)
    answers = [fleet.ask(f"r.{number}", parts=pictures, further=bool(number)) for number in range(4)]
    assert not fleet.ask("second", parts=pictures).code
    with pytest.raises(ClusterError, match="the queue is full"):
        fleet.ask("third", parts=pictures)
    assert [answer.code for answer in answers] == [""] * 4


def checked(fleet: Fleet, model: str, part: dict[str, Any]) -> ClusterError | None:
    messages = parsed("/chat/completions", {"role": "user", "content": [part]})
    sight = Sight(fleet.catalog, cast("Pictures", None), Intake(LimitsConfig()))
    try:
        assert sight.checked(messages, model, ANYBODY) == messages
    except ClusterError as error:
        return error
    return None


def test_whether_a_model_sees_its_workers_tell():
    fleet = Fleet(workers=(WorkerConfig(id="w", model="/m/later"),))
    fleet.join("blind", model="blind")
    fleet.join("eye", model="seer", **SEES)
    text, first, _second = TURNS["/chat/completions"]
    assert checked(fleet, "seer", first) is None
    refused = checked(fleet, "blind", first)
    assert refused is not None
    assert refused.message.endswith("text only; models that see: seer")
    unknown = checked(fleet, "later", first)
    assert unknown is not None
    assert (unknown.code, unknown.retry_after_s) == (ErrorCode.NO_WORKER_AVAILABLE, 2.0)
    assert [checked(fleet, model, text) for model in ("seer", "blind", "later")] == [None] * 3


class Slow:
    """Pictures that never come."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def take(self, _pictures: Any, _asker: str, _hold: Any) -> list[Taken]:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        raise AssertionError


def test_nothing_is_fetched_for_a_client_that_left():
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def case() -> None:
        slow = Slow()
        sight = Sight(Fleet().catalog, cast("Pictures", slow), Intake(LimitsConfig()))
        request = parse_openai(
            json.dumps({"messages": [{"role": "user", "content": [TURNS["/chat/completions"][1]]}]}).encode()
        )
        with pytest.raises(ClusterError) as caught:
            await sight.take(generates(request, "r", "m", 1, 60.0), receive, "")
        assert caught.value.code is ErrorCode.CLIENT_CLOSED_REQUEST
        await asyncio.wait_for(slow.ended.wait(), 60)

    asyncio.run(case())


def test_bytes_of_pictures_are_held_against_those_of_all_requests():
    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def case() -> None:
        intake = Intake(LimitsConfig(max_body_bytes=10), max_held_bytes=200)
        sight = Sight(Fleet().catalog, Pictures(MediaConfig()), intake)
        part = {"type": "image_url", "image_url": data_url(png())}
        one, many = (
            parse_openai(json.dumps({"messages": [{"role": "user", "content": [part] * n}]}).encode())
            for n in (1, 5)
        )
        for request, works in ((one, True), (many, False), (one, True)):
            requests = generates(request, "r", "m", 1, 60.0)
            if works:
                _requests, parts = await sight.take(requests, receive, "")
                assert parts == (png(),)
            else:
                with pytest.raises(ClusterError) as caught:
                    await sight.take(requests, receive, "")
                assert caught.value.code is ErrorCode.OVERLOADED

    asyncio.run(case())
