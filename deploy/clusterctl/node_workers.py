"""Workers on another machine: what it is told of the cluster, their keys, and following a change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

import msgspec
import tomlkit

from clusterctl.journal import Operation
from clusterctl.nodes import FOLLOW_S, Node, installed_version
from clusterctl.operations import OperationError, RefusedError, RolledBackError
from clusterctl.runner import Ended, RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.wire_keys import public_key
from protocol.addresses import LOCAL, AddressError, Home, is_tcp, tcp_host
from protocol.config import ClusterConfig, GatewayConfig, WorkerConfig
from protocol.keyfiles import KeyFileError
from protocol.states import WorkerState
from protocol.wire_keys import allow, is_key

_HEAD = "# Written by clusterctl of the machine that operates this cluster; changes here are lost.\n"
_EVERYWHERE = ("0.0.0.0", "[::]", "*")  # noqa: S104 (refused)
_LOOK_S = 0.5
_GRACE_S = 60.0
_PUT = 'umask 077; cat >"$1.new" && mv "$1.new" "$1"'
UNDOING_FAULTS = (
    HostUnreachableError,
    RunnerTimeoutError,
    OperationError,
    KeyFileError,
    AddressError,
    OSError,
)
"""With these, what was begun cannot be undone now."""


_IN_VAIN = 3


class Witness(msgspec.Struct, frozen=True):
    """What a node's own clusterctl says of one worker."""

    id: str
    state: str
    restarts: int | None = None
    last_exit: int | None = None
    last_error: str | None = None
    last_log: tuple[str, ...] = ()


class _Witnesses(msgspec.Struct, frozen=True):
    workers: tuple[Witness, ...]


def refuse_unreachable(config: ClusterConfig) -> None:
    """Raises `RefusedError` unless workers of another machine could reach each gateway."""
    for gateway in config.all_gateways:
        dialled(gateway)


def dialled(gateway: GatewayConfig) -> str:
    """Where workers of other machines reach it. Raises `RefusedError`."""
    tcp = [listen for listen in gateway.listen if is_tcp(listen)]
    if not tcp:
        raise RefusedError(
            f"the gateway {gateway.id} takes no workers of other machines; add an address of this one that"
            ' they reach, and restart it: listen = ["ipc", "tcp://10.0.0.5:5555"]'
        )
    if all(tcp_host(listen) in _EVERYWHERE for listen in tcp):
        raise RefusedError(
            f"the gateway {gateway.id} listens at {tcp[0]}, which names no machine; write the address by"
            " which the nodes reach it"
        )
    return next(listen for listen in tcp if tcp_host(listen) not in _EVERYWHERE)


def node_config(config: ClusterConfig, node: str) -> str:
    """What that machine has to know: its own workers, where the gateways are, how to beat, log and trace."""
    residency = msgspec.to_builtins(config.residency)
    if (budget := config.node_named(node).memory_budget_mb) is not None:
        residency["memory_budget_mb"] = budget
    supervisor = config.node_named(node).supervisor
    document: dict[str, Any] = {
        "version": 1,
        **({} if supervisor == "process" else {"supervisor": supervisor}),
        "heartbeat": msgspec.to_builtins(config.heartbeat),
        "residency": {key: value for key, value in residency.items() if value is not None},
        "log": msgspec.to_builtins(config.log),
        **({"traces": msgspec.to_builtins(config.traces)} if config.traces.endpoint else {}),
        "gateways": [_gateway(gateway) for gateway in config.all_gateways],
        "workers": [_worker(worker) for worker in config.workers_on(node)],
    }
    return _HEAD + tomlkit.dumps(document)


def _gateway(gateway: GatewayConfig) -> dict[str, Any]:
    """Without what clients see of it."""
    entry = {"id": gateway.id, "http": "127.0.0.1:0", "node": "elsewhere", "listen": [dialled(gateway)]}
    return entry | ({"insecure_tcp": True} if gateway.insecure_tcp else {})


def _worker(worker: WorkerConfig) -> dict[str, Any]:
    defaults = msgspec.to_builtins(WorkerConfig(id=worker.id, model=worker.model))
    entry = msgspec.to_builtins(msgspec.structs.replace(worker, node=LOCAL))
    kept = {k: v for k, v in entry.items() if v != defaults[k] or k in ("id", "model")}
    return {key: value for key, value in kept.items() if value is not None}


def follow(node: Node, version: str, config: ClusterConfig) -> None:
    """Have the machine run what the configuration says of it. Raises `OperationError`."""
    text = node_config(config, node.name).encode()
    _must(node, node.runner.run(["/bin/sh", "-c", _PUT, "sh", str(node.config_file)], stdin=text), "its file")
    command = "up" if config.workers_on(node.name) else "down"
    _must(node, node.clusterctl(version, [command], FOLLOW_S), f"clusterctl {command}")


def place(
    home: Home,
    node: Node,
    version: str,
    config: ClusterConfig,
    worker_id: str,
    operation: Operation,
) -> None:
    """Start a worker of the configuration there. Raises `OperationError`; see `undone_on_failure`."""
    with operation.step("key", worker=worker_id):
        _issue_key(home, node, version, config, worker_id)
    with operation.step("start", worker=worker_id):
        follow(node, version, config)


@contextlib.contextmanager
def undone_on_failure(
    home: Home,
    node: Node,
    version: str,
    config: ClusterConfig,
    worker_id: str,
    operation: Operation,
) -> Iterator[None]:
    """When the block fails, the worker is not there; if that cannot be now, the next command sees to it.

    Raises `RolledBackError` when all is as it was, and else what the block raises.
    """
    try:
        yield
    except BaseException as error:
        try:
            withdraw(home, node, version, config, worker_id)
        except UNDOING_FAULTS:
            operation.leave_open()  # what is in the way of that was in the way before, and is told already
            error.add_note(f"it cannot be undone on {node.name} now: the next command for that node does it")
            raise error from None
        except BaseException:
            operation.leave_open()
            raise
        if not isinstance(error, Exception):
            raise
        raise RolledBackError(
            f"{error}; what was begun on {node.name} is undone: once that is put right, do the same again"
        ) from error


def withdraw(home: Home, node: Node, version: str, config: ClusterConfig, worker_id: str) -> None:
    """Have nothing of a worker there, whether or not it was placed. Raises what is in `UNDOING_FAULTS`."""
    with contextlib.ExitStack() as each:  # all of it, whatever comes of the others
        if all(worker.id != worker_id or worker.node == node.name for worker in config.workers):
            each.callback(allow, home, worker_id, None)  # else another machine's worker has the id now
        each.callback(forget_key, node, worker_id)
        follow(node, version, without(config, worker_id))


def without(config: ClusterConfig, worker_id: str) -> ClusterConfig:
    """The configuration without that worker."""
    others = tuple(known for known in config.workers if known.id != worker_id)
    return msgspec.structs.replace(config, workers=others)


def forget_key(node: Node, worker_id: str) -> None:
    """Another worker of that id gets another pair. Raises `OperationError`."""
    _must(node, node.runner.run(["rm", "-f", str(_secret_of(node, worker_id))]), "removing its key")


def restart(node: Node, worker_id: str) -> None:
    """Have it end once its requests are finished, and start anew. Raises `OperationError`."""
    ended = node.clusterctl(installed_version(node), ["restart", worker_id])
    _must(node, ended, f"clusterctl restart {worker_id}")


def wait_until_gone(node: Node, version: str, worker_id: str, limit_s: float) -> None:
    """Return when its process has ended. Raises `OperationError`."""
    deadline = time.monotonic() + limit_s + _GRACE_S
    while any(w.id == worker_id and w.state != "stopped" for w in witnesses(node, version)):
        if time.monotonic() > deadline:
            raise OperationError(f"{worker_id} still runs on {node.name}, after {limit_s + _GRACE_S:g} s")
        time.sleep(_LOOK_S)


def witnesses(node: Node, version: str) -> tuple[Witness, ...]:
    """What the machine's supervisor knows of its workers. Raises `OperationError`."""
    said = _must(node, node.clusterctl(version, ["status", "--json"]), "clusterctl status")
    try:
        return msgspec.json.decode(said.out, type=_Witnesses).workers
    except msgspec.MsgspecError as error:
        raise OperationError(f"{node.name}: clusterctl status answers oddly: {error}") from error


class Attempts:
    """Of a worker that is to come up: whether it ever will, by what its machine says now and then.

    A supervisor of ours parks what ends again and again, as a worker does itself under launchd. One that
    ends before it gets so far, as with a damaged installation, is started by launchd for ever.
    """

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._before: int | None = None

    def hopeless(self, found: Iterable[Witness]) -> Witness | None:
        """The worker, if its machine has parked it, or started it in vain since the first look."""
        known = next((w for w in found if w.id == self._worker_id), None)
        if known is None or known.state == WorkerState.PARKED:
            return known
        restarts = known.restarts or 0
        self._before = restarts if self._before is None else min(self._before, restarts)
        return known if restarts - self._before >= _IN_VAIN else None


def _issue_key(home: Home, node: Node, version: str, config: ClusterConfig, worker_id: str) -> None:
    """The secret half is made there, and stays there."""
    for gateway in config.all_gateways:
        if not gateway.insecure_tcp:
            key = public_key(home, gateway.id)
            pinned = node.clusterctl(version, ["worker-key", "pin", gateway.id, key])
            _must(node, pinned, "clusterctl worker-key pin")
    shown = _must(
        node, node.clusterctl(version, ["worker-key", "show", worker_id]), "clusterctl worker-key show"
    )
    if not is_key(shown.out.strip()):
        raise OperationError(
            f"{node.name}: clusterctl worker-key show {worker_id} answers oddly: {shown.words}"
        )
    _must(node, node.runner.run(["chmod", "400", str(_secret_of(node, worker_id))]), "chmod")
    allow(home, worker_id, shown.out.strip())


def _secret_of(node: Node, worker_id: str) -> PurePosixPath:
    return node.prefix / "etc" / "keys" / "wire" / f"{worker_id}.key"


def _must(node: Node, ended: Ended, what: str) -> Ended:
    if ended.code != 0:
        raise OperationError(f"{node.name}: {what} failed: {ended.words}")
    return ended
