"""What vLLM's and llama.cpp's clients ask about tokens, and what they are told. One route serves both."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.dialects.anthropic_messages import parse_countable
from gateway.dialects.fields import Body, Fields, missing, token_ids
from gateway.dialects.openai_messages import parse_messages
from gateway.dialects.openai_tools import parse_tools
from gateway.dialects.template_options import parse_template_options
from protocol.messages import Tokenize


class Question(msgspec.Struct, frozen=True):
    """What is asked, of which model (None: the only one)."""

    model: str | None
    tokenize: Tokenize
    """Without its id."""
    llama: bool = False
    """Asked in llama.cpp's words."""


def parse_tokenize(body: bytes) -> Question:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    model = fields.text("model")
    if fields.raw("messages") is not None:
        return Question(model, _of_messages(fields, pieces=fields.flag("return_token_strs")))
    content = fields.text("content")
    if content is not None:
        pieces = fields.flag("with_pieces")
        special = fields.flag("add_special")
        return Question(
            model, Tokenize(request_id="", text=content, special=special, pieces=pieces), llama=True
        )
    prompt = fields.text("prompt")
    if prompt is None:
        raise missing("prompt")
    special = fields.raw("add_special_tokens") is None or fields.flag("add_special_tokens")
    pieces = fields.flag("return_token_strs")
    return Question(model, Tokenize(request_id="", text=prompt, special=special, pieces=pieces))


def parse_template(body: bytes) -> Question:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    return Question(fields.text("model"), _of_messages(fields, pieces=False))


def parse_detokenize(body: bytes) -> Question:
    """Raises `ClusterError` with the path of the fault."""
    fields = Body(body)
    tokens = fields.items("tokens")
    if tokens is None:
        raise missing("tokens")
    return Question(fields.text("model"), Tokenize(request_id="", token_ids=token_ids(tokens, "tokens")))


def parse_count(body: bytes, *, drop_billing_line: bool) -> Question:
    """Anthropic's. Raises `ClusterError` with the path of the fault."""
    asked = parse_countable(Body(body), drop_billing_line=drop_billing_line)
    question = Tokenize(
        request_id="",
        messages=asked.messages,
        tools=asked.tools,
        tool_choice=asked.tool_choice,
        template_options=asked.template_options,
    )
    return Question(asked.model, question)


def _of_messages(fields: Fields, *, pieces: bool) -> Tokenize:
    use = parse_tools(fields)
    return Tokenize(
        request_id="",
        messages=parse_messages(fields),
        tools=use.tools,
        tool_choice=use.choice,
        template_options=parse_template_options(fields),
        pieces=pieces,
    )


def tokens_object(question: Question, told: dict[str, Any]) -> dict[str, Any]:
    ids, pieces = told["token_ids"], told["pieces"]
    if question.llama:
        return {
            "tokens": [{"id": each, "piece": piece} for each, piece in zip(ids, pieces, strict=True)]
            if question.tokenize.pieces
            else ids
        }
    return {
        "count": len(ids),
        "max_model_len": told["max_model_len"],
        "tokens": ids,
        "token_strs": pieces if question.tokenize.pieces else None,
    }


def text_object(question: Question, told: dict[str, Any]) -> dict[str, Any]:
    """The name of the text depends on who asks; here are both."""
    return {"prompt": told["text"], "content": told["text"]}


def count_object(question: Question, told: dict[str, Any]) -> dict[str, Any]:
    return {"input_tokens": len(told["token_ids"])}
