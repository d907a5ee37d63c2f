"""The routes that tell of tokens: `/tokenize`, `/detokenize`, `/apply-template`, Anthropic's count."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.body import waits_for_model
from gateway.cluster import Cluster
from gateway.dialects.fields import unsupported
from gateway.dialects.pictures import pictures_of
from gateway.dialects.token_questions import (
    Question,
    count_object,
    parse_count,
    parse_detokenize,
    parse_template,
    parse_tokenize,
    text_object,
    tokens_object,
)
from gateway.endpoint import Desk
from gateway.middleware import Reply
from gateway.routes import json_response

Parse = Callable[[bytes], Question]
Show = Callable[[Question, dict[str, Any]], dict[str, Any]]


class TokenRoute:
    """One of the routes: how its body is read, and what of the answer is shown."""

    def __init__(self, cluster: Cluster, desk: Desk, parse: Parse, show: Show) -> None:
        self._cluster = cluster
        self._intake = desk.intake
        self._sight = desk.sight
        self._parse = parse
        self._show = show

    async def answer(self, request: Request) -> Response:
        reply: Reply = request.scope["state"]["reply"]
        asked, _size = await self._intake.take(request.scope["headers"], request.receive, self._parse)
        reply.model = self._cluster.catalog.named(asked.model, reply.caller)
        messages = self._sight.checked(asked.tokenize.messages, reply.model, reply.caller)
        for picture in pictures_of(messages):
            raise unsupported(picture.path, "is a picture, of which tokens are not told in this version")
        request_id = f"{reply.request_id}.{secrets.token_hex(4)}"
        message = replace(asked.tokenize, request_id=request_id, messages=messages)
        waits = waits_for_model(request.scope["headers"])
        told = await self._cluster.ask(message, reply.model, waits=waits)
        return json_response(self._show(asked, told))


def routes(cluster: Cluster, desk: Desk, *, drop_billing_line: bool) -> list[Route]:
    """Paths as `middleware.plain_path` leaves them."""
    count = functools.partial(parse_count, drop_billing_line=drop_billing_line)
    table: dict[str, tuple[Parse, Show]] = {
        "/tokenize": (parse_tokenize, tokens_object),
        "/detokenize": (parse_detokenize, text_object),
        "/apply-template": (parse_template, text_object),
        "/messages/count_tokens": (count, count_object),
    }
    return [
        Route(path, TokenRoute(cluster, desk, parse, show).answer, methods=["POST"])
        for path, (parse, show) in table.items()
    ]
