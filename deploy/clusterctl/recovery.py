"""What was being added, removed or upgraded when clusterctl was cut off: finished or undone, and told."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from clusterctl import journal, node_workers, operations
from clusterctl.journal import Entry, Operation
from clusterctl.node_lock import changing
from clusterctl.node_placing import ADD, PATIENCE_S, REMOVE, end_there
from clusterctl.nodes import Node
from clusterctl.operations import Say
from clusterctl.upgrading import UPGRADE, Upgrading
from clusterctl.wire_keys import forget_worker
from protocol.addresses import LOCAL, Home
from protocol.config import ClusterConfig, WorkerConfig
from protocol.configfile import read_config
from protocol.locks import LockHeldError

RESUMED, UNDONE = "resumed", "undone"
"""What becomes of an operation that was interrupted."""
_WORDS = {RESUMED: "it is finished now", UNDONE: "it is undone"}


def recover(home: Home, path: Path, say: Say, but: Collection[Entry] = ()) -> None:
    """Finish or undo what was cut off; what needs a machine that is away waits for the next time.

    The command goes on by itself with what stands in `but`. Raises `ConfigError` and `OSError`.
    """
    for entry in journal.interrupted(home):
        if entry.name not in (ADD, REMOVE, UPGRADE) or entry in but:
            continue
        with journal.taken_up(home, entry) as operation:
            if operation is not None:
                _take_up(home, path, operation, say)


def _take_up(home: Home, path: Path, operation: Operation, say: Say) -> None:
    entry = operation.entry
    begun = f"{entry.words} was interrupted {entry.reached}"
    try:
        operation.outcome = _settle(home, path, operation, say)
    except (*node_workers.UNDOING_FAULTS, LockHeldError) as error:
        say(f"{begun}; that cannot be undone or finished now, the next command tries again: {error}")
        operation.leave_open()
    except BaseException:
        operation.leave_open()
        raise
    else:
        say(f"{begun}; {_WORDS[operation.outcome]}")


def _settle(home: Home, path: Path, operation: Operation, say: Say) -> str:
    entry, config = operation.entry, read_config(path)
    if entry.name == UPGRADE:
        return _undo_upgrade(home, path, _node(home, config, entry), operation, say)
    worker = next((known for known in config.workers if known.id == entry.subject["worker"]), None)
    if entry.name == ADD and worker is not None:
        operations.follow_config(home, path)  # it stands in the configuration when all else is done
        return RESUMED
    node = _node(home, config, entry)
    if entry.name == ADD:
        if node is None:
            forget_worker(home, entry.subject["worker"])
            return UNDONE
        with changing(home, node, PATIENCE_S) as held:
            node_workers.withdraw(home, node, held.version, config, entry.subject["worker"])
        return UNDONE
    return _go_on_removing(home, path, node, worker, operation, say)


def _undo_upgrade(home: Home, path: Path, node: Node | None, operation: Operation, say: Say) -> str:
    if node is not None:
        with changing(home, node, PATIENCE_S):
            Upgrading(home, path, say).roll_back(node, operation)
    return UNDONE


def _go_on_removing(
    home: Home, path: Path, node: Node | None, worker: WorkerConfig | None, operation: Operation, say: Say
) -> str:
    if worker is not None and (node is None or not operation.entry.has_begun("stop")):
        return UNDONE  # nothing was done yet
    if worker is not None and node is not None:
        with changing(home, node, PATIENCE_S) as held:
            end_there(home, path, held, worker, operation, say)
    forget_worker(home, operation.entry.subject["worker"])
    operations.follow_config(home, path)
    return RESUMED


def _node(home: Home, config: ClusterConfig, entry: Entry) -> Node | None:
    """None for this machine, and for one that was forgotten meanwhile."""
    name = entry.subject["node"]
    known = next((node for node in config.nodes if node.name == name and name != LOCAL), None)
    return None if known is None else Node(known, home)
