"""How far a transfer is, how fast it goes, how long it takes: in words, and shown while it lasts."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clusterctl import output
from clusterctl.memory_fit import size

AGAIN = "run the same command again: it goes on where it stopped"
"""The cure for one that broke off."""
_WINDOW_S = 15.0
_LINE_S = 10.0
_REDRAWN_S = 0.5


class Rate:
    """Bytes a second over the last seconds; what was there before counts as nothing.

    Or of other things, where `told` has them in words.
    """

    def __init__(self, total: int, told: Callable[[int], str] = size) -> None:
        self.total = total
        self._told = told
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now: float, done: int) -> None:
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()

    @property
    def per_s(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (begun, first), (now, done) = self._samples[0], self._samples[-1]
        return max(0.0, (done - first) / (now - begun)) if now > begun else 0.0

    def words(self) -> str:
        """For example `1.2 GB of 17.9 GB, 179 MB/s, 1m 33s left`."""
        done = self._samples[-1][1] if self._samples else 0
        told = f"{self._told(done)} of {self._told(self.total)}"
        if self.per_s >= 1:
            told += f", {self._told(int(self.per_s))}/s"
        if self.per_s > 0 and self.total > done:
            told += f", {span((self.total - done) / self.per_s)} left"
        return told


def span(seconds: float) -> str:
    """A time in words."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m {rest}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60}m"


@contextmanager
def shown(
    what: str, total: int, done: Callable[[], int], told_as: Callable[[int], str] = size
) -> Iterator[None]:
    """Tell on stderr how it goes meanwhile: one line that changes on a terminal, else one every 10 s."""
    rate, ended = Rate(total, told_as), threading.Event()
    terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def watch() -> None:
        told = time.monotonic()
        while True:
            now = time.monotonic()
            rate.note(now, done())
            if terminal:
                sys.stderr.write(f"\r\x1b[K{what}: {rate.words()}")
                sys.stderr.flush()
            elif now - told >= _LINE_S:
                told = now
                output.say(f"{what}: {rate.words()}")
            if ended.wait(_REDRAWN_S):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Counter:
    """Bytes so far, of one who works; any thread may read."""

    def __init__(self, done: int = 0) -> None:
        self.done = done

    def __call__(self, more: int) -> None:
        self.done += more
