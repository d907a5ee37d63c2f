"""Tables of docs/api.md and docs/observability.md, made from the code's own; the rest is written by hand.

`python -P -m gateway.reference FILE` writes them; with `--check` it fails when FILE is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from gateway.dialects.table import Row, Use
from gateway.failures import TABLE, Shape, status_of
from gateway.measures import MEASURES
from gateway.surface import ROUTES, Route
from protocol.errors import ClusterError, ErrorCode

_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """The page with its tables as they are now. Raises `KeyError` for a table that nobody knows."""
    tables = {"paths": _paths, "fields": _fields, "errors": _errors, "measures": _measures}
    return _BLOCK.sub(lambda found: f"{found[1]}{''.join(tables[found[2]]())}{found[3]}", text)


def _paths() -> Iterator[str]:
    yield "| method | path | |\n|---|---|---|\n"
    for route in ROUTES:
        streamed = f", streamed as `{route.streamed}`" if route.streamed else ""
        yield f"| {route.method} | `{route.path}` | {route.title}{streamed} |\n"


def _fields() -> Iterator[str]:
    seen: dict[int, Route] = {}
    for route in ROUTES:
        if route.rows is None:
            continue
        if id(route.rows) in seen:
            yield f"\n### POST {route.path}\n\nAs {seen[id(route.rows)].path}.\n"
            continue
        seen[id(route.rows)] = route
        yield f"\n### POST {route.path}\n\n"
        yield "| field | type | range | default | |\n|---|---|---|---|---|\n"
        yield from _rows(route.rows)
        names = [f"`{name}`" for name, row in _flat(route.rows) if row.use is Use.IGNORED]
        if names:
            yield f"\nTaken, and without effect: {', '.join(names)}.\n"
    yield "\n"


def _rows(rows: Iterable[Row]) -> Iterator[str]:
    for name, row in _flat(rows):
        if row.use is Use.IGNORED:
            continue
        note = f"refused: {row.note}" if row.use is Use.REFUSED else row.note
        note = f"**required**; {note}".removesuffix("; ") if row.required else note
        default = "" if row.default is None else f"{row.default:g}"
        yield f"| `{name}` | {' or '.join(row.types) or 'any'} | {_range(row)} | {default} | {note} |\n"


def _flat(rows: Iterable[Row], prefix: str = "") -> Iterator[tuple[str, Row]]:
    for row in rows:
        yield prefix + row.name, row
        yield from _flat(row.rows, f"{prefix}{row.name}.")


def _range(row: Row) -> str:
    if row.low is None:
        return ""
    least = f"above {row.low}" if row.above else str(row.low)
    if row.high is None or row.high >= 2**63 - 1:
        return "64 bits, signed" if row.low < -(2**62) else f"{least} or more"
    return f"{least} to {row.high:g}"


def _errors() -> Iterator[str]:
    yield "| code | OpenAI | `/v1/responses` | Anthropic | `code` in the body | told when to try again |\n"
    yield "|---|---|---|---|---|---|\n"
    for code, failure in TABLE.items():
        if code is ErrorCode.CLIENT_CLOSED_REQUEST:
            continue
        shapes = (Shape.OPENAI, Shape.RESPONSES, Shape.ANTHROPIC)
        told = " | ".join(str(status_of(ClusterError(code, ""), shape)) for shape in shapes)
        again = "yes" if failure.retry_after else "never" if failure.never_retry else ""
        yield f"| {code} | {told} | `{failure.code}` | {again} |\n"


def _measures() -> Iterator[str]:
    yield "| name | kind | labels | |\n|---|---|---|---|\n"
    for each in MEASURES:
        name = f"{each.name}_total" if each.kind == "counter" else each.name
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{name}` | {each.kind} | {labels} | {each.text} |\n"


def main() -> None:
    """The program."""
    arguments = argparse.ArgumentParser(prog="docs", description=__doc__)
    arguments.add_argument("file", type=Path)
    arguments.add_argument("--check", action="store_true")
    options = arguments.parse_args()
    text = options.file.read_text(encoding="utf-8")
    if not options.check:
        options.file.write_text(page(text), encoding="utf-8")
    elif text != page(text):
        sys.exit(f"{options.file} is not current; run: scripts/docs")


if __name__ == "__main__":
    main()
