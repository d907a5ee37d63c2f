"""What `add-worker` tells of its steps, a line for each, with its figures. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable

_NAMES = 9
"""Columns that the name of a step has."""


def step(name: str, words: str) -> str:
    """The line of one step."""
    return f"{name:<{_NAMES}} {words}"


def memory_steps(lines: Iterable[str], worker_id: str) -> list[str]:
    """Of the arithmetic that `model fit` tells, what the worker needs, and what is taken with it."""
    found = []
    for line in lines:
        name, _, words = line.partition(": ")
        if name.removesuffix(" (on demand)") == worker_id:
            found.append(f"need {words}")
        elif name == "together":
            found.append(f"{words} taken after this")
    return [step("" if number else "memory", words) for number, words in enumerate(found)]


def invitation(url: str, model: str, *, needs_key: bool) -> list[str]:
    """How to ask the model, ready to paste."""
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}]}
    words = ["curl", f"{url}/v1/chat/completions", "-H", "content-type: application/json"]
    key = ['-H "authorization: Bearer $STUDIOFLEET_API_KEY"'] if needs_key else []
    return ["to ask it:", "  " + " ".join([shlex.join(words), *key, "-d", shlex.quote(json.dumps(body))])]
