"""What the workers said of themselves: one frozen view a worker, replaced at each message.

Pure: connections are bytes, time is an argument. A view is never fresher than the last message,
so the worker alone decides whether it takes a request.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from gateway.replicas import other_model
from gateway.strangers import Strangers
from protocol.config import HeartbeatConfig
from protocol.messages import PROTOCOL_VERSION, Heartbeat, Hello
from protocol.states import WorkerState
from protocol.values import Capacity, Load, ModelCard, Timings

FIRST_SERVICE_S = 10.0
"""How long a request is assumed to take until one was measured."""

_EWMA = 0.2
_replace = msgspec.structs.replace


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as its last messages show it."""

    connection: bytes
    """Its ROUTER identity; empty when it is not connected."""
    worker_id: str
    incarnation: str
    node: str
    pid: int
    version: str = ""
    key: str = ""
    """The public key with which it came; empty on this machine."""
    card: ModelCard
    capacity: Capacity
    state: str
    heard_at: float
    """When anything came from it."""
    heartbeat_at: float
    gateways: int = 1
    progress: float | None = None
    detail: str = ""
    load: Load = Load()
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    state_since: float = 0.0
    moved_at: float = 0.0
    """When its state, or its progress in it, was last another."""
    used_at: float = 0.0
    """When it last had something in hand, as far as known."""
    resident_mb: int = 0
    makes_room: bool = False
    load_s: float = 0.0
    step_age_s: float = 0.0
    """Since its engine's last step; 0 while nothing is pending."""
    unconfirmed: int = 0
    """Requests sent to it that it has neither accepted nor rejected."""
    paused_until: float = 0.0
    """It rejected, and is left alone until then."""
    measured_s: float | None = None
    """Moving average of what its requests took; None until one was served."""
    first_token_s: float | None = None
    """Moving average of how long it had requests before their first token; None until one was served."""
    rejected: int = 0
    restarts: int = 0
    """Processes of it after the first that was seen."""
    last_error: str = ""

    @property
    def service_s(self) -> float:
        return FIRST_SERVICE_S if self.measured_s is None else self.measured_s

    @property
    def places(self) -> int:
        return self.capacity.max_num_seqs + self.capacity.max_waiting

    @property
    def taken(self) -> int:
        return self.load.running + self.load.waiting + self.unconfirmed

    @property
    def has_slot(self) -> bool:
        """A place at which a request need not wait."""
        return self.taken < self.capacity.max_num_seqs

    @property
    def prefill_s(self) -> float:
        """What it has to compute of prompts, in seconds; 0 where its speed is not known."""
        rate = self.prefill_tokens_per_s
        return self.load.prefill_tokens / rate if rate else 0.0

    @property
    def is_ready(self) -> bool:
        return bool(self.connection) and self.state == WorkerState.READY

    def serves(self, model: str) -> bool:
        return self.card.name == model


class Registry:
    """All workers by id, the connected ones by connection too."""

    def __init__(self, heartbeat: HeartbeatConfig, *, takes_fakes: bool) -> None:
        self._heartbeat = heartbeat
        self._takes_fakes = takes_fakes
        self._workers: dict[str, WorkerView] = {}
        self._ids: dict[bytes, str] = {}
        self.strangers = Strangers(heartbeat)

    def __len__(self) -> int:
        return len(self._workers)

    def views(self) -> Iterable[WorkerView]:
        """Every worker known, those that were lost too (with an empty connection)."""
        return self._workers.values()

    def connections(self) -> list[bytes]:
        return list(self._ids)

    def named(self, worker_id: str) -> WorkerView | None:
        """The worker of that id, connected or lost."""
        return self._workers.get(worker_id)

    def at(self, connection: bytes) -> WorkerView | None:
        worker_id = self._ids.get(connection)
        return None if worker_id is None else self._workers[worker_id]

    def refusal(self, connection: bytes, hello: Hello) -> str:
        """Why this worker is not taken, with the cure; empty when it is."""
        ours, theirs = PROTOCOL_VERSION, hello.protocol
        if ours[0] != theirs[0]:
            return (
                f"worker {hello.worker_id!r} speaks protocol {theirs[0]}.{theirs[1]}, this gateway"
                f" {ours[0]}.{ours[1]}; run the same version of Studiofleet on both"
            )
        if hello.card.engine == "fake" and not self._takes_fakes:
            return (
                f"worker {hello.worker_id!r} has the fake engine, and this gateway is open to other"
                " machines; remove the worker, or set allow_fake = true for the gateway"
            )
        before = self.at(connection)
        if before is not None and before.worker_id != hello.worker_id:
            return (
                f"worker {hello.worker_id!r} speaks on the connection of {before.worker_id!r};"
                " a connection belongs to one worker: open another"
            )
        known = self._workers.get(hello.worker_id)
        if known is not None and known.connection and known.incarnation > hello.incarnation:
            return f"a newer process of worker {hello.worker_id!r} is registered; stop this one"
        return other_model(hello, self._workers.values())

    def hello(self, connection: bytes, hello: Hello, now: float, key: str = "") -> None:
        """Take the worker, or its new card. An older connection must have left before."""
        known = self._workers.get(hello.worker_id)
        same = known is not None and known.incarnation == hello.incarnation
        before = known if same else None
        self.strangers.registered(connection, hello.worker_id)
        self._ids[connection] = hello.worker_id
        self._workers[hello.worker_id] = WorkerView(
            connection=connection,
            worker_id=hello.worker_id,
            incarnation=hello.incarnation,
            node=hello.node,
            pid=hello.pid,
            version=hello.version,
            key=key,
            card=hello.card,
            capacity=hello.capacity,
            state=hello.state,
            heard_at=now,
            heartbeat_at=now,
            gateways=max(1, hello.gateways),
            load=known.load if known is not None and known.connection else Load(),
            unconfirmed=known.unconfirmed if known is not None and known.connection else 0,
            measured_s=known.measured_s if known is not None and same else None,
            first_token_s=known.first_token_s if known is not None and same else None,
            rejected=known.rejected if known is not None else 0,
            restarts=known.restarts + (not same) if known is not None else 0,
            last_error=known.last_error if known is not None else "",
            state_since=before.state_since if before and before.state == hello.state else now,
            moved_at=now,
            used_at=before.used_at if before else 0.0,
            resident_mb=before.resident_mb if before else 0,
            load_s=before.load_s if before else 0.0,
        )

    def other_connection(self, connection: bytes, worker_id: str) -> bytes:
        """An older connection of that worker, which has to leave; empty when there is none."""
        known = self._workers.get(worker_id)
        return known.connection if known is not None and known.connection != connection else b""

    def heartbeat(self, connection: bytes, beat: Heartbeat, now: float) -> None:
        view = self.at(connection)
        if view is None:
            return
        is_new = beat.state != view.state
        moved = is_new or (beat.progress, beat.detail) != (view.progress, view.detail)
        self._workers[view.worker_id] = _replace(
            view,
            state=beat.state,
            state_since=now if is_new else view.state_since,
            moved_at=now if moved else view.moved_at,
            used_at=max(view.used_at, now - beat.idle_s) if beat.state == WorkerState.READY else view.used_at,
            resident_mb=beat.resident_mb,
            makes_room=beat.makes_room,
            load_s=beat.load_s,
            step_age_s=beat.step_age_s,
            load=beat.load,
            progress=beat.progress,
            detail=beat.detail,
            decode_tokens_per_s=beat.decode_tokens_per_s,
            prefill_tokens_per_s=beat.prefill_tokens_per_s,
            last_error=beat.detail if beat.state == WorkerState.FAILED else view.last_error,
            heard_at=now,
            heartbeat_at=now,
            paused_until=0.0,
        )

    def heard(self, connection: bytes, now: float) -> None:
        self._update(connection, heard_at=now)

    def loaded(self, connection: bytes, load: Load) -> None:
        """The load that came with a message about a request."""
        self._update(connection, load=load)

    def sent(self, connection: bytes, now: float) -> None:
        view = self.at(connection)
        if view is not None:
            self._update(connection, unconfirmed=view.unconfirmed + 1, used_at=now)

    def confirmed(self, connection: bytes) -> None:
        """The worker answered, or is not asked any more."""
        view = self.at(connection)
        if view is not None:
            self._update(connection, unconfirmed=max(0, view.unconfirmed - 1))

    def rejected(self, connection: bytes, until: float) -> None:
        view = self.at(connection)
        if view is not None:
            self._update(connection, rejected=view.rejected + 1, paused_until=until)

    def pause(self, connection: bytes, until: float) -> None:
        self._update(connection, paused_until=until)

    def served(self, connection: bytes, seconds: float, now: float, inside: Timings) -> None:
        """A request is complete after so long, `inside` of it there: the worker may be asked again now."""
        view = self.at(connection)
        if view is None:
            return
        self._update(
            connection,
            measured_s=max(0.001, _averaged(view.measured_s, seconds)),
            first_token_s=_averaged(view.first_token_s, inside.queued_s + inside.prefill_s),
            paused_until=0.0,
            used_at=now,
        )

    def failed(self, connection: bytes, error: str) -> None:
        self._update(connection, last_error=error, paused_until=0.0)

    def released(self, connection: bytes) -> None:
        """A request was aborted there: its place counts as free before the worker says so."""
        view = self.at(connection)
        if view is None:
            return
        load = view.load
        if load.running:
            load = _replace(load, running=load.running - 1)
        elif load.waiting:
            load = _replace(load, waiting=load.waiting - 1)
        self._update(connection, load=load)

    def leave(self, connection: bytes, error: str, *, forget: bool) -> WorkerView | None:
        """The connection is gone. The worker stays known, unless it left for good."""
        worker_id = self._ids.pop(connection, None)
        if worker_id is None:
            return None
        view = self._workers[worker_id]
        if forget:
            del self._workers[worker_id]
        else:
            self._workers[worker_id] = _replace(
                view,
                connection=b"",
                state=WorkerState.STOPPED,
                load=Load(),
                unconfirmed=0,
                resident_mb=0,
                decode_tokens_per_s=0.0,
                prefill_tokens_per_s=0.0,
                makes_room=False,
                progress=None,
                last_error=error or view.last_error,
            )
        return view

    def forget(self, before: float, keep: Collection[str]) -> None:
        """Drop workers that were lost before that time."""
        for view in list(self._workers.values()):
            if not view.connection and view.heard_at < before and view.worker_id not in keep:
                del self._workers[view.worker_id]

    def silent(self, now: float) -> list[bytes]:
        """Connections from which nothing came for too long."""
        lost_s = self._heartbeat.lost_s
        return [c for c, worker_id in self._ids.items() if now - self._workers[worker_id].heard_at >= lost_s]

    def _update(self, connection: bytes, **changes: object) -> None:
        view = self.at(connection)
        if view is not None:
            self._workers[view.worker_id] = _replace(view, **changes)


def _averaged(before: float | None, value: float) -> float:
    """The moving average with one value more."""
    return value if before is None else before + _EWMA * (value - before)
