"""What runs where: this machine by its supervisor, the others over ssh, side by side, each with a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from clusterctl import operations
from clusterctl.desired import text_digest
from clusterctl.launching import specs_of
from clusterctl.nodes import Node
from clusterctl.operations import OperationError
from clusterctl.planning import Machine, Seen
from clusterctl.runner import RunnerTimeoutError
from clusterctl.ssh import HostUnreachableError
from clusterctl.status import process_state
from clusterctl.supervision import Kind, Phase
from protocol.addresses import LOCAL, Home
from protocol.config import ClusterConfig, parse
from protocol.config_errors import ConfigError
from protocol.states import WorkerState

_LIMIT_S = 30.0
_AT_ONCE = 32
_OLDER = "older"
"""The digest of what runs with another configuration, nobody knows which."""
_READ = 'printf "%s\\n" "$(readlink "$1/current")"; cat "$1/etc/cluster.toml" 2>/dev/null || true'
NOT_INSTALLED = "Studiofleet is not installed there; run: clusterctl node add, as before"


class _Process(msgspec.Struct, frozen=True):
    id: str
    state: str
    outdated: bool = False
    last_error: str | None = None


class _Supervisor(msgspec.Struct, frozen=True):
    pid: int | None = None


class _Status(msgspec.Struct, frozen=True):
    workers: tuple[_Process, ...]
    supervisor: _Supervisor


def observe(home: Home, config: ClusterConfig) -> Iterator[Machine]:
    """This machine and the others, each as soon as it is known: a slow one holds up nobody."""
    yield observe_here(home, config)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [pool.submit(observe_there, Node(entry, home)) for entry in config.nodes]
        for answer in as_completed(asked):
            yield answer.result()


def observe_here(home: Home, config: ClusterConfig) -> Machine:
    """This machine."""
    reply = operations.supervisor_of(home, home.config, config)
    records = operations.running_records(home)
    if reply is None or reply.stopping:
        seen = [
            Seen(name, process_state(None, record), record.digest or _OLDER, kind=Kind(record.kind))
            for name, record in sorted(records.items())
        ]
        return Machine(LOCAL, processes=tuple(seen), supervised=False)
    processes = [
        Seen(
            view.id,
            process_state(view, None),
            view.digest or (_OLDER if view.outdated else None),
            view.last_error,
            Kind(view.kind),
        )
        for view in reply.processes
        if view.wanted or view.phase != Phase.STOPPING  # else it is ending already
    ]
    return Machine(LOCAL, reply.told or None, tuple(processes))


def observe_there(node: Node) -> Machine:
    """Another machine, whatever is wrong with it."""
    try:
        return _look(node)
    except (HostUnreachableError, RunnerTimeoutError) as error:
        return Machine(node.name, why_not=str(error), unreachable=True)
    except OperationError as error:
        return Machine(node.name, why_not=str(error))


def _look(node: Node) -> Machine:
    ended = node.runner.run(["/bin/sh", "-c", _READ, "sh", str(node.prefix)], limit_s=_LIMIT_S)
    link, _, text = ended.out.partition("\n")
    version = link.strip().removeprefix("versions/")
    if not version:
        return Machine(node.name, why_not=NOT_INSTALLED)
    if not text:
        return Machine(node.name, told="", version=version)
    ended = node.clusterctl(version, ["status", "--json"], _LIMIT_S)
    if ended.code != 0:
        raise OperationError(f"clusterctl status failed there: {ended.words}")
    try:
        status = msgspec.json.decode(ended.out, type=_Status)
    except msgspec.MsgspecError as error:
        raise OperationError(f"clusterctl status answers oddly there: {error}") from error
    digests = _digests(text)
    seen = [
        Seen(
            worker.id,
            worker.state,
            _OLDER if worker.outdated else digests.get(worker.id),
            worker.last_error or "",
        )
        for worker in status.workers
        if not _is_over(worker, status, digests)
    ]
    return Machine(
        node.name,
        told=text_digest(text),
        processes=tuple(seen),
        supervised=status.supervisor.pid is not None,
        version=version,
        knows=frozenset(digests),
        text=text,
    )


def _is_over(worker: _Process, status: _Status, digests: Mapping[str, str]) -> bool:
    """Whether it does not run, or is ending already since the machine was told so."""
    if worker.state == WorkerState.STOPPED:
        return status.supervisor.pid is None
    return worker.state == WorkerState.DRAINING and worker.id not in digests


def _digests(text: str) -> dict[str, str]:
    """Of what the machine was told to run; none where another version wrote it in a way of its own."""
    try:
        return {spec.id: spec.digest for spec in specs_of(parse(text))}
    except ConfigError:
        return {}
