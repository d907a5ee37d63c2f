"""The fields of requests as rows: their types and ranges, and what becomes of them.

Parsers read numbers by them; `/openapi.json` and the tables of docs/api.md are made of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import msgspec

from gateway.dialects.fields import Fields, wrong_value


class Use(Enum):
    """What becomes of a field."""

    HONOURED = "honoured"
    IGNORED = "ignored"
    REFUSED = "refused"


class Row(msgspec.Struct, frozen=True):
    """One field."""

    name: str
    types: tuple[str, ...] = ()
    """In JSON schema's words; none: any. Null counts as absent everywhere."""
    note: str = ""
    use: Use = Use.HONOURED
    low: int | None = None
    high: int | float | None = None
    above: bool = False
    """The least is itself not taken."""
    default: float | None = None
    required: bool = False
    rows: tuple[Row, ...] = ()
    """Those of an object."""
    schema: dict[str, Any] = {}
    """What else is to be said of it in JSON schema."""

    def integer(self, fields: Fields, low: int | None = None) -> int | None:
        """None where absent. Raises `InvalidRequestError`."""
        most = None if self.high is None else int(self.high)
        return fields.integer(self.name, self.low if low is None else low, most)

    def number(self, fields: Fields) -> float:
        """The default where absent. Raises `InvalidRequestError`."""
        low = -float("inf") if self.low is None else self.low
        found = fields.number(self.name, low, float("inf") if self.high is None else self.high)
        if self.above and found == self.low:
            raise wrong_value(fields.path(self.name), f"must be above {self.low}")
        return float(self.default or 0.0) if found is None else found


STRING = ("string",)
FLAG = ("boolean",)
INTEGER = ("integer",)
NUMBER = ("number",)
ARRAY = ("array",)
OBJECT = ("object",)


def items(*schemas: dict[str, Any], at_least: int = 0) -> dict[str, Any]:
    """Of an array whose items are any of these."""
    return {"items": schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}, "minItems": at_least}


def keys(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """Of an object with these keys."""
    return {"type": "object", "properties": properties, "required": [*required]}


def record(**properties: dict[str, Any]) -> dict[str, Any]:
    """Of an object that has all of these keys."""
    return keys(*properties, **properties)


def ignored(*names: str) -> tuple[Row, ...]:
    """Clients send them, and they change nothing here."""
    return tuple(Row(name, use=Use.IGNORED) for name in names)


def refused(name: str, types: tuple[str, ...], note: str) -> Row:
    return Row(name, types, note, Use.REFUSED)


def schema_of(rows: Iterable[Row]) -> dict[str, Any]:
    """The JSON schema of an object with these fields; others may stand beside them."""
    rows = tuple(rows)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {row.name: _schema(row) for row in rows if row.use is not Use.REFUSED},
    }
    required = [row.name for row in rows if row.required]
    return schema | {"required": required} if required else schema


def _schema(row: Row) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": row.note} if row.note else {}
    if not row.types:
        return schema
    if row.rows:
        schema |= schema_of(row.rows)
    schema["type"] = row.types[0] if row.required and len(row.types) == 1 else [*row.types]
    if not row.required:
        schema["type"] = [*row.types, "null"]
    if row.low is not None:
        schema["exclusiveMinimum" if row.above else "minimum"] = row.low
    if row.high is not None:
        schema["maximum"] = row.high
    if row.default is not None:
        schema["default"] = row.default
    return schema | row.schema
