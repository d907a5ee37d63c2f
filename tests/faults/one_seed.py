"""Imported before anything else, this makes a gateway draw the same seed wherever a request brings none."""

from __future__ import annotations

import secrets

SEED = 11


def begin() -> None:
    secrets.__dict__["randbits"] = lambda _bits: SEED
