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
from clusterctl.model_sizes import ENGINES
from clusterctl.nodes import FOLLOW_S, Node, installed_version
from clusterctl.operations import OperationError, RefusedError, RolledBackError
from clusterctl.options import Exit
from clusterctl.runner import Ended, RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.wire_keys import public_key
from protocol.addresses import LOCAL, AddressError, Home, is_loopback, is_tcp, tcp_host
from protocol.config import ClusterConfig, GatewayConfig, WorkerConfig
from protocol.keyfiles import KeyFileError
from protocol.models import is_hub_id
from protocol.reachability import Reach
from protocol.states import WorkerState
from protocol.wire_keys import allow, is_key

_HEAD = "# Written by clusterctl of the machine that operates this cluster; changes here are lost.\n"
_EVERYWHERE = ("0.0.0.0", "[::]", "*")  # noqa: S104 (refused)
_LOOK_S = 0.5
_GRACE_S = 60.0
_KNOWS_NO_FIT = 2
"""The exit code of an older version there."""
_PUT = 'umask 077; cat >"$1.new" && mv "$1.new" "$1"'
_DIAL = """
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5).close()
except TimeoutError:
    sys.exit("ETIMEDOUT")
except OSError as error:
    sys.exit(errno.errorcode.get(error.errno, str(error)))
"""
"""Names are the same on all systems, numbers are not."""
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
        _dialled(gateway)


def _dialled(gateway: GatewayConfig) -> str:
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
    entry = {"id": gateway.id, "http": "127.0.0.1:0", "node": "elsewhere", "listen": [_dialled(gateway)]}
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


def refuse_unfit(
    node: Node, version: str, config: ClusterConfig, worker_id: str, *, force_memory: bool = False
) -> list[str]:
    """What the machine says of its memory. Raises `RefusedError` where the worker could not run.

    `force_memory`: whether or not it fits, which is not asked then.
    """
    worker = config.worker_named(worker_id)
    _refuse_no_model(node, worker)
    arithmetic = [] if force_memory else _refuse_no_room(node, version, worker)
    for gateway in config.all_gateways:
        _refuse_no_way(node, version, _dialled(gateway))
    return arithmetic


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
        raise RolledBackError(f"{error}; what was begun on {node.name} is undone") from error


def withdraw(home: Home, node: Node, version: str, config: ClusterConfig, worker_id: str) -> None:
    """Have nothing of a worker there, whether or not it was placed. Raises what is in `UNDOING_FAULTS`."""
    with contextlib.ExitStack() as each:  # all of it, whatever comes of the others
        each.callback(allow, home, worker_id, None)
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


def _refuse_no_model(node: Node, worker: WorkerConfig) -> None:
    """Raises `RefusedError`."""
    pulled = worker.engine in ENGINES and is_hub_id(worker.model)
    folder = str(node.prefix / "models" / worker.model) if pulled else worker.model
    if folder.startswith("/") and node.runner.run(["test", "-d", folder]).code != 0:
        raise RefusedError(
            f"there is no folder {folder} on {node.name}; copy the model there: clusterctl model push"
            f" {worker.model} {node.name}"
        )


def _refuse_no_room(node: Node, version: str, worker: WorkerConfig) -> list[str]:
    """Asks the machine's own clusterctl, which knows its memory and its workers. Raises `RefusedError`."""
    if worker.engine not in ENGINES:
        return []
    words = ["--model", worker.model, "--engine", worker.engine, "--max-num-seqs", str(worker.slots)]
    words += ["--prefix-cache-mb", str(worker.prefix_cache_mb)]
    for option, value in (("--max-model-len", worker.max_model_len), ("--kv-tokens", worker.kv_tokens)):
        words += [] if value is None else [option, str(value)]
    if node.runner.run(["test", "-f", str(node.config_file)]).code == 0:
        words += ["--config", str(node.config_file)]
    ended = node.clusterctl(version, ["model", "fit", *words])
    if ended.code == Exit.REFUSED and ended.out:
        raise RefusedError(
            f"{worker.id} does not fit into the memory of {node.name} (--force-memory goes on):\n"
            f"{ended.out.strip()}"
        )
    if ended.code not in (Exit.DONE, _KNOWS_NO_FIT):
        raise RefusedError(
            f"whether {worker.id} fits into the memory of {node.name} is not known (--force-memory goes on):"
            f" {ended.words}"
        )
    return ended.out.splitlines()


def _refuse_no_way(node: Node, version: str, listen: str) -> None:
    """What a program that came by ssh reaches says little on a Mac: it may more than a service."""
    host, port = tcp_host(listen).strip("[]"), listen.rpartition(":")[2]
    if is_loopback(host) and not is_loopback(node.config.host):
        raise RefusedError(
            f"{listen} of the gateway is an address of {node.name} itself there; write another"
        )
    python = str(node.prefix / "versions" / version / "bin" / "python")
    ended = node.runner.run([python, "-I", "-c", _DIAL, host, port])
    if ended.code != 0:
        why = Reach(node.name, listen, ended.words).words
        raise RefusedError(f"{node.name} does not reach {listen}: {ended.words}; {why}")


def _must(node: Node, ended: Ended, what: str) -> Ended:
    if ended.code != 0:
        raise OperationError(f"{node.name}: {what} failed: {ended.words}")
    return ended
