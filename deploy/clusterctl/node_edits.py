"""Changes to the `[[nodes]]` of `cluster.toml` that keep its comments. Text in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import tomlkit

from clusterctl.edits import EditError, appended, without
from protocol.config import NodeConfig, parse
from protocol.config_errors import ConfigError


def add_node(text: str, entry: Mapping[str, Any]) -> str:
    """The text with a node more; the same text when that very node is there already.

    Raises `EditError` when the name has another node, and `ConfigError` when the result is not valid.
    """
    try:
        wanted = msgspec.convert(entry, NodeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the node: {error}") from error
    for known in parse(text).nodes:
        if known == wanted:
            return text
        if known.name == wanted.name:
            raise EditError(
                f"there is a node {known.name!r} already, and it differs; choose another --name, or remove"
                f" it first: clusterctl node remove {known.name}"
            )
    table = tomlkit.table()
    for key, value in entry.items():
        table.add(key, value)
    changed = appended(text, "nodes", table)
    parse(changed)
    return changed


def remove_node(text: str, name: str) -> str:
    """The text without that node; the same where there is none. Raises `EditError` and `ConfigError`."""
    if all(node.name != name for node in parse(text).nodes):
        return text
    return without(text, "nodes", "name", name)
