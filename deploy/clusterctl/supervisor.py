"""The built-in supervisor: one process for a home, that starts, watches and stops all others.

It does what `supervision` decides, in one thread: it sleeps until a child ends, a signal or a
request on the control socket comes, or something is due. It holds process state only; killed, it
leaves the others serving, and the next one adopts them by their pid files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import assert_never

from clusterctl import supervision
from clusterctl.admin import observe_ready
from clusterctl.children import Children, Command, record_own
from clusterctl.control import NAME, ControlServer, Reply, Request, view_of
from clusterctl.launching import command_of, specs_of, whole_digest
from clusterctl.orphans import take_orphans
from clusterctl.serving import Announcement
from clusterctl.supervision import Forget, Kill, Kind, Phase, Process, Spec, Start, Terminate
from clusterctl.sweeping import set_down_marks, sweep_process
from clusterctl.wakeups import signal_wakeups
from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config
from protocol.folders import leave_socket_folder, private_folder
from protocol.installation import PLACE
from protocol.locks import locked
from protocol.states import ExitCode

logger = logging.getLogger(__name__)

FAREWELL = "everything has ended"
_LOOK_S = 0.5
"""Between two looks at what sends no signal: readiness, and the end of adopted processes."""

Readiness = Callable[[Home, ClusterConfig], Mapping[str, int]]


class Supervisor:
    """Owns the processes of one home. `run` it in the main thread."""

    def __init__(
        self,
        home: Home,
        config_file: Path,
        environ: Mapping[str, str],
        command: Command = command_of,
        readiness: Readiness = observe_ready,
    ) -> None:
        self._home = home
        self._config_file = config_file
        self._readiness = readiness
        self._config = ClusterConfig(version=1)
        self._processes: dict[str, Process] = {}
        self._announcement = Announcement(home)
        self._children = Children(home, config_file, environ, command)
        self._to_reload: set[str] = set()
        self._stop_signalled = False
        self._stopping = False
        self._leaving = False
        self._looked_at = 0.0

    def run(self, *, stop_at_once: bool = False) -> None:
        """Supervise until told to stop and all has ended.

        With `stop_at_once`, only end what an earlier supervisor left running, whatever the
        configuration says. Raises `LockHeldError`, `ConfigError` and `OSError`.
        """
        try:
            self._config = read_config(self._config_file)
        except ConfigError:
            if not stop_at_once:
                raise
        take_orphans()
        private_folder(self._home.path)
        private_folder(self._home.run)
        private_folder(self._home.logs)
        with locked(self._home.lock(NAME)), signal_wakeups(self._ask_to_stop) as wakeups:
            server = ControlServer(self._home)
            try:
                record_own(self._home)
                self._adopt()
                if stop_at_once:
                    self._stop()
                with selectors.DefaultSelector() as selector:
                    selector.register(wakeups, selectors.EVENT_READ)
                    selector.register(server, selectors.EVENT_READ)
                    self._loop(selector, server, wakeups)
            finally:
                (self._home.run / f"{NAME}.pid").unlink(missing_ok=True)
                server.close()
                leave_socket_folder(self._home)

    def _loop(self, selector: selectors.BaseSelector, server: ControlServer, wakeups: socket.socket) -> None:
        while True:
            if self._stop_signalled:
                self._stop()
            self._reap()
            self._look()
            for action in supervision.decide(self._processes, time.monotonic()):
                self._perform(action)
            self._mark_down()
            self._reload()
            self._announcement.look(self._processes, self._config)
            if self._leaving or (self._stopping and not self._processes):
                logger.info("another supervisor takes over" if self._leaving else FAREWELL)
                return
            for key, _events in selector.select(self._sleep_s()):
                if key.fileobj is server:
                    server.serve(self._answer)
                else:
                    wakeups.recv(4096)

    def _sleep_s(self) -> float | None:
        """Until something may have to be done; None: until something happens."""
        now = time.monotonic()
        due = supervision.next_due(self._processes)
        waits = [] if due is None else [max(0.0, due - now)]
        if self._must_look():
            waits.append(_LOOK_S)
        return min(waits, default=None)

    def _all(self) -> list[Process]:
        return list(self._processes.values())

    # --- what happened ---------------------------------------------------------------------

    def _reap(self) -> None:
        for ended in self._children.reap():
            process = self._processes[ended.id]
            now = time.monotonic()
            if ended.was_ready:
                process = supervision.seen_ready(process, ended.pid, now)
            process = supervision.exited(process, ended.exit_code, ended.reason, now)
            self._put(process)
            logger.info(
                "%s (pid %d) has ended: %s; it is %s now", ended.id, ended.pid, ended.reason, process.phase
            )

    def _must_look(self) -> bool:
        unready = any(p.phase is Phase.RUNNING and p.ready_at is None for p in self._all())
        return unready or self._children.any_adopted

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S or not self._must_look():
            return
        self._looked_at = now
        for process_id, pid in self._readiness(self._home, self._config).items():
            if process_id in self._processes:
                self._put(supervision.seen_ready(self._processes[process_id], pid, now))

    def _mark_down(self) -> None:
        """Leave word for the gateways which workers nobody will start: requests do not wait for those."""
        down = {p.spec.id for p in self._all() if p.is_down and p.wanted and p.spec.kind is Kind.WORKER}
        if set_down_marks(self._home, down):
            self._tell_gateways()

    def _tell_gateways(self) -> None:
        self._to_reload = {p.spec.id for p in self._all() if p.spec.kind is Kind.GATEWAY and p.alive}

    def _reload(self) -> None:
        """Tell gateways that the configuration changed; one that still starts hears it when it is ready."""
        for process_id in sorted(self._to_reload):
            process = self._processes.get(process_id)
            runs = process is not None and process.phase is Phase.RUNNING
            if process is not None and runs and process.ready_at is None:
                continue
            self._to_reload.discard(process_id)
            if runs:
                self._children.reload(process_id)

    # --- what is done ----------------------------------------------------------------------

    def _perform(self, action: supervision.Action) -> None:
        process = self._processes[action.id]
        match action:
            case Start():
                self._start(process)
            case Terminate():
                logger.info("%s (pid %s) is asked to end", action.id, process.pid)
                self._put(supervision.terminated(process, time.monotonic()))
                self._children.terminate(action.id)
            case Kill():
                logger.warning("%s (pid %s) did not end in time; it is killed", action.id, process.pid)
                self._put(supervision.killed(process))
                self._children.kill(action.id)
            case Forget():
                del self._processes[action.id]
                sweep_process(self._home, action.id)
            case _:
                assert_never(action)

    def _start(self, process: Process) -> None:
        spec = self._present(process.spec)
        process = replace(process, spec=spec)
        try:
            pid = self._children.start(spec, self._config)
        except OSError as error:
            logger.error("%s cannot be started: %s", spec.id, error)
            reason = f"it cannot be started: {error}"
            self._put(supervision.exited(process, ExitCode.FAULT, reason, time.monotonic()))
            return
        self._put(supervision.started(process, pid))
        logger.info("%s is started (pid %d)", spec.id, pid)

    def _present(self, spec: Spec) -> Spec:
        """As the process is going to read it: the file may have been changed without a word."""
        with contextlib.suppress(ConfigError):
            present = specs_of(read_config(self._config_file))
            return next((other for other in present if other.id == spec.id), spec)
        return spec

    def _adopt(self) -> None:
        """Take over the processes that an earlier supervisor left running."""
        for process, _child in self._children.adopt_recorded():
            self._put(process)
        self._want(retry=False)
        missing = [p.spec for p in self._all() if p.phase is Phase.WAITING]
        for process, _child in self._children.adopt_unrecorded(missing):
            self._put(process)

    # --- what is asked ---------------------------------------------------------------------

    def _answer(self, request: Request) -> Reply:
        error = ""
        match request.command:
            case "status":
                pass
            case "down":
                self._stop()
            case "reconcile":
                error = self._reconcile(request)
            case "restart":
                error = self._restart(request)
            case "leave":
                self._leaving = True
            case _:
                assert_never(request.command)
        return Reply(
            pid=os.getpid(),
            config=str(self._config_file),
            stopping=self._stopping,
            processes=tuple(view_of(process) for process in self._all()),
            error=error,
            told=whole_digest(self._config),
            installation=PLACE,
            environment=self._children.environ if self._leaving else None,
        )

    def _reconcile(self, request: Request) -> str:
        if self._stopping:
            return "the cluster is being taken down"
        try:
            self._config = read_config(self._config_file)
        except ConfigError as error:
            return str(error)
        if request.environment is not None:
            self._children.environ = dict(request.environment)
        self._want(retry=request.retry)
        self._tell_gateways()
        return ""

    def _restart(self, request: Request) -> str:
        """End a process, and start it again with the present file; one that has ended is only started."""
        process = self._processes.get(request.id)
        if self._stopping:
            return "the cluster is being taken down"
        if process is None or not process.wanted:
            return f"{request.id} does not run under this supervisor; to start it: clusterctl up"
        self._tell_gateways()
        if request.told_pid is not None and process.pid != request.told_pid:
            return ""  # it has ended meanwhile, and is started again anyway
        drain_s = process.spec.drain_s if request.drain_s is None else request.drain_s
        if process.phase is Phase.RUNNING and request.told_pid is None:
            self._children.terminate(request.id)
        self._put(supervision.asked_to_restart(process, time.monotonic(), drain_s))
        logger.info("%s (pid %s) is asked to restart", request.id, process.pid)
        return ""

    def _want(self, *, retry: bool) -> None:
        specs = specs_of(self._config)
        self._processes = supervision.want(self._processes, specs, time.monotonic(), retry=retry)

    def _stop(self) -> None:
        if not self._stopping:
            logger.info("everything is asked to end")
        self._stopping = True
        self._processes = supervision.want_nothing(self._processes)

    def _ask_to_stop(self) -> None:
        """From a signal's handler, between any two instructions: no more than a mark."""
        self._stop_signalled = True

    def _put(self, process: Process) -> None:
        if process.phase is Phase.PARKED and not process.last_log:
            process = replace(process, last_log=self._children.last_lines(process.spec.id))
        self._processes[process.spec.id] = process
