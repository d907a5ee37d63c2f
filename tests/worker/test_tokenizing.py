"""Questions about tokens: each gets one answer, whatever the engine does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.messages import Failed, Message, Result, Tokenize
from protocol.values import ChatMessage, Load, ToolSpec
from worker.engine.fake import FakeEngine
from worker.engine.output import PromptStuck
from worker.tokenizing import Tokenizer


def answer(engine: Any, question: Tokenize) -> tuple[Message, list[str]]:
    """What the gateway hears, and why the engine is beyond help, if it is."""
    broken: list[str] = []

    async def scenario() -> Message:
        heard: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        tokenizer = Tokenizer(
            engine, lambda _gateway, message: heard.set_result(message), Load, broken.append
        )
        tokenizer.ask("gw", question)
        return await heard

    return asyncio.run(scenario()), broken


def value(question: Tokenize) -> Any:
    message, _broken = answer(FakeEngine("m", max_model_len=9), question)
    assert isinstance(message, Result)
    assert message.request_id == question.request_id
    return message.value


def test_a_text_its_tokens_and_back():
    found = value(Tokenize(request_id="r", text="one two", pieces=True))
    assert (found["text"], found["pieces"], found["max_model_len"]) == ("one two", ["one", " two"], 9)
    engine = FakeEngine("m")
    answer(engine, Tokenize(request_id="r", text="one two"))
    message, _broken = answer(engine, Tokenize(request_id="r", token_ids=tuple(found["token_ids"])))
    assert isinstance(message, Result)
    assert message.value["text"] == "one two"


def test_an_empty_text_has_no_tokens():
    assert value(Tokenize(request_id="r"))["token_ids"] == []


def test_a_conversation_is_rendered_with_its_tools():
    found = value(
        Tokenize(
            request_id="r",
            messages=(ChatMessage(role="user", content="hi"),),
            tools=(ToolSpec(name="look_up"),),
            template_options={"enable_thinking": True},
        )
    )
    assert "look_up" in found["text"]
    assert found["text"].endswith("<|im_start|>assistant\n<think>\n")


class Odd(FakeEngine):
    """Raises what it is given."""

    def __init__(self, error: Exception) -> None:
        super().__init__("m")
        self.error = error

    async def tokenize(self, text: str, *, special: bool, pieces: bool) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("engine", "question", "code", "broken"),
    [
        (FakeEngine("m"), Tokenize(request_id="r", token_ids=(-1,)), "invalid_request", 0),
        (Odd(PromptStuck("loops")), Tokenize(request_id="r"), "invalid_request", 1),
        (Odd(RuntimeError("odd")), Tokenize(request_id="r"), "engine_failed", 0),
        (object(), Tokenize(request_id="r"), "unsupported", 0),
    ],
)
def test_what_cannot_be_told_is_said_in_words(engine: Any, question: Tokenize, code: str, broken: int):
    message, why = answer(engine, question)
    assert isinstance(message, Failed)
    assert (message.code, message.request_id, len(why)) == (code, "r", broken)
    assert message.message
