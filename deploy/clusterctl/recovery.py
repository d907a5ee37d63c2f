"""What was being added, removed or upgraded when clusterctl was cut off: finished or undone, and told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterctl import journal, node_workers, operations
from clusterctl.journal import Entry, Operation
from clusterctl.node_lock import changing
from clusterctl.node_placing import ADD, PATIENCE_S, REMOVE, end_there
from clusterctl.nodes import Node
from clusterctl.operations import Say
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.upgrading import UPGRADE, Upgrading
from clusterctl.wire_keys import forget_worker
from protocol.addresses import LOCAL, Home
from protocol.config import ClusterConfig, NodeConfig, WorkerConfig
from protocol.configfile import read_config
from protocol.locks import LockHeldError

RESUMED, UNDONE = "resumed", "undone"
"""What becomes of an operation that was interrupted."""
_AT_ONCE = 16
_GLANCE_S = 3.0
"""Whoever changes one machine waits so long for another one."""
_PUT_OFF = "that cannot be undone or finished now, the next command tries again"
_WORDS = {RESUMED: "it is finished now", UNDONE: "it is undone"}


def recover(
    home: Home,
    path: Path,
    say: Say,
    nodes: Collection[str] | None = None,
    *,
    but: Collection[Entry] = (),
) -> None:
    """Finish or undo what was cut off; what needs a machine that is away waits for the next time.

    Machines are asked side by side. Where `nodes` are given, of the other ones in the configuration only an
    upgrade is taken up, as a part of the fleet has another version meanwhile, and only if they answer at
    once: one that is away holds up no command for others. The command goes on by itself with what stands
    in `but`. Raises `ConfigError` and `OSError`.
    """
    config = read_config(path)
    others = {known.name: known for known in config.nodes if nodes is not None and known.name not in nodes}
    left: dict[str, list[Entry]] = {}
    for entry in journal.interrupted(home):
        node = entry.subject.get("node", LOCAL)
        wanted = (UPGRADE,) if node in others else (ADD, REMOVE, UPGRADE)
        if entry.name in wanted and entry not in but:
            left.setdefault(node, []).append(entry)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for done in [
            pool.submit(_take_all_up, home, path, entries, say, others.get(node))
            for node, entries in left.items()
        ]:
            done.result()


def _take_all_up(
    home: Home, path: Path, entries: Sequence[Entry], say: Say, other: NodeConfig | None
) -> None:
    """What was cut off on one machine; of an `other` one if it answers at once."""
    if other is not None:
        try:
            Node(other, home).runner.run(["true"], limit_s=_GLANCE_S)
        except (HostUnreachableError, RunnerTimeoutError) as error:
            for entry in entries:
                say(f"{_begun(entry)}; {_PUT_OFF}: {error}")
            return
    for entry in entries:
        with journal.taken_up(home, entry) as operation:
            if operation is not None:
                _take_up(home, path, operation, say)


def _take_up(home: Home, path: Path, operation: Operation, say: Say) -> None:
    begun = _begun(operation.entry)
    try:
        operation.outcome = _settle(home, path, operation, say)
    except (*node_workers.UNDOING_FAULTS, LockHeldError) as error:
        say(f"{begun}; {_PUT_OFF}: {error}")
        operation.leave_open()
    except BaseException:
        operation.leave_open()
        raise
    else:
        say(f"{begun}; {_WORDS[operation.outcome]}")


def _begun(entry: Entry) -> str:
    return f"{entry.words} was interrupted {entry.reached}"


def _settle(home: Home, path: Path, operation: Operation, say: Say) -> str:
    entry, config = operation.entry, read_config(path)
    if entry.name == UPGRADE:
        return _undo_upgrade(home, path, _node(home, config, entry), operation, say)
    there = config.workers_on(entry.subject["node"])
    worker = next((known for known in there if known.id == entry.subject["worker"]), None)
    if entry.name == ADD and worker is not None:
        operations.follow_config(home, path)  # it stands in the configuration when all else is done
        return RESUMED
    node = _node(home, config, entry)
    if entry.name == ADD:
        _undo_adding(home, config, node, entry.subject["worker"])
        return UNDONE
    return _go_on_removing(home, path, node, worker, operation, say)


def _undo_adding(home: Home, config: ClusterConfig, node: Node | None, worker_id: str) -> None:
    if node is not None:
        with changing(home, node, PATIENCE_S) as held:
            node_workers.withdraw(home, node, held.version, config, worker_id)
    else:
        _forget(home, config, worker_id)


def _forget(home: Home, config: ClusterConfig, worker_id: str) -> None:
    """Unless another machine's worker has the id now."""
    if all(worker.id != worker_id for worker in config.workers):
        forget_worker(home, worker_id)


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
    _forget(home, read_config(path), operation.entry.subject["worker"])
    operations.follow_config(home, path)
    return RESUMED


def _node(home: Home, config: ClusterConfig, entry: Entry) -> Node | None:
    """None for this machine, and for one that was forgotten meanwhile."""
    name = entry.subject["node"]
    known = next((node for node in config.nodes if node.name == name and name != LOCAL), None)
    return None if known is None else Node(known, home)
