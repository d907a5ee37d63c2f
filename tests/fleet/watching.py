"""Looking at the processes of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def watching_processes() -> Iterator[set[str]]:
    """The arguments and the environment of all processes, as anybody of this machine may see them."""
    seen: set[str] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            for path in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        seen.add((path / name).read_bytes().decode(errors="replace"))
                    except OSError:
                        continue

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def processes_of(prefix: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(word.startswith(str(prefix)) for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found
