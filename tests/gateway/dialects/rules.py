"""What every route has to say to every value of every field, by the fields' own tables."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gateway.dialects import (
    anthropic_messages,
    ollama,
    ollama_embeddings,
    openai_chat,
    openai_completions,
    openai_responses,
    token_questions,
)
from gateway.dialects.fields import Body
from gateway.dialects.response_store import ResponseStore
from gateway.dialects.table import Row
from gateway.surface import ROUTES

TURNS = [{"role": "user", "content": "hi"}]
ROWS = {route.path: route.rows for route in ROUTES if route.rows is not None}
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "/v1/chat/completions": openai_chat.parse,
    "/v1/completions": openai_completions.parse,
    "/v1/responses": lambda body: openai_responses.parse(body, ResponseStore()),
    "/v1/messages": anthropic_messages.parse,
    "/v1/messages/count_tokens": functools.partial(token_questions.parse_count, drop_billing_line=True),
    "/tokenize": token_questions.parse_tokenize,
    "/detokenize": token_questions.parse_detokenize,
    "/apply-template": token_questions.parse_template,
    "/api/chat": ollama.parse_chat,
    "/api/generate": ollama.parse_generate,
    "/api/embed": ollama_embeddings.OllamaEmbed().parse,
    "/api/embeddings": ollama_embeddings.OllamaEmbedding().parse,
}
LEAST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": TURNS, "max_tokens": 5},
    "/v1/messages/count_tokens": {"messages": TURNS},
    "/tokenize": {"messages": TURNS},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": TURNS},
    "/api/chat": {"messages": TURNS, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/api/embed": {"input": "hi"},
    "/api/embeddings": {"prompt": "hi"},
}
OTHER_FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "/tokenize": ({"prompt": "hi"}, {"content": "hi"}),
    "/api/chat": ({"messages": TURNS, "model": ""},),
    "/api/generate": ({"prompt": "hi", "raw": True}, {"model": ""}),
    "/api/embed": ({"input": ["hi"], "model": ""},),
    "/api/embeddings": ({"prompt": "hi", "model": ""},),
}
"""Bodies of which other fields are read."""
NUMERIC = ("integer", "number")
VALUES = (
    "-1",
    "0",
    "0.5",
    "1e308",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    '"1"',
    "true",
    "null",
    "[]",
    "{}",
)


def flat(rows: Iterable[Row], prefix: str = "") -> Iterator[tuple[str, Row]]:
    for row in rows:
        yield prefix + row.name, row
        yield from flat(row.rows, f"{prefix}{row.name}.")


def body_with(
    path: str, name: str, value: str, model: str = "m", form: dict[str, Any] | None = None
) -> bytes:
    """The least body of a route, with one more field, whose value is any text."""
    outer, _, inner = name.rpartition(".")
    form = LEAST[path] if form is None else form
    least = {k: v for k, v in ({"model": model} | form).items() if k != name}
    field = f'"{inner or name}": {value}'
    if outer:
        field = f'"{outer}": {{{field}}}'
    rest = json.dumps({**least, "unknown": 0})[1:]
    return f"{{{field}, {rest}".encode()


def expected(row: Row, value: str) -> set[str | None]:
    """The reasons of which one has to be told; None: it is taken."""
    if value in ("NaN", "Infinity", "-Infinity", "1e999"):
        return {"invalid_json"}
    given = json.loads(value)
    if given is None:
        return {"missing_required_parameter" if row.required else None}
    whole = row.types == ("integer",)
    if isinstance(given, bool | str | list | dict) or (whole and not float(given).is_integer()):
        return {"invalid_type"}
    low = -math.inf if row.low is None else row.low
    high = math.inf if row.high is None else row.high
    if not low <= given <= high or (row.above and given == low):
        return {"invalid_value"}
    # In its range, another field may forbid it.
    return {None, "invalid_value", "unsupported_parameter"}


def numbers() -> list[tuple[str, str, Row]]:
    return [
        (path, name, row)
        for path in PARSERS
        for name, row in flat(ROWS[path] or ())
        if row.types and row.types[0] in NUMERIC
    ]


def names_read(path: str, body: dict[str, Any]) -> set[str]:
    """Of the fields of a body, those that its parser looks at."""
    read: set[str] = set()
    raw = Body.raw

    def remember(self: Body, name: str) -> Any:
        read.add(name)
        return raw(self, name)

    Body.raw = remember  # type: ignore[method-assign]
    try:
        PARSERS[path](json.dumps(body).encode())
    finally:
        Body.raw = raw  # type: ignore[method-assign]
    return read
