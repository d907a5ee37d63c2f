"""Changes to the text of `cluster.toml` that keep its comments. Text in, text out."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import tomlkit
from msgspec.structs import replace
from tomlkit.items import AoT, Array, Table

from protocol.config import ClusterConfig, WorkerConfig, parse
from protocol.config_errors import ConfigError

TEMPLATE = """\
# The wanted state of this cluster. All keys and their defaults: deploy/cluster.example.toml.
# After a change: clusterctl up
version = 1
supervisor = "process"      # the one that comes with clusterctl

[gateway]
id = "gw-1"
http = {http}   # where clients connect
listen = ["ipc"]            # where workers connect: a socket in this home
"""

_WORKER_TEMPLATE = """
[[workers]]
id = "smol-{number}"
model = "embedded"          # the small model that comes along; or a folder with an MLX model
aliases = ["default"]       # further names under which clients may ask for it
max_num_seqs = 8            # requests that are computed together
"""


class EditError(ValueError):
    """The change is refused: why, and what to do."""


def new_config(http: str, workers: int) -> str:
    """The least configuration that is useful. Raises `ConfigError`."""
    text = TEMPLATE.format(http=tomlkit.item(http).as_string())
    text += "".join(_WORKER_TEMPLATE.format(number=number) for number in range(1, workers + 1))
    parse(text)
    return text


def add_worker(text: str, entry: Mapping[str, Any], taken: Collection[str] = ()) -> tuple[str, WorkerConfig]:
    """The text with a worker more; the same text when that very worker is there already.

    Without an `id` the entry gets a free one, none of those `taken`. Raises `EditError` when the id has
    another worker, and `ConfigError` when the result would not be valid.
    """
    config = parse(text)
    wanted = dict(entry)
    if "id" not in wanted:
        name = _worker({**wanted, "id": "unnamed"}).name
        wanted = {"id": free_id(config, name, taken), **wanted}
    known = [worker for worker in config.workers if worker.id == wanted["id"]]
    if known:
        _refuse_a_different_one(known[0], wanted)
        return text, known[0]
    changed = _insert(text, wanted)
    return changed, parse(changed).worker_named(str(wanted["id"]))


def remove_worker(text: str, worker_id: str) -> str:
    """The text without that worker. Raises `ConfigError` when there is none of that id."""
    parse(text).worker_named(worker_id)
    return without(text, "workers", "id", worker_id)


def without(text: str, kind: str, key: str, value: str) -> str:
    """The text without the table of `[[kind]]` whose key has that value: one is there.

    Raises `ConfigError` when the result would not be valid.
    """
    document = tomlkit.parse(text)
    tables = document[kind]
    if not isinstance(tables, AoT | Array):
        raise EditError(f"`{kind}` is not written as a list of tables; remove {value} by hand")
    index = next(i for i, table in enumerate(tables) if table[key] == value)
    del tables[index]
    if not tables:
        del document[kind]
    changed = tomlkit.dumps(document)
    parse(changed)
    return changed


def appended(text: str, kind: str, table: Table) -> str:
    """The text with a table of `[[kind]]` more, at the very end: it must not fall into another table."""
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}\n[[{kind}]]\n{table.as_string()}"


def difference(old: str, new: str, name: str) -> str:
    """What `diff -u` shows of the two texts."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), name, f"{name} (new)"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def free_id(config: ClusterConfig, name: str, taken: Collection[str] = ()) -> str:
    """An id made from the model's name that no process has."""
    taken = {*taken, *(gateway.id for gateway in config.all_gateways), *(w.id for w in config.workers)}
    base = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:26].rstrip("-._") or "worker"
    number = 1
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"


def option(text: str) -> tuple[str, Any]:
    """`key=value` of an engine option; the value is TOML where it can be, else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise EditError(f"{text!r} is no engine option: write KEY=VALUE")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return key, value


def _worker(entry: Mapping[str, Any]) -> WorkerConfig:
    try:
        return msgspec.convert(entry, WorkerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the worker: {error}") from error


def _insert(text: str, entry: Mapping[str, Any]) -> str:
    document = tomlkit.parse(text)
    workers = document.get("workers")
    if isinstance(workers, Array):
        inline = tomlkit.inline_table()
        inline.update(entry)
        workers.append(inline)
        return tomlkit.dumps(document)
    table = tomlkit.table()
    for key, value in entry.items():
        table.add(key, _inline(value))
    if isinstance(workers, AoT) and len(workers):
        workers[-1].add(tomlkit.nl())
        workers.append(table)
        return tomlkit.dumps(document)
    return appended(text, "workers", table)


def _inline(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


def _refuse_a_different_one(known: WorkerConfig, wanted: Mapping[str, Any]) -> None:
    known, other = (replace(worker, max_num_seqs=worker.slots) for worker in (known, _worker(wanted)))
    differences = [
        f"{field}: {_shown(getattr(known, field))} there, {_shown(getattr(other, field))} asked"
        for field in known.__struct_fields__
        if getattr(known, field) != getattr(other, field)
    ]
    if differences:
        raise EditError(
            f"there is a worker {known.id!r} already, and it differs: {'; '.join(differences)}."
            f" Choose another --id, or remove it first: clusterctl remove-worker {known.id}"
        )


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None else repr(value)
