"""Tool calls that are JSON: `{"name": …, "arguments": {…}}`, and how arguments are written. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from worker.parsers.base import Call, Tools

TOOL_CALL = ("<tool_call>", "</tool_call>")
"""The usual marks around a call."""
_LONE_BACKSLASH = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_BEGUN = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)', re.DOTALL)
_LONGEST_NAME = 256
_MOST_DEEP = "it is nested too deeply"


def read_json_calls(text: str, tools: Tools) -> list[Call]:
    """One call, or an array of them. Raises `ValueError` for anything else.

    Line ends inside strings are taken, and a backslash that escapes nothing stands for itself, since
    models write paths and patterns so.
    """
    del tools
    return as_calls(_loads(text.strip()))


def begun_call(text: str) -> tuple[Call, bool] | None:
    """A call that a grammar wrote, as far as it goes, and whether its arguments are complete.

    None where not even its name is.
    """
    found = _BEGUN.match(text)
    if found is None:
        return None
    arguments = text[found.end() :]
    try:
        (call,) = as_calls({"name": json.loads(found[1], strict=False)})
    except ValueError:
        return None
    try:
        value, _end = json.JSONDecoder(strict=False).raw_decode(arguments)
        return _as_call({"name": call.name, "arguments": value}), True
    except (ValueError, RecursionError):
        return Call(call.name, arguments), False


def as_calls(found: Any) -> list[Call]:
    """What a parser found, checked: one call, or a list of them. Raises `ValueError`."""
    calls = found if isinstance(found, list) else [found]
    if not calls:
        raise ValueError("there is no call")
    return [_as_call(call) for call in calls]


def _as_call(found: Any) -> Call:
    if not isinstance(found, dict):
        raise ValueError("a call is no JSON object")
    name = found.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        raise ValueError("a call has no name that could be one")
    arguments = found.get("arguments", found.get("parameters"))  # as some families name them
    if isinstance(arguments, str):
        arguments = _loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call are no JSON object")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (name + text).encode()
    except (TypeError, RecursionError, UnicodeError) as error:
        raise ValueError(f"the arguments of a call cannot be written: {error}") from error
    return Call(name, text)


def argument_object(text: str) -> dict[str, Any]:
    """The arguments of a call in a history, as templates read them: what is no object is put into one."""
    if not text.strip():
        return {}
    try:
        value = _loads(text)
        if "\\u" in text:  # half a surrogate pair has no place in a prompt
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {"input": text}
    if value is None:
        return {}
    return value if isinstance(value, dict) else {"input": value}


def _loads(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except RecursionError as error:
        raise ValueError(_MOST_DEEP) from error
    except ValueError:
        mended = _LONE_BACKSLASH.sub(lambda match: match[0] if match[1] else r"\\", text)
        if mended == text:
            raise
    try:
        return json.loads(mended, strict=False)
    except RecursionError as error:
        raise ValueError(_MOST_DEEP) from error
