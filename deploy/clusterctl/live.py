"""A picture that is drawn anew until Ctrl-C: in place on a terminal, one beneath the other elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NoReturn

from rich.console import Console, RenderableType
from rich.live import Live

from clusterctl.tables import console

Look = Callable[[Console], RenderableType]
"""What there is to see now, on that console."""


@contextlib.contextmanager
def looked_at() -> Iterator[None]:
    """For what goes on until somebody has seen enough: by Ctrl-C, or, reading it by `head`, by leaving."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def watch(look: Look, interval_s: float, count: int | None, *, whole_screen: bool) -> None:
    """Look every so many seconds, `count` times if that is given.

    `whole_screen`: the terminal is as before afterwards; otherwise the last picture stays there.
    """
    to = console()
    in_place = to.is_terminal and not to.is_dumb_terminal
    drawn = _in_place(to, whole_screen=whole_screen) if in_place else _beneath(to)
    with looked_at(), drawn as draw:
        for turn in itertools.count() if count is None else range(count):
            if turn:
                time.sleep(interval_s)
            draw(look(to))


@contextlib.contextmanager
def _in_place(to: Console, *, whole_screen: bool) -> Iterator[Callable[[RenderableType], None]]:
    before = signal.signal(signal.SIGTERM, _end)
    try:
        with Live(console=to, screen=whole_screen, auto_refresh=False) as live:
            yield lambda picture: live.update(picture, refresh=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _frame: object) -> NoReturn:
    """Leave the terminal as it was, which a signal that ends at once does not."""
    sys.exit(128 + number)


@contextlib.contextmanager
def _beneath(to: Console) -> Iterator[Callable[[RenderableType], None]]:
    def draw(picture: RenderableType) -> None:
        to.print(f"{datetime.now():%Y-%m-%d %H:%M:%S}", picture, "", sep="\n")
        sys.stdout.flush()

    yield draw
