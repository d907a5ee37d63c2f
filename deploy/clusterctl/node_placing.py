"""Adding a worker on another machine, and removing it: there first, in the configuration when it is done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterctl import configfile, draining, edits, journal, node_preflight, node_workers, operations
from clusterctl.adding import step
from clusterctl.node_lock import Held, changing
from clusterctl.nodes import Node, installed_version
from clusterctl.operations import OperationError, Say
from clusterctl.progress import SERVES, progress_lines
from clusterctl.reserving import reserved
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.wire_keys import forget_worker
from protocol.addresses import LOCAL, Home
from protocol.config import ClusterConfig, WorkerConfig, parse
from protocol.configfile import read_config, read_text
from protocol.wire_keys import read_allowed

ADD, REMOVE = "add-worker", "remove-worker"
"""In the journal."""
PATIENCE_S = 60.0
_STARTERS = {"process": "its supervisor", "launchd": "launchd"}
_LOOK_S = 0.5
_ASK_THERE_S = 3.0
_LOG_LINES = 40


Prove = Callable[[ClusterConfig, str], None]
"""Returns when the worker of that id serves, and raises when it shall be undone."""


def add(
    home: Home,
    path: Path,
    entry: dict[str, Any],
    say: Say,
    *,
    force_memory: bool,
    prove: Prove | None = None,
) -> tuple[bool, str]:
    """Have the worker run on its node; whether that changed anything, and the worker's id.

    It stands in the configuration once it is started, and where it has to `prove` itself, after that.
    Raises `EditError`, `KeyFileError`, `OperationError` and what `changing` does; then nothing is changed.
    """
    node = Node(read_config(path).node_named(entry["node"]), home)
    with reserved(home, path, entry) as whole:
        text = read_text(path)
        changed, worker = edits.add_worker(text, whole)
        if changed == text:
            return False, worker.id
        node_workers.refuse_unreachable(parse(changed))
        read_allowed(home)  # a damaged one is told before anything is changed
        with changing(home, node, PATIENCE_S) as held:
            say(step("node", f"{node.name} ({node.config.host}), Studiofleet {held.version}"))
            config = parse(edits.add_worker(read_text(path), whole)[0])
            node_preflight.refuse_unfit(node, held.version, config, worker.id, say, force_memory=force_memory)
            _add(home, path, held, whole, say, prove)
    operations.follow_config(home, path)
    return True, worker.id


def _add(home: Home, path: Path, held: Held, whole: dict[str, Any], say: Say, prove: Prove | None) -> None:
    node, version, worker_id = held.node, held.version, whole["id"]
    config = parse(edits.add_worker(read_text(path), whole)[0])
    with (
        journal.operation(home, ADD, {"worker": worker_id, "node": node.name}) as operation,
        node_workers.undone_on_failure(home, node, version, config, worker_id, operation),
    ):
        node_workers.place(home, node, version, config, worker_id, operation)
        say(step("key", "made there, and allowed here"))
        say(step("service", f"{worker_id} is started there, by {_STARTERS[node.config.supervisor]}"))
        if prove is not None:
            with operation.step("prove", worker=worker_id):
                prove(config, worker_id)
        with operation.step("configure"):
            configfile.change_config(path, lambda text: edits.add_worker(text, whole)[0])


def remove(home: Home, path: Path, worker: WorkerConfig, say: Say) -> None:
    """Have it run no more, once its requests are finished. Raises `OperationError`; it may be repeated."""
    node = Node(read_config(path).node_named(worker.node), home)
    with (
        changing(home, node, PATIENCE_S) as held,
        journal.operation(home, REMOVE, {"worker": worker.id, "node": node.name}) as operation,
    ):
        end_there(home, path, held, worker, operation, say)
    operations.follow_config(home, path)


def end_there(
    home: Home,
    path: Path,
    held: Held,
    worker: WorkerConfig,
    operation: journal.Operation,
    say: Say,
) -> None:
    """What `remove` does, while nobody else changes the node."""
    node, version = held.node, held.version
    say(f"{worker.id}: what it has is being finished")
    with operation.step("stop"):
        node_workers.follow(node, version, node_workers.without(read_config(path), worker.id))
        node_workers.wait_until_gone(node, version, worker.id, worker.drain_timeout_s)
        node_workers.forget_key(node, worker.id)
    with operation.step("configure"):
        configfile.change_config(path, lambda text: edits.remove_worker(text, worker.id))
        forget_worker(home, worker.id)


def wait_until_serving(
    home: Home,
    config: ClusterConfig,
    process_id: str,
    timeout_s: float,
    say: Say,
    *,
    not_pid: int | None = None,
) -> None:
    """Return when the process of that id serves, wherever it runs, and has another pid than `not_pid`.

    Raises `OperationError` when it never will.
    """
    worker = next((w for w in config.workers if w.id == process_id and w.node != LOCAL), None)
    if worker is None:
        draining.wait_until_serving(home, config, process_id, timeout_s, say, not_pid=not_pid)
        return
    node = Node(config.node_named(worker.node), home)
    begun = looked = time.monotonic()
    attempts = node_workers.Attempts(worker.id)
    said = ""
    while True:
        status = operations.read_status(home, config)
        line = progress_lines(status)[worker.id]
        if line != said:
            said = line
            say(line)
        seen = next(w for w in status.workers if w.id == worker.id)
        if seen.state in SERVES and seen.pid != not_pid:
            return
        now = time.monotonic()
        if now - looked > _ASK_THERE_S:
            _refuse_hopeless(node, worker.id, attempts, say)
            looked = time.monotonic()
        if now - begun > timeout_s:
            _tell_log(node, worker.id, say)
            raise OperationError(
                f"after {timeout_s:g} s {said}; its log is on {node.name}: {node.prefix}/log; whether its"
                f" gateways are reached from there: clusterctl node run {node.name} doctor"
            )
        time.sleep(_LOOK_S)


def _refuse_hopeless(node: Node, worker_id: str, attempts: node_workers.Attempts, say: Say) -> None:
    """Raises `OperationError` when it never comes up; a machine that does not answer is asked again."""
    try:
        found = attempts.hopeless(node_workers.witnesses(node, installed_version(node)))
    except (HostUnreachableError, RunnerTimeoutError, OperationError):
        return
    if found is not None:
        for line in found.last_log:
            say(f"  {line}")
        raise OperationError(f"{worker_id} does not come up on {node.name}: {found.last_error}")


def _tell_log(node: Node, worker_id: str, say: Say) -> None:
    """The end of it, if the machine answers."""
    with contextlib.suppress(HostUnreachableError, RunnerTimeoutError, OperationError):
        words = ["logs", worker_id, "--lines", str(_LOG_LINES)]
        for line in node.clusterctl(installed_version(node), words).out.splitlines():
            say(f"  {line}")
