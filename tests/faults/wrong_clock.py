"""Imported before anything else, this lets a test set the clock of a process: a file says by how much."""

from __future__ import annotations

import os
import time
from pathlib import Path

_time, _time_ns = time.time, time.time_ns


def _wrong_by() -> float:
    return float(Path(os.environ["WRONG_CLOCK"]).read_text())


def begin() -> None:
    time.__dict__.update(
        time=lambda: _time() + _wrong_by(), time_ns=lambda: _time_ns() + int(_wrong_by() * 1e9)
    )
