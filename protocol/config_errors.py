"""What is wrong with a configuration, in words: the table by its name, the nearest key, the rule."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

_ENTRY = re.compile(r"\$\.(workers|gateways)\[(\d+)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_NO_CHOICE = re.compile(r"Invalid enum value .* at `\$\S*\.(\w+)`")
_ID_RULE = "an id has 1 to 32 letters, digits, '.', '_' or '-', and begins with a letter or a digit"


class ConfigError(ValueError):
    """The configuration cannot be used: what is wrong, where, and what to do."""


def explain(
    complaint: str, raw: dict[str, Any], keys: Collection[str], choices: Mapping[str, Collection[Any]]
) -> str:
    """`complaint` is the decoder's, `raw` the tables as read, `keys` all that a table may contain,
    `choices` the values of those that take only some.
    """
    words = [complaint]
    if (unknown := _UNKNOWN.search(complaint)) is not None:
        near = difflib.get_close_matches(unknown[1], keys, n=1)
        words += [f"did you mean `{near[0]}`?"] if near else ["remove it"]
    elif "matching regex" in complaint:
        words = [_ID_RULE, complaint.partition(" - ")[2]]
    elif "`$.version`" in complaint or "field `version`" in complaint:
        words.append("this version of Studiofleet reads `version = 1`")
    elif (key := _NO_CHOICE.search(complaint)) is not None:
        words.append("write one of " + ", ".join(map(repr, choices.get(key[1], ()))))
    elif "got `str`" in complaint:
        words.append("write it without quotes")
    elif "`str`, got" in complaint:
        words.append("write it in quotes")
    if (entry := _ENTRY.search(complaint)) is not None:
        words.append(f"that is {entry[1][:-1]} {_id_of(raw, entry[1], int(entry[2]))}")
    return "; ".join(words)


def _id_of(raw: dict[str, Any], table: str, index: int) -> str:
    entry = raw[table][index]
    given = entry.get("id") if isinstance(entry, dict) else None
    return repr(given) if given is not None else f"number {index + 1}, which has no id"
