"""What the commands do with one process of a running cluster: drain, undrain, restart, wait for it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from clusterctl.admin import ActionError, WorkerView, act, read_states
from clusterctl.asking import ask_model
from clusterctl.control import ProcessView, Request
from clusterctl.launchd_cluster import LaunchdCluster
from clusterctl.launching import gateway_check
from clusterctl.operations import (
    POLL_S,
    OperationError,
    RefusedError,
    Say,
    asked,
    read_status,
    refuse_another_file,
    supervised,
    supervisor_of,
)
from clusterctl.progress import SERVES, is_hopeless, progress_lines
from clusterctl.supervision import KILL_GRACE_S, Kind, Phase
from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.keyfiles import KeyFileError
from protocol.states import WorkerState

_HEARD_S = 10.0
"""A worker shows in so long that it heard."""
_ASK_S = 60.0


def drain(home: Home, config: ClusterConfig, worker_id: str, timeout_s: float | None) -> bool:
    """Have the worker take nothing new; False when it drains already. Raises `OperationError`."""
    gateway_id, view = _connected(home, config, worker_id)
    if view.state == WorkerState.DRAINING and timeout_s is None:
        return False
    _act(home, gateway_id, f"workers/{worker_id}/drain", {"then": "stay", "timeout_s": timeout_s})
    _heard(home, config, worker_id, lambda now: now.state not in SERVES)
    return True


def wait_until_drained(
    home: Home, config: ClusterConfig, worker_id: str, timeout_s: float | None, say: Say
) -> None:
    """Return when the worker has nothing in hand. Raises `OperationError` when it goes on, or away."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s + _HEARD_S
    _gateway, first = _connected(home, config, worker_id)
    said = None
    while True:
        _gateway, view = _connected(home, config, worker_id)
        if view.state in SERVES or view.incarnation != first.incarnation:
            raise OperationError(f"{worker_id} takes requests again: somebody undrained or restarted it")
        in_hand = view.running + view.waiting
        if not in_hand:
            return
        if said != in_hand:
            said = in_hand
            say(f"{worker_id}: {in_hand} requests are being finished")
        if deadline is not None and time.monotonic() > deadline:
            raise OperationError(
                f"{worker_id} still has {in_hand} requests; see: clusterctl logs {worker_id}"
            )
        time.sleep(2 * POLL_S)


def undrain(home: Home, config: ClusterConfig, worker_id: str) -> bool:
    """Have the worker take requests again; False when it does. Raises `OperationError`."""
    gateway_id, view = _connected(home, config, worker_id)
    if view.state in SERVES:
        return False
    _act(home, gateway_id, f"workers/{worker_id}/undrain")
    _heard(home, config, worker_id, lambda now: now.state != WorkerState.DRAINING)
    return True


def restart(
    home: Home, config_file: Path, config: ClusterConfig, process_id: str, timeout_s: float | None
) -> int | None:
    """End the process once its requests are finished, and have it started again at once.

    One that is parked, stopped or failed is only started. The pid of the process that is to end, if
    one runs. Raises `OperationError`.
    """
    reply = supervisor_of(home, config_file, config)
    if reply is None:
        raise OperationError("there is no supervisor that could start it again; run: clusterctl up")
    refuse_another_file(reply, config_file)
    if config.supervisor == "process":
        reply = supervised(home, config_file, config, os.environ)
    process = next((p for p in reply.processes if p.id == process_id), None)
    if process is None:
        raise OperationError(f"{process_id} is configured, but was not started yet; run: clusterctl up")
    if process.kind == Kind.GATEWAY and process.phase == Phase.RUNNING:
        _refuse_what_would_not_start(home, config_file, process_id)
    told = _tell_to_restart(home, config, process, timeout_s)
    if config.supervisor == "launchd":
        if not told:
            LaunchdCluster(home, config_file, config).restart(process_id)
        return process.pid
    request = Request(
        command="restart",
        id=process_id,
        told_pid=process.pid if told else None,
        drain_s=timeout_s,
    )
    answer = asked(home, request)
    if answer.error:
        raise OperationError(answer.error)
    return process.pid


def _refuse_what_would_not_start(home: Home, config_file: Path, gateway_id: str) -> None:
    """A gateway that serves is not ended for one that cannot. Raises `RefusedError`."""
    environ = {**os.environ, "STUDIOFLEET_HOME": str(home.path)}
    command = gateway_check(gateway_id, config_file)
    checked = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=_ASK_S, check=False
    )
    if checked.returncode:
        why = (checked.stderr.strip() or "it gives no reason").splitlines()[-1]
        raise RefusedError(f"{gateway_id} would not start again, so the old one goes on serving: {why}")


def _tell_to_restart(
    home: Home, config: ClusterConfig, process: ProcessView, timeout_s: float | None
) -> bool:
    """Whether the worker heard it through a gateway. Otherwise a signal tells it the same."""
    if process.kind != Kind.WORKER or process.phase != Phase.RUNNING:
        return False
    body = {"then": "restart", "timeout_s": timeout_s}
    for gateway_id, state in read_states(home, config).items():
        if any(worker.id == process.id and worker.pid == process.pid for worker in state.workers):
            try:
                act(home, gateway_id, f"workers/{process.id}/drain", body)
            except (ActionError, KeyFileError):
                continue
            return True
    return False


def drain_time_s(config: ClusterConfig, process_id: str) -> float:
    """How long the process may take to end by its configuration."""
    own = [worker.drain_timeout_s for worker in config.workers if worker.id == process_id]
    return own[0] if own else config.limits.drain_timeout_s


def wait_until_serving(
    home: Home,
    config: ClusterConfig,
    process_id: str,
    timeout_s: float,
    say: Say,
    *,
    not_pid: int | None = None,
) -> None:
    """Return when the process of that id serves, and has another pid than `not_pid`.

    Raises `OperationError` when it never will, or not in time.
    """
    deadline = time.monotonic() + timeout_s
    said = ""
    while True:
        status = read_status(home, config)
        process = next((p for p in status.processes if p.id == process_id), None)
        if process is None or status.supervisor.pid is None:
            raise OperationError(f"{process_id} was taken down meanwhile")
        line = progress_lines(status)[process_id]
        if line != said:
            said = line
            say(line)
        if process.state in SERVES and process.pid != not_pid:
            return
        if is_hopeless(process):
            log = "\n".join(f"  {line}" for line in process.last_log)
            raise OperationError(
                f"{said}; when that is repaired: clusterctl restart {process_id}\n{log}".rstrip()
            )
        if time.monotonic() > deadline:
            raise OperationError(f"after {timeout_s:g} s {said}; see: clusterctl logs {process_id}")
        time.sleep(2 * POLL_S)


def restart_limit_s(config: ClusterConfig, process_id: str, timeout_s: float | None, start_s: float) -> float:
    """How long a restart may take: to end, to be killed if need be, and to start."""
    drain_s = drain_time_s(config, process_id) if timeout_s is None else timeout_s
    return drain_s + KILL_GRACE_S + start_s


def first_token(home: Home, config: ClusterConfig, worker_id: str) -> str:
    """A sentence about a token that the worker has just generated. Raises `OperationError`."""
    gateway_id, _view = _connected(home, config, worker_id)
    begun = time.monotonic()
    try:
        model = config.worker_named(worker_id).name
        answer = ask_model(home, gateway_id, model, _ASK_S, only=worker_id)
    except (ActionError, KeyFileError) as error:
        raise OperationError(f"{worker_id} is ready, but gives no answer: {error}") from error
    return f"{answer.worker_id} answers: {answer.text!r} ({time.monotonic() - begun:.2f} s)"


def _connected(home: Home, config: ClusterConfig, worker_id: str) -> tuple[str, WorkerView]:
    """A gateway to which the worker is connected, and what that one knows of it."""
    states = read_states(home, config)
    for gateway_id, state in states.items():
        for view in state.workers:
            if view.id == worker_id and view.pid is not None:
                return gateway_id, view
    if not states:
        raise OperationError("no gateway runs; to start everything: clusterctl up")
    raise OperationError(f"{worker_id} is connected to no gateway; see: clusterctl status")


def _act(home: Home, gateway_id: str, path: str, body: dict[str, object] | None = None) -> None:
    try:
        act(home, gateway_id, path, body)
    except (ActionError, KeyFileError) as error:
        raise OperationError(str(error)) from error


def _heard(home: Home, config: ClusterConfig, worker_id: str, shows: Callable[[WorkerView], bool]) -> None:
    deadline = time.monotonic() + _HEARD_S
    while not shows(view := _connected(home, config, worker_id)[1]):
        if time.monotonic() > deadline:
            detail = f" ({view.detail})" if view.detail else ""
            raise OperationError(f"{worker_id} was told, but is still {view.state}{detail}")
        time.sleep(POLL_S)
