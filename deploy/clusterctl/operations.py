"""What the commands do with a running cluster: bring it up, take it down, follow the configuration."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from clusterctl import strays
from clusterctl.admin import read_states
from clusterctl.control import NAME, Reply, Request, SupervisorAbsentError, ask
from clusterctl.launchd_cluster import LaunchdCluster
from clusterctl.launching import settled_environment
from clusterctl.ports import busy_port
from clusterctl.processes import Record, is_running, last_words, launch_detached, read_record, size_of
from clusterctl.progress import Outcome, judge, progress_lines
from clusterctl.status import ClusterStatus, Sources, cluster_status
from clusterctl.strays import supervisor_command
from clusterctl.supervision import Phase
from clusterctl.supervisor import FAREWELL, Supervisor
from clusterctl.supervisor_process import TOO_LATE
from clusterctl.wire_keys import ensure_pairs
from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.configfile import read_config
from protocol.folders import private_folder
from protocol.installation import PLACE
from protocol.keys import ensure_admin_key
from protocol.locks import LockHeldError, holder, is_locked
from protocol.states import WorkerState

Say = Callable[[str], None]
"""Tells the person how it goes, one line at a time."""

_ANSWER_S = 15.0
"""A new supervisor has so long to answer."""
POLL_S = 0.1
_TAKEN_DOWN = "the cluster was taken down meanwhile"


class OperationError(RuntimeError):
    """It did not work: why, and what to do."""


class RefusedError(OperationError):
    """Nothing was done, because a check failed."""


class RolledBackError(OperationError):
    """It did not work, and what was begun is undone."""


def make_folders(home: Home) -> None:
    """The home's folders, each only for its owner. Raises `AddressError`."""
    for folder in (home.path, home.run, home.logs, home.keys):
        private_folder(folder)
    ensure_admin_key(home)


def bring_up(home: Home, config_file: Path, config: ClusterConfig, environ: Mapping[str, str]) -> None:
    """Start the supervisor, or have the running one follow the configuration, and start everything.

    Raises `OperationError` when that fails.
    """
    ensure_pairs(home, config)
    if config.supervisor == "launchd":
        _bring_up_by_launchd(home, config_file, config, environ)
        return
    _refuse_jobs(home, config_file, config)
    environment = settled_environment(environ, Path.cwd(), home)
    supervised(home, config_file, config, environment)
    reply = asked(home, Request(command="reconcile", retry=True, environment=environment))
    if reply.error:
        raise OperationError(reply.error)
    while any(p.phase == Phase.WAITING and not p.starts for p in asked(home).processes):
        time.sleep(POLL_S)


def supervised(home: Home, config_file: Path, config: ClusterConfig, environment: Mapping[str, str]) -> Reply:
    """What the supervisor says, once it is one of this installation: that takes over from any other one.

    Raises `OperationError`.
    """
    deadline = time.monotonic() + _ANSWER_S
    while True:
        reply = status_of(home)
        if reply is None:
            if not _waited_for_a_stray(home, config_file):
                _refuse_busy_ports(home, config_file, config)
                _start_supervisor(home, config_file, environment)
        elif reply.stopping:
            wait_until_down(home, lambda _line: None)
        else:
            refuse_another_file(reply, config_file)
            if reply.installation == PLACE:
                return reply
            environment = asked(home, Request(command="leave")).environment or environment
            _wait_until_it_left(home)
        if time.monotonic() > deadline:
            raise OperationError(_deaf(home))


def _wait_until_it_left(home: Home) -> None:
    deadline = time.monotonic() + _ANSWER_S
    while is_locked(home.lock(NAME)):
        if time.monotonic() > deadline:
            raise OperationError(_deaf(home))
        time.sleep(POLL_S)


def _bring_up_by_launchd(
    home: Home, config_file: Path, config: ClusterConfig, environ: Mapping[str, str]
) -> None:
    if is_locked(home.lock(NAME)):
        raise RefusedError("the cluster runs under its own supervisor; first: clusterctl down")
    jobs = LaunchdCluster(home, config_file, config)
    reply = jobs.reply()
    running = {process.id for process in reply.processes if process.pid} if reply else set()
    _refuse_busy_ports(home, config_file, config, running)
    jobs.follow(environ, retry=True)


def _refuse_jobs(home: Home, config_file: Path, config: ClusterConfig) -> None:
    """Raises `RefusedError` when launchd has processes of this home, which it would start again and again."""
    if LaunchdCluster(home, config_file, config).is_installed:
        raise RefusedError("the cluster runs under launchd; first: clusterctl down")


def supervise_here(home: Home, config_file: Path, config: ClusterConfig, environ: Mapping[str, str]) -> bool:
    """Supervise in this process until SIGTERM or SIGINT; False when another does already."""
    if config.supervisor == "launchd":
        raise RefusedError(
            "launchd supervises this cluster, so nothing stays in the foreground: clusterctl up"
        )
    _refuse_jobs(home, config_file, config)
    ensure_pairs(home, config)
    _waited_for_a_stray(home, config_file)
    if is_locked(home.lock(NAME)):
        return False
    _refuse_busy_ports(home, config_file, config)
    Supervisor(home, config_file, settled_environment(environ, Path.cwd(), home)).run()
    return True


def wait_until_ready(home: Home, config: ClusterConfig, timeout_s: float, say: Say) -> None:
    """Return when every process of the configuration serves. Raises `OperationError` if one never will."""
    deadline = time.monotonic() + timeout_s
    said: dict[str, str] = {}
    while True:
        status = read_status(home, config)
        if status.supervisor.state != WorkerState.READY:
            raise OperationError(_TAKEN_DOWN)
        for process_id, line in progress_lines(status).items():
            if said.get(process_id) != line:
                said[process_id] = line
                say(line)
        outcome, words = judge(status)
        if outcome is Outcome.READY:
            return
        if outcome is Outcome.FAILED:
            raise OperationError(words)
        if time.monotonic() > deadline:
            raise OperationError(f"after {timeout_s:g} s {words}; see {home.logs}")
        time.sleep(2 * POLL_S)


def take_down(home: Home, config_file: Path, say: Say) -> bool:
    """End everything of this home; False when nothing ran. Raises `OperationError`."""
    if not home.run.exists():
        return False
    jobs = LaunchdCluster(home, config_file, ClusterConfig(version=1))
    if jobs.is_installed:
        say("gateways and workers finish what they have")
        jobs.remove()
        return True
    deadline = time.monotonic() + _ANSWER_S
    while True:
        with contextlib.suppress(SupervisorAbsentError):
            ask(home, Request(command="down"))
            wait_until_down(home, say)
            return True
        # None answers: there is none, or it is just starting or ending.
        if not is_locked(home.lock(NAME)) and not _waited_for_a_stray(home, config_file):
            ran = bool(running_records(home) or strays.running(home, config_file))
            with contextlib.suppress(LockHeldError):
                Supervisor(home, config_file, os.environ).run(stop_at_once=True)
                return ran
        if time.monotonic() > deadline:
            raise OperationError(_deaf(home))
        time.sleep(POLL_S)


def wait_until_down(home: Home, say: Say) -> None:
    """Return when the supervisor has ended, which it does last."""
    said: set[str] = set()
    while is_locked(home.lock(NAME)):
        reply = status_of(home)
        if reply is not None and not reply.stopping:
            return  # a new one already
        for process in reply.processes if reply else ():
            if process.phase == Phase.STOPPING and process.id not in said:
                said.add(process.id)
                say(f"{process.id}: finishing what it has (pid {process.pid})")
        time.sleep(POLL_S)


def follow_config(home: Home, config_file: Path, *, retry: bool = False) -> bool:
    """Have a running supervisor start and stop what the changed file says; False when none runs.

    With `retry`, what is stopped, parked or pausing is started, too.
    """
    config = read_config(config_file)
    reply = supervisor_of(home, config_file, config)
    if reply is None or reply.stopping:
        return False
    refuse_another_file(reply, config_file)
    ensure_pairs(home, config)
    if config.supervisor == "launchd":
        LaunchdCluster(home, config_file, config).follow(os.environ, retry=retry)
        return True
    reply = asked(home, Request(command="reconcile", retry=retry))
    if reply.error:
        raise OperationError(reply.error)
    return True


def refuse_when_down(home: Home, config_file: Path) -> None:
    """Raises `RefusedError` when nothing would be started now."""
    reply = supervisor_of(home, config_file, read_config(config_file))
    if reply is None or reply.stopping:
        raise RefusedError("the cluster is down, so there is nothing to wait for; first: clusterctl up")


def wait_until_gone(home: Home, config: ClusterConfig, process_id: str, say: Say) -> None:
    """Return when the supervisor has ended that process."""
    said = -1
    while (reply := status_of(home)) is not None and any(p.id == process_id for p in reply.processes):
        view = next((w for w in read_status(home, config).workers if w.id == process_id), None)
        in_hand = (view.running or 0) + (view.waiting or 0) if view else 0
        if in_hand not in (0, said):
            said = in_hand
            say(f"{process_id}: {in_hand} requests are being finished")
        time.sleep(POLL_S)


def read_status(home: Home, config: ClusterConfig) -> ClusterStatus:
    """The present picture; works with nothing running."""
    sources = Sources(
        config=config,
        supervisor=supervisor_of(home, home.config, config),
        records=running_records(home),
        states=read_states(home, config),
    )
    return cluster_status(sources)


def running_records(home: Home) -> dict[str, Record]:
    """The pid files of processes that run, the supervisor's left out."""
    records = {path.stem: read_record(path) for path in home.run.glob("*.pid") if path.stem != NAME}
    return {process_id: record for process_id, record in records.items() if record is not None}


def status_of(home: Home) -> Reply | None:
    """What the supervisor says; None when there is none."""
    try:
        return ask(home, Request(command="status"))
    except SupervisorAbsentError:
        return None


def supervisor_of(home: Home, config_file: Path, config: ClusterConfig) -> Reply | None:
    """What the home's supervisor says, launchd if it is that; None when nothing of the home runs."""
    if config.supervisor == "launchd":
        return LaunchdCluster(home, config_file, config).reply()
    return status_of(home)


def asked(home: Home, request: Request | None = None) -> Reply:
    """The answer of a supervisor that has to be there. Raises `OperationError`."""
    try:
        return ask(home, request or Request(command="status"))
    except SupervisorAbsentError as error:
        raise OperationError(_TAKEN_DOWN) from error


def refuse_another_file(reply: Reply, config_file: Path) -> None:
    """Raises `RefusedError` when the home runs with another file."""
    if reply.config != str(config_file):
        raise RefusedError(
            f"the cluster of this home runs with {reply.config}, not with {config_file};"
            " take it down first (clusterctl down), or set another STUDIOFLEET_HOME"
        )


def _refuse_busy_ports(
    home: Home, config_file: Path, config: ClusterConfig, running: Collection[str] = ()
) -> None:
    running = {*running, *running_records(home)}
    for gateway in config.local_gateways:
        if gateway.id in running or not busy_port(gateway.http):
            continue
        if gateway.id not in strays.running(home, config_file):
            raise RefusedError(
                f"{gateway.http} is in use by another program; stop that, or give the gateway"
                f" {gateway.id!r} another address: http = … in {config_file}"
            )


def _waited_for_a_stray(home: Home, config_file: Path) -> bool:
    """Whether a supervisor ran that does not hold its lock yet, or any more.

    Raises `OperationError` when it stays like this: its lock is not the one that is there.
    """
    deadline = time.monotonic() + _ANSWER_S
    waited = False
    while not is_locked(home.lock(NAME)) and (pid := strays.running(home, config_file).get(NAME)):
        waited = True
        if time.monotonic() > deadline:
            raise OperationError(
                f"a supervisor of this home runs (pid {pid}), but its files in {home.run} were removed:"
                f" kill -9 {pid}, and then: clusterctl down; clusterctl up"
            )
        time.sleep(POLL_S)
    return waited


def _start_supervisor(home: Home, config_file: Path, environment: Mapping[str, str]) -> None:
    """Return when a supervisor answers, this one or one that was faster. Raises `OperationError`."""
    log = home.logs / f"{NAME}.log"
    size = size_of(log)
    try:
        pid, identity = launch_detached(supervisor_command(config_file), environment, home.path, log)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise OperationError(f"the supervisor cannot be started: {error}; see {log}") from error
    deadline = time.monotonic() + _ANSWER_S
    while (reply := status_of(home)) is None or reply.pid != pid:
        # One that came too late must have ended before this returns, or it would take over after
        # the next `down`.
        if not is_running(pid, identity):
            if reply is not None:
                return
            if not is_locked(home.lock(NAME)):
                raise OperationError(_why_it_ended(log, size))
        if time.monotonic() > deadline:
            raise OperationError(_deaf(home))
        time.sleep(POLL_S)


def _deaf(home: Home) -> str:
    pid = holder(home.lock(NAME))
    return (
        f"the supervisor (pid {pid}) does not answer; see {home.logs / f'{NAME}.log'}. If it hangs:"
        f" kill -9 {pid}, which ends nothing else, and then: clusterctl up"
    )


def _why_it_ended(log: Path, size: int) -> str:
    words = last_words(log, size)
    if words in (FAREWELL, TOO_LATE):
        return _TAKEN_DOWN
    return f"the supervisor has ended: {words or f'see {log}'}"
