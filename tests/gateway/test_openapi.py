"""The description of the interface: complete, and what the router serves."""

from __future__ import annotations

from typing import Any, cast

from gateway import openapi, reference
from gateway.app import client_paths
from gateway.endpoint import Desk
from gateway.middleware import plain_path
from gateway.surface import ROUTES
from protocol.config import ClusterConfig, LimitsConfig

NOTHING = cast("Any", None)
"""Handlers are not called here."""


def served() -> set[tuple[str, str]]:
    config = ClusterConfig(version=1, gateways=())
    found = client_paths(NOTHING, config, Desk(NOTHING, LimitsConfig(), NOTHING, NOTHING, NOTHING))
    return {
        (method, route.path.replace(":path", ""))
        for route in found
        for method in (route.methods or set()) - {"HEAD"}
    }


NOT_FOR_CLIENTS = {("GET", "/"), ("GET", "/admin/state"), ("GET", "/admin/requests/{request}")}


def test_it_describes_what_is_served_and_nothing_else():
    told = {(route.method, plain_path(route.path)) for route in ROUTES}
    assert told == served() - NOT_FOR_CLIENTS


def test_every_operation_tells_its_errors_in_its_dialect():
    paths = openapi.document()["paths"]
    operations = [operation for path in paths.values() for operation in path.values()]
    assert len(operations) == len(ROUTES)
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    responses = paths["/v1/messages"]["post"]["responses"]
    assert {"200", "400", "404", "413", "415", "529"} <= set(responses)
    refs = [content["schema"]["$ref"] for content in responses["529"]["content"].values()]
    assert refs == ["#/components/schemas/anthropic_error"]
    assert "429" in paths["/v1/chat/completions"]["post"]["responses"]


def test_tables_are_written_between_their_marks_only():
    page = reference.page("a\n<!-- begin errors -->\nstale\n<!-- end -->\nb\n")
    assert page.startswith("a\n<!-- begin errors -->\n| code |")
    assert page.endswith("|\n<!-- end -->\nb\n")
    assert "stale" not in page
    assert reference.page(page) == page
