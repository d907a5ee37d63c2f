"""The OpenAPI document of the gateway, made of `gateway.surface` and the table of errors."""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec

from gateway.dialects.table import record, schema_of
from gateway.failures import TABLE, Shape, shape_of, status_of
from gateway.middleware import plain_path
from gateway.surface import JSON, ROUTES, TEXT, Route
from protocol import __version__
from protocol.errors import ClusterError, ErrorCode

_STRING: dict[str, Any] = {"type": "string"}
_OPENAI_ERROR = record(
    error=record(message=_STRING, type=_STRING, param={"type": ["string", "null"]}, code=_STRING)
)
_ERRORS = {
    Shape.OPENAI: _OPENAI_ERROR,
    Shape.RESPONSES: _OPENAI_ERROR,
    Shape.ANTHROPIC: record(
        type={"const": "error"}, error=record(type=_STRING, message=_STRING), request_id=_STRING
    ),
    Shape.OLLAMA: record(error=_STRING),
}


@functools.cache
def body() -> bytes:
    """The document as it is served. It is the same as long as the process runs."""
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Studiofleet",
            "version": __version__,
            "description": "Paths are taken with and without /v1. Fields that nobody knows are ignored.",
        },
        "paths": paths,
        "components": {"schemas": {f"{shape.value}_error": schema for shape, schema in _ERRORS.items()}},
    }


def statuses(shape: Shape) -> list[int]:
    """With which statuses clients of that dialect may be refused."""
    told = (code for code in TABLE if code is not ErrorCode.CLIENT_CLOSED_REQUEST)
    return sorted({status_of(ClusterError(code, ""), shape) for code in told})


def _operation(route: Route) -> dict[str, Any]:
    shape = shape_of(plain_path(route.path))
    responses: dict[str, Any] = {
        str(status): _response(route.content, route.answer, "the answer") for status in route.statuses
    }
    if route.streamed:
        responses["200"]["content"][route.streamed] = {}
    for status in statuses(shape):
        schema = {"$ref": f"#/components/schemas/{shape.value}_error"}
        responses.setdefault(str(status), _response(JSON, schema, "an error"))
    operation: dict[str, Any] = {
        "operationId": "_".join(re.findall(r"[a-z0-9]+", f"{route.method} {route.path}".lower())),
        "summary": route.title,
        "responses": responses,
    }
    names = re.findall(r"{(\w+)}", route.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if route.rows is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of(route.rows)}}}
    return operation


def _response(content: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    kept = {} if content == TEXT else {"schema": schema}
    return {"description": description, "content": {content: kept}}
