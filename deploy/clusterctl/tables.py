"""Tables as all commands show them, without colours and line breaks where the output is no terminal."""

from __future__ import annotations

import errno
import re
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from protocol.states import WorkerState

_WIDE = 250
"""Columns where the output is no terminal: lines are not broken there."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = {
    WorkerState.READY: "green",
    WorkerState.FAILED: "red",
    WorkerState.PARKED: "red",
    WorkerState.STOPPED: "dim",
}


class _Printer(Console):
    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 (what rich has just caught, and ends the program for, without a word, with 1)


def console() -> Console:
    """What prints to the standard output. Raises `OSError` where that is closed."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "the standard output is closed; send it to /dev/null to see nothing")
    if sys.stdout.isatty():
        return _Printer()
    return _Printer(no_color=True, force_terminal=False, width=_WIDE)


def new_table(*headers: str) -> Table:
    """An empty table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header)
    return table


def add_row(table: Table, *cells: object) -> None:
    """One more row; what is not known stands there as a dash."""
    table.add_row(*(_cell(cell) for cell in cells))


def plain(text: str, style: str = "") -> Text:
    """What others said, which must not move the cursor of whoever reads it."""
    return Text(_CONTROL.sub("", text), style=style)


def _cell(cell: object) -> Text:
    text = "-" if cell is None or cell == "" else str(cell)
    return plain(text, style=_COLOURS.get(text, "") if text in tuple(WorkerState) else "")  # type: ignore[call-overload]
