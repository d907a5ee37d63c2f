"""The models as Ollama and LM Studio list them, for clients that find models in no other way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.body import Intake
from gateway.cluster import Cluster
from gateway.dialects.fields import Body
from gateway.routes import caller_of, json_response, model_object
from protocol.values import Task

_OLLAMA = "0.12.0"
"""The version of Ollama whose routes these are; clients compare it."""


class Listings:
    """The handlers, over one cluster."""

    def __init__(self, cluster: Cluster, intake: Intake) -> None:
        self._cluster = cluster
        self._intake = intake

    async def version(self, request: Request) -> Response:
        return json_response({"version": _OLLAMA})

    async def tags(self, request: Request) -> Response:
        return json_response({"models": [_tag(model) for model in self._models(request)]})

    async def running(self, request: Request) -> Response:
        return json_response({"models": [_tag(m) for m in self._models(request) if m["state"] == "loaded"]})

    async def show(self, request: Request) -> Response:
        body, _size = await self._intake.take(request.scope["headers"], request.receive, Body)
        name = self._cluster.catalog.named(body.text("model") or body.text("name"), caller_of(request))
        model = next(m for m in self._models(request) if m["id"] == name)
        architecture = {"general.architecture": "mlx", "mlx.context_length": model["context_length"]}
        can = "completion" if model["task"] == Task.GENERATE else "embedding"
        capabilities = [can, *(["tools"] if _uses_tools(self._cluster, name) else [])]
        return json_response(
            {
                "modelfile": "",
                "parameters": "",
                "template": "",
                "details": _DETAILS,
                "model_info": architecture,
                "capabilities": capabilities,
            }
        )

    async def studio_models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._studio(m) for m in self._models(request)]})

    async def studio_model(self, request: Request) -> Response:
        name = self._cluster.catalog.named(request.path_params["model"], caller_of(request))
        return json_response(next(self._studio(m) for m in self._models(request) if m["id"] == name))

    def _models(self, request: Request) -> list[dict[str, Any]]:
        names = self._cluster.catalog.models(caller_of(request))
        return [model_object(self._cluster, name, aliases) for name, aliases in names.items()]

    def _studio(self, model: dict[str, Any]) -> dict[str, Any]:
        kept = ("id", "object", "state", "max_context_length", "loaded_context_length")
        return {name: model[name] for name in kept} | {
            "type": "llm" if model["task"] == Task.GENERATE else "embeddings",
            "publisher": model["owned_by"],
            "arch": "mlx",
            "compatibility_type": "mlx",
            "quantization": "",
            "capabilities": ["tool_use"] if _uses_tools(self._cluster, model["id"]) else [],
        }


_DETAILS = {
    "parent_model": "",
    "format": "mlx",
    "family": "mlx",
    "families": ["mlx"],
    "parameter_size": "",
    "quantization_level": "",
}


def _tag(model: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": model["id"],
        "model": model["id"],
        "modified_at": model["created_at"],
        "size": 0,
        "digest": "",
        "details": _DETAILS,
    }


def _uses_tools(cluster: Cluster, name: str) -> bool:
    return any(view.card.tools for view in cluster.catalog.workers_of(name))


def routes(listings: Listings, endpoints: Mapping[str, ASGIApp]) -> list[Route]:
    """Paths as `middleware.plain_path` leaves them. The endpoints are those that generate."""
    return [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
        Route("/api/version", listings.version),
        Route("/api/tags", listings.tags),
        Route("/api/ps", listings.running),
        Route("/api/show", listings.show, methods=["POST"]),
        Route("/api/v0/models", listings.studio_models),
        Route("/api/v0/models/{model:path}", listings.studio_model),
    ]
