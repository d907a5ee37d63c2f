"""The reading routes: models, health, state, metrics. Each a few lines."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway import openapi
from gateway.access import OPERATOR
from gateway.cluster import Cluster
from gateway.dialects import openai_rows
from gateway.dialects.response_store import ResponseStore
from gateway.dialects.table import Use
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.middleware import Reply
from protocol import __version__
from protocol.addresses import is_loopback
from protocol.api_keys import ApiKey
from protocol.errors import ClusterError, ErrorCode
from protocol.values import Task

_CREATED = 0
"""When a model was made is not known; every gateway has to say the same."""


_PARAMETERS = [row.name for row in openai_rows.CHAT if row.use is Use.HONOURED]
"""As OpenRouter's clients look for them."""


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def caller_of(request: Request) -> ApiKey:
    reply: Reply = request.scope["state"]["reply"]
    return reply.caller


def model_object(cluster: Cluster, name: str, aliases: list[str]) -> dict[str, Any]:
    """One model, under all the names by which clients look for its facts."""
    workers = cluster.catalog.workers_of(name)
    card = next((view.card for view in workers), None)
    length = min((view.card.max_model_len for view in workers if view.card.max_model_len), default=None)
    state = cluster.catalog.state(name)
    modalities = list(card.modalities) if card else ["text"]
    created = datetime.datetime.fromtimestamp(_CREATED, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "id": name,
        "object": "model",
        "created": _CREATED,
        "owned_by": "studiofleet",
        "type": "model",
        "display_name": name,
        "created_at": created,
        "lifecycle": "active",
        "root": name,
        "parent": None,
        "permission": [],
        "aliases": aliases,
        "max_model_len": length,
        "context_length": length,
        "max_context_length": length,
        "max_output_tokens": length,
        "loaded_context_length": length if state == "loaded" else None,
        "state": state,
        "input_modalities": modalities,
        "output_modalities": ["text"],
        "architecture": {"input_modalities": modalities, "output_modalities": ["text"]},
        "supported_parameters": _PARAMETERS,
        "meta": {"n_ctx": length, "n_ctx_train": length},
        "task": card.task if card else Task.GENERATE,
    }


class Pages:
    """The handlers, over one cluster."""

    def __init__(self, cluster: Cluster, metrics: Metrics, responses: ResponseStore) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._responses = responses

    async def root(self, request: Request) -> Response:
        return json_response({"name": "studiofleet", "version": __version__})

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def openapi(self, request: Request) -> Response:
        return Response(openapi.body(), media_type="application/json")

    async def models(self, request: Request) -> Response:
        names = self._cluster.catalog.models(caller_of(request))
        data = [model_object(self._cluster, name, aliases) for name, aliases in names.items()]
        listed = {rule.name: rule.aliases for rule in self._cluster.catalog.rules if rule.list_aliases}
        data += [
            {**entry, "id": alias, "display_name": f"{alias} ({entry['id']})"}
            for entry in tuple(data)
            for alias in listed.get(entry["id"], ())
        ]
        ids = [entry["id"] for entry in data]
        return json_response(
            {
                "object": "list",
                "data": data,
                "models": [],
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )

    async def model(self, request: Request) -> Response:
        name = self._cluster.catalog.named(request.path_params["model"], caller_of(request))
        model = model_object(self._cluster, name, self._cluster.catalog.models()[name])
        return json_response(model | {"id": request.path_params["model"]})

    async def response(self, request: Request) -> Response:
        """One that is kept: told, or forgotten."""
        response_id = request.path_params["response"]
        kept = self._responses.get(response_id)
        if kept is None or kept.owner != caller_of(request).name:
            message = f"the response {response_id[:80]!r} is not kept here (any more)"
            raise ClusterError(ErrorCode.UNKNOWN_URL, message, reason="not_found")
        if request.method == "DELETE":
            self._responses.forget(response_id)
            return json_response({"id": response_id, "object": "response", "deleted": True})
        return Response(kept.body, media_type="application/json")

    async def live(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        if self._cluster.is_ready:
            return json_response({"status": "ready"})
        if self._cluster.stopping:
            return json_response({"status": "shutting_down"}, 503)
        return json_response({"status": "not_ready", "models": self._cluster.catalog.unready()}, 503)

    async def state(self, request: Request) -> Response:
        _only_operators(request)
        return json_response(self._cluster.state())

    async def life(self, request: Request) -> Response:
        """What became of a request, and why it went where it went."""
        _only_operators(request)
        request_id = request.path_params["request"]
        lives = self._cluster.dispatcher.lives.of(request_id)
        if not lives:
            message = (
                f"this gateway does not know the request {request_id[:100]!r} (any more); ask another one"
            )
            raise ClusterError(ErrorCode.UNKNOWN_URL, message, reason="request_not_found")
        return json_response({"requests": [life.told() for life in lives]})

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE.decode()})


def _only_operators(request: Request) -> None:
    """Raises `ClusterError` where the caller neither is on this machine nor has the admin key."""
    client = request.client
    if caller_of(request) is not OPERATOR and (client is None or not is_loopback(client.host)):
        message = "the cluster's state is told on this machine only, or to who brings the admin key"
        raise ClusterError(ErrorCode.FORBIDDEN, message)


def routes(pages: Pages, endpoints: Mapping[str, ASGIApp]) -> list[Route]:
    """Paths as `middleware.plain_path` leaves them. The endpoints are those that generate."""
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
        Route("/responses/{response}", pages.response, methods=["GET", "DELETE"]),
        Route("/models", pages.models),
        Route("/models/{model:path}", pages.model),
        Route("/version", pages.version),
        Route("/openapi.json", pages.openapi),
        Route("/health", pages.live),
        Route("/ping", pages.live),
        Route("/health/live", pages.live),
        Route("/health/ready", pages.ready),
        Route("/admin/state", pages.state),
        Route("/admin/requests/{request}", pages.life),
        Route("/metrics", pages.metrics),
        Route("/", pages.root),
    ]
