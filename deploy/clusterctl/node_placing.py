"""Adding a worker on another machine, and removing it: there first, in the configuration when it is done."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from clusterctl import configfile, draining, edits, node_workers, operations
from clusterctl.nodes import Node, alone_with, installed_version
from clusterctl.operations import OperationError, Say
from clusterctl.progress import SERVES, progress_lines
from clusterctl.wire_keys import forget_worker
from protocol.addresses import LOCAL, Home
from protocol.config import ClusterConfig, WorkerConfig, parse
from protocol.configfile import read_config, read_text

_PATIENCE_S = 60.0
_LOOK_S = 0.5
_ASK_THERE_S = 3.0


def add(home: Home, path: Path, entry: dict[str, Any], say: Say, *, force_memory: bool) -> tuple[bool, str]:
    """Have the worker run on its node; whether that changed anything, and the worker's id.

    Raises what `node_workers.place` does, and `EditError`; then nothing is changed.
    """
    name = entry["node"]
    with alone_with(home, name, _PATIENCE_S):
        text = read_text(path)
        node = Node(parse(text).node_named(name), home)
        changed, worker = edits.add_worker(text, entry)
        if changed == text:
            return False, worker.id
        config = parse(changed)
        node_workers.refuse_unreachable(config)
        node_workers.place(
            home,
            node,
            config,
            worker.id,
            lambda line: say(f"{worker.id}: {line}"),
            force_memory=force_memory,
        )
        whole = {"id": worker.id, **entry}
        configfile.change_config(path, lambda text: edits.add_worker(text, whole)[0])
    operations.follow_config(home, path)
    return True, worker.id


def remove(home: Home, path: Path, worker: WorkerConfig, say: Say) -> None:
    """Have it run no more, once its requests are finished. Raises `OperationError`; it may be repeated."""
    with alone_with(home, worker.node, _PATIENCE_S):
        config = read_config(path)
        node = Node(config.node_named(worker.node), home)
        version = installed_version(node)
        others = tuple(known for known in config.workers if known.id != worker.id)
        say(f"{worker.id}: what it has is being finished")
        node_workers.follow(node, version, msgspec.structs.replace(config, workers=others))
        node_workers.wait_until_gone(node, version, worker.id, worker.drain_timeout_s)
        node_workers.forget_key(node, worker.id)
        configfile.change_config(path, lambda text: edits.remove_worker(text, worker.id))
        forget_worker(home, worker.id)
    operations.follow_config(home, path)


def wait_until_serving(home: Home, config: ClusterConfig, worker_id: str, timeout_s: float, say: Say) -> None:
    """Return when the worker serves, wherever it runs. Raises `OperationError` when it never will."""
    worker = config.worker_named(worker_id)
    if worker.node == LOCAL:
        draining.wait_until_serving(home, config, worker_id, timeout_s, say)
        return
    node = Node(config.node_named(worker.node), home)
    begun = looked = time.monotonic()
    said = ""
    while True:
        status = operations.read_status(home, config)
        line = progress_lines(status)[worker_id]
        if line != said:
            said = line
            say(line)
        if next(w.state for w in status.workers if w.id == worker_id) in SERVES:
            return
        now = time.monotonic()
        if now - looked > _ASK_THERE_S:
            node_workers.refuse_parked(node, worker_id, say)
            looked = time.monotonic()
        if now - begun > timeout_s:
            raise OperationError(
                f"after {timeout_s:g} s {said}; its log is on {node.name}: {node.prefix}/log"
            )
        time.sleep(_LOOK_S)
