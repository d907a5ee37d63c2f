"""What form an answer must have: `response_format` and its other spellings, in vLLM's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.dialects.fields import Fields, missing, unsupported, why_no_json, wrong_type, wrong_value

Format = dict[str, Any]
"""As `Generate.response_format` has it."""

_ALONE: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "json_schema": "json",
    "grammar": "grammar",
}
"""vLLM's older fields, and llama.cpp's."""


def parse_formats(fields: Fields) -> Format | None:
    """The one format that a request of OpenAI's form gives. Raises `ClusterError` with the field at fault."""
    given = fields.object("response_format")
    found = [
        None if given is None else typed(given, "response_format", flat=False),
        _structured_outputs(fields),
        *(_single(fields, name, kind, name) for name, kind in _ALONE.items()),
    ]
    chosen = [each for each in found if each is not None]
    if len(chosen) > 1:
        raise wrong_value(chosen[1]["field"], f"cannot go with {chosen[0]['field']}; send one of them")
    return chosen[0] if chosen else None


def typed(given: Fields, field: str, *, flat: bool) -> Format | None:
    """A format that says its `type`. `flat`: the schema stands beside that, not in a `json_schema`."""
    kind = given.text("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.object("schema")
        return {"json_object": True, "field": field} if schema is None else _json(given.raw("schema"), field)
    if kind != "json_schema":
        raise wrong_value(given.path("type"), "must be text, json_object or json_schema")
    holder = given if flat else given.object("json_schema")
    if holder is None:
        raise missing(given.path("json_schema"))
    if holder.object("schema") is None:
        raise missing(holder.path("schema"))
    return _json(holder.raw("schema"), field)


def word_or_schema(fields: Fields, name: str) -> Format | None:
    """Ollama's form: `json`, or a schema."""
    value = fields.raw(name)
    if value is None or value == "":
        return None
    if value == "json":
        return {"json_object": True, "field": name}
    if not isinstance(value, dict):
        raise wrong_value(name, 'must be "json" or a JSON schema')
    return _json(value, name)


def _structured_outputs(fields: Fields) -> Format | None:
    given = fields.object("structured_outputs")
    if given is None:
        return None
    if given.raw("structural_tag") is not None:
        raise unsupported(
            given.path("structural_tag"), "is not available; use json, regex, choice or grammar"
        )
    found = [_single(given, kind, kind, "structured_outputs") for kind in _KINDS]
    chosen = [each for each in found if each is not None]
    if len(chosen) != 1:
        raise wrong_value("structured_outputs", f"must have exactly one of {', '.join(_KINDS)}")
    return chosen[0]


def _single(fields: Fields, name: str, kind: str, field: str) -> Format | None:
    if fields.raw(name) is None:
        return None
    value = _KINDS[kind](fields, name)
    return None if value is False else {kind: value, "field": field}


def _schema(fields: Fields, name: str) -> str:
    value = fields.raw(name)
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise wrong_value(fields.path(name), f"is no JSON: {why_no_json(error, value)}") from None
    if not isinstance(value, dict):
        raise wrong_type(fields.path(name), "a JSON schema", value)
    return json.dumps(value)


def _words(fields: Fields, name: str) -> str:
    value = fields.text(name)
    if not value:
        raise wrong_value(fields.path(name), "must not be empty")
    return value


def _choice(fields: Fields, name: str) -> list[str]:
    values = fields.items(name)
    if not values:
        raise wrong_value(fields.path(name), "must not be empty")
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise wrong_type(f"{fields.path(name)}[{index}]", "a string", value)
        if not value:
            raise wrong_value(f"{fields.path(name)}[{index}]", "must not be empty")
    return values


_KINDS: Mapping[str, Callable[[Fields, str], Any]] = {
    "json": _schema,
    "regex": _words,
    "choice": _choice,
    "grammar": _words,
    "json_object": Fields.flag,
}


def _json(schema: dict[str, Any], field: str) -> Format:
    """As text: it keeps the order of properties, and numbers of any size."""
    return {"json": json.dumps(schema), "field": field}
