"""What the supervisor does next: the wanted processes, what became of them and the time give actions.

Nothing here starts, signals or waits. `now` is a monotonic clock in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.parking import VAIN_STARTS
from protocol.states import ExitCode

FIRST_PAUSE_S = 0.5
"""Before the first restart; doubles with each."""
LONGEST_PAUSE_S = 30.0
STEADY_S = 10.0
"""A process that was ready for so long has proved itself: its pauses begin anew."""
KILL_GRACE_S = 10.0
"""Beyond its drain time-out, before a process that was told to stop is killed."""


class Kind(StrEnum):
    """Which program a process runs."""

    GATEWAY = "gateway"
    WORKER = "worker"


class Phase(StrEnum):
    """Where a process is in the eyes of the supervisor."""

    WAITING = "waiting"
    """To be started, when `due` has come."""
    RUNNING = "running"
    STOPPING = "stopping"
    """Told to stop, and killed when `due` has come."""
    STOPPED = "stopped"
    """Ended on purpose; stays down until asked for."""
    PARKED = "parked"
    """Given up, until asked for."""


@dataclass(frozen=True)
class Spec:
    """One process that the configuration asks for."""

    id: str
    kind: Kind
    drain_s: float
    digest: str
    """Of everything in the configuration that the process reads, to notice a change."""


@dataclass(frozen=True)
class Process:
    """One supervised process: what was asked, what happened, when the next thing is due."""

    spec: Spec
    phase: Phase = Phase.WAITING
    due: float = 0.0
    wanted: bool = True
    pid: int | None = None
    running_digest: str = ""
    """The spec's digest when the process was started."""
    ready_at: float | None = None
    starts: int = 0
    vain_exits: int = 0
    pause_s: float = 0.0
    killed: bool = False
    last_exit: int | None = None
    last_error: str = ""
    last_log: tuple[str, ...] = ()
    """Once it is parked: the end of its log."""

    @property
    def alive(self) -> bool:
        return self.phase in (Phase.RUNNING, Phase.STOPPING)

    @property
    def is_down(self) -> bool:
        """Whether nobody starts it until asked for."""
        return self.phase in (Phase.STOPPED, Phase.PARKED)

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)


@dataclass(frozen=True)
class Start:
    """Start the process of that id."""

    id: str


@dataclass(frozen=True)
class Terminate:
    """Ask the process to end (SIGTERM)."""

    id: str


@dataclass(frozen=True)
class Kill:
    """End the process (SIGKILL)."""

    id: str


@dataclass(frozen=True)
class Forget:
    """Drop the process: it is not wanted any more and has ended."""

    id: str


Action = Start | Terminate | Kill | Forget
Processes = Mapping[str, Process]


def want(processes: Processes, specs: Iterable[Spec], now: float, *, retry: bool) -> dict[str, Process]:
    """The processes after the configuration changed to `specs`.

    With `retry`, those that are stopped, parked or pausing are started at once. A running process
    goes on as it was started, even when its spec differs now.
    """
    wanted = {spec.id: spec for spec in specs}
    merged = {
        process_id: _wanted(process, wanted[process_id], now, retry)
        if process_id in wanted
        else replace(process, wanted=False)
        for process_id, process in processes.items()
    }
    for spec in wanted.values():
        if spec.id not in merged:
            merged[spec.id] = Process(spec=spec, due=now)
    return merged


def _wanted(process: Process, spec: Spec, now: float, retry: bool) -> Process:
    changed = spec.digest != process.spec.digest
    process = replace(process, spec=spec, wanted=True)
    if process.alive or not (retry or changed):
        return process
    return _begun_anew(process, now)


def _begun_anew(process: Process, now: float) -> Process:
    return replace(process, phase=Phase.WAITING, due=now, vain_exits=0, pause_s=0.0, last_error="")


def asked_to_restart(process: Process, now: float, drain_s: float) -> Process:
    """The process after a restart was asked for: told to end within `drain_s`, or to be started at once."""
    if process.phase is Phase.RUNNING:
        return replace(process, phase=Phase.STOPPING, due=now + drain_s + KILL_GRACE_S)
    return process if process.alive else _begun_anew(process, now)


def want_nothing(processes: Processes) -> dict[str, Process]:
    """The processes after everything was asked to stop."""
    return {process_id: replace(process, wanted=False) for process_id, process in processes.items()}


def decide(processes: Processes, now: float) -> list[Action]:
    """What is to be done at this moment."""
    actions = [_next(process, now) for process in processes.values()]
    return [action for action in actions if action is not None]


def _next(process: Process, now: float) -> Action | None:
    match process.phase:
        case Phase.RUNNING:
            return None if process.wanted else Terminate(process.spec.id)
        case Phase.STOPPING:
            return Kill(process.spec.id) if now >= process.due and not process.killed else None
        case _ if not process.wanted:
            return Forget(process.spec.id)
        case Phase.WAITING:
            return Start(process.spec.id) if now >= process.due else None
        case Phase.STOPPED | Phase.PARKED:
            return None


def next_due(processes: Processes) -> float | None:
    """When `decide` is to be asked again if nothing happens before; None: never."""
    dues = [
        process.due
        for process in processes.values()
        if process.phase is Phase.WAITING or (process.phase is Phase.STOPPING and not process.killed)
    ]
    return min(dues, default=None)


def started(process: Process, pid: int) -> Process:
    """The process after it was started."""
    return replace(
        process,
        phase=Phase.RUNNING,
        pid=pid,
        running_digest=process.spec.digest,
        ready_at=None,
        starts=process.starts + 1,
        last_log=(),
    )


def adopted(spec: Spec, pid: int, running_digest: str) -> Process:
    """A process that an earlier supervisor started, and that still runs."""
    return Process(spec=spec, phase=Phase.RUNNING, pid=pid, running_digest=running_digest, starts=1)


def terminated(process: Process, now: float) -> Process:
    """The process after it was asked to end."""
    return replace(process, phase=Phase.STOPPING, due=now + process.spec.drain_s + KILL_GRACE_S)


def killed(process: Process) -> Process:
    return replace(process, killed=True)


def seen_ready(process: Process, pid: int, now: float) -> Process:
    """The process after the process of that id and pid said that it is ready."""
    if process.phase is not Phase.RUNNING or process.pid != pid or process.ready_at is not None:
        return process
    return replace(process, ready_at=now, vain_exits=0)


def exited(process: Process, code: int | None, reason: str, now: float) -> Process:
    """The process after its process ended, with `code` (None: not known), `reason` in words."""
    vain = process.vain_exits if process.ready_at is not None else process.vain_exits + 1
    steady = process.ready_at is not None and now - process.ready_at >= STEADY_S
    ended = replace(
        process,
        pid=None,
        ready_at=None,
        killed=False,
        last_exit=code,
        vain_exits=vain,
    )
    if process.phase is Phase.STOPPING:
        return (
            _begun_anew(ended, now) if process.wanted else replace(ended, phase=Phase.STOPPED, vain_exits=0)
        )
    if code == ExitCode.OK:
        return replace(ended, phase=Phase.STOPPED, vain_exits=0)
    if code == ExitCode.RESTART:
        return _begun_anew(ended, now)
    ended = replace(ended, last_error=reason)
    if code == ExitCode.MISCONFIGURED or (process.spec.kind is Kind.WORKER and vain >= VAIN_STARTS):
        return replace(ended, phase=Phase.PARKED)
    pause_s = FIRST_PAUSE_S if steady else min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, 2 * process.pause_s))
    return replace(ended, phase=Phase.WAITING, pause_s=pause_s, due=now + pause_s)
