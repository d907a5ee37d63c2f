"""One picture of the cluster from three sources: the configuration, the supervisor, the gateways."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from clusterctl.admin import AdminState, GatewayView, QueueView, WorkerView
from clusterctl.control import ProcessView, Reply
from clusterctl.processes import Record
from clusterctl.supervision import Kind, Phase
from protocol.addresses import LOCAL
from protocol.config import ClusterConfig, GatewayConfig, WorkerConfig
from protocol.states import WorkerState


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway or worker: null where nobody knows."""

    id: str
    state: str
    pid: int | None
    restarts: int | None
    last_exit: int | None
    last_error: str | None
    outdated: bool
    """It runs with an older configuration than the one that is wanted."""
    last_log: tuple[str, ...]
    """Of a parked one: the end of its log."""


class GatewayStatus(ProcessStatus, frozen=True, kw_only=True):
    """A gateway."""

    url: str | None
    version: str | None
    streams: int | None
    queued: int | None


class WorkerStatus(ProcessStatus, frozen=True, kw_only=True):
    """A worker."""

    model: str
    aliases: tuple[str, ...]
    node: str
    engine: str
    version: str | None
    detail: str
    progress: float | None
    incarnation: str | None
    running: int | None
    waiting: int | None
    max_num_seqs: int | None
    max_waiting: int | None
    prefill_tokens: int | None
    kv_tokens: int | None
    on_demand: bool
    memory_mb: int | None
    resident_mb: int | None
    decode_tokens_per_s: float | None
    """What it generated last, for all its requests together."""
    first_token_s: float | None
    """From its taking a request, averaged: without the time in a gateway's queue."""
    state_age_s: float | None
    rejected: int | None
    breaker: str | None
    heartbeat_age_s: float | None


class SupervisorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor itself."""

    state: str
    pid: int | None


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The whole picture, as `clusterctl status --json` prints it."""

    supervisor: SupervisorStatus
    gateways: tuple[GatewayStatus, ...]
    workers: tuple[WorkerStatus, ...]
    queues: tuple[QueueView, ...]

    @property
    def processes(self) -> tuple[ProcessStatus, ...]:
        return (*self.gateways, *self.workers)


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    config: ClusterConfig
    supervisor: Reply | None
    records: Mapping[str, Record]
    """Pid files of processes that run."""
    states: Mapping[str, AdminState]
    """By gateway."""


AWAY = "it is connected to no gateway"

_WORDS = {
    Phase.WAITING: WorkerState.STARTING,
    Phase.RUNNING: WorkerState.STARTING,
    Phase.STOPPING: WorkerState.DRAINING,
    Phase.STOPPED: WorkerState.STOPPED,
    Phase.PARKED: WorkerState.PARKED,
}


def cluster_status(sources: Sources) -> ClusterStatus:
    """Put the sources together."""
    processes = {} if sources.supervisor is None else {p.id: p for p in sources.supervisor.processes}
    return ClusterStatus(
        supervisor=_supervisor(sources.supervisor),
        gateways=tuple(_gateway(g, processes.get(g.id), sources) for g in sources.config.local_gateways),
        workers=(
            *(_worker(w, processes.get(w.id), sources) for w in sources.config.workers),
            *_strangers(sources),
            *_leaving(sources),
        ),
        queues=_queues(sources),
    )


def _supervisor(reply: Reply | None) -> SupervisorStatus:
    if reply is None:
        return SupervisorStatus(state=WorkerState.STOPPED, pid=None)
    return SupervisorStatus(
        state=WorkerState.DRAINING if reply.stopping else WorkerState.READY, pid=reply.pid
    )


def process_state(process: ProcessView | None, record: Record | None) -> str:
    """The state of a process as far as its supervisor, or its pid file, can tell."""
    if process is None:
        return WorkerState.STOPPED if record is None else WorkerState.STARTING
    if process.phase == Phase.WAITING and process.starts:
        return WorkerState.FAILED
    if process.phase == Phase.RUNNING and process.ready:
        return WorkerState.READY
    return _WORDS[Phase(process.phase)]


def _pid(process: ProcessView | None, record: Record | None) -> int | None:
    if process is not None:
        return process.pid
    return None if record is None else record.pid


def _own_view(sources: Sources, gateway_id: str) -> GatewayView | None:
    state = sources.states.get(gateway_id)
    if state is None:
        return None
    return next((gateway for gateway in state.gateways if gateway.id == gateway_id), None)


def _gateway(config: GatewayConfig, process: ProcessView | None, sources: Sources) -> GatewayStatus:
    record = sources.records.get(config.id)
    view = _own_view(sources, config.id)
    return GatewayStatus(
        id=config.id,
        url=view.url if view else None,
        state=view.state if view else process_state(process, record),
        pid=view.pid if view else _pid(process, record),
        version=view.version if view else None,
        streams=view.streams if view else None,
        queued=view.queued if view else None,
        restarts=process.restarts if process else None,
        last_exit=process.last_exit if process else None,
        last_error=(process.last_error or None) if process else None,
        outdated=process.outdated if process else False,
        last_log=process.last_log if process else (),
    )


def _worker(config: WorkerConfig, process: ProcessView | None, sources: Sources) -> WorkerStatus:
    record = sources.records.get(config.id)
    pid = _pid(process, record)
    view = _freshest(sources, config.id)
    # What a gateway remembers of an earlier process says nothing about the present one.
    fresh = view if view is not None and (view.pid == pid or (process is None and record is None)) else None
    away = _is_away(view, process, elsewhere=config.node != LOCAL)
    error = (process.last_error if process else "") or (view.last_error if view else None)
    return WorkerStatus(
        id=config.id,
        model=config.name,
        aliases=config.aliases,
        node=config.node,
        engine=config.engine,
        version=fresh.version if fresh else None,
        state=WorkerState.STARTING if away else _worker_state(fresh, process, record),
        detail=AWAY if away else (fresh.detail if fresh else ""),
        progress=fresh.progress if fresh else None,
        pid=fresh.pid if fresh else pid,
        incarnation=fresh.incarnation if fresh else None,
        running=fresh.running if fresh else None,
        waiting=fresh.waiting if fresh else None,
        max_num_seqs=fresh.max_num_seqs if fresh else config.slots,
        max_waiting=fresh.max_waiting if fresh else config.waiting_room,
        prefill_tokens=fresh.prefill_tokens if fresh else None,
        kv_tokens=fresh.kv_tokens if fresh else None,
        on_demand=config.residency == "on_demand",
        memory_mb=fresh.memory_mb if fresh else config.memory_mb,
        resident_mb=fresh.resident_mb if fresh else None,
        decode_tokens_per_s=fresh.decode_tokens_per_s if fresh else None,
        first_token_s=fresh.first_token_s if fresh else None,
        state_age_s=fresh.state_age_s if fresh else None,
        rejected=_rejected(sources, config.id),
        breaker=view.breaker if view else None,
        last_error=error or None,
        restarts=process.restarts if process else (view.restarts if view else None),
        last_exit=process.last_exit if process else None,
        heartbeat_age_s=fresh.heartbeat_age_s if fresh else None,
        outdated=process.outdated if process else False,
        last_log=process.last_log if process else (),
    )


def _is_away(view: WorkerView | None, process: ProcessView | None, *, elsewhere: bool) -> bool:
    """Whether it was ready once, or is another machine's, and no gateway that answers is connected to it."""
    if elsewhere:
        return view is None or view.pid is None
    ready = process is not None and process.phase == Phase.RUNNING and process.ready
    return ready and view is not None and view.pid is None


def _worker_state(fresh: WorkerView | None, process: ProcessView | None, record: Record | None) -> str:
    """The gateway's word while the process runs; the supervisor's once it stops or has ended."""
    supervised = process_state(process, record)
    if fresh is None or (process is not None and process.phase != Phase.RUNNING):
        return supervised
    return fresh.state or supervised


def _freshest(sources: Sources, worker_id: str) -> WorkerView | None:
    """The view of the gateway that heard of the worker last; of one that it is connected to, if there is."""
    views = [w for state in sources.states.values() for w in state.workers if w.id == worker_id]
    return min(views, key=lambda view: (view.pid is None, view.heartbeat_age_s or 0.0), default=None)


def _rejected(sources: Sources, worker_id: str) -> int | None:
    """Over all gateways: each counts its own."""
    counts = [w.rejected for state in sources.states.values() for w in state.workers if w.id == worker_id]
    return sum(counts) if counts else None


def _strangers(sources: Sources) -> list[WorkerStatus]:
    """Workers that a gateway knows and the configuration does not: started by hand, or just removed."""
    known = {worker.id for worker in sources.config.workers}
    ids = {w.id for state in sources.states.values() for w in state.workers} - known
    return [_stranger(view) for worker_id in sorted(ids) if (view := _freshest(sources, worker_id))]


def _stranger(view: WorkerView) -> WorkerStatus:
    return WorkerStatus(
        **{field: getattr(view, field) for field in view.__struct_fields__},
        last_exit=None,
        outdated=False,
        last_log=(),
    )


def _leaving(sources: Sources) -> list[WorkerStatus]:
    """Workers that were taken out of the configuration and finish what they have, and no gateway knows."""
    known = {worker.id for worker in sources.config.workers}
    known |= {view.id for state in sources.states.values() for view in state.workers}
    processes = sources.supervisor.processes if sources.supervisor else ()
    return [
        _worker(WorkerConfig(id=process.id, model=""), process, sources)
        for process in processes
        if process.kind == Kind.WORKER and process.id not in known
    ]


def _queues(sources: Sources) -> tuple[QueueView, ...]:
    waiting: dict[str, int] = {}
    for state in sources.states.values():
        for queue in state.queues:
            waiting[queue.model] = waiting.get(queue.model, 0) + queue.waiting
    return tuple(QueueView(model=model, waiting=count) for model, count in sorted(waiting.items()))
