"""The built-in supervisor: one process for a home, that starts, watches and stops all others.

It does what `supervision` decides, in one thread: it sleeps until a child ends, a signal or a
request on the control socket comes, or something is due. It holds process state only; killed, it
leaves the others serving, and the next one adopts them by their pid files.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import assert_never

import msgspec

from clusterctl import supervision
from clusterctl.admin import observe_ready
from clusterctl.configfile import read_config
from clusterctl.control import NAME, ControlServer, Reply, Request, view_of
from clusterctl.launching import available_cores, child_environment, command_of, specs_of
from clusterctl.locks import AlreadyLockedError, locked
from clusterctl.processes import (
    Child,
    Record,
    describe_exit,
    last_words,
    launch,
    read_record,
    size_of,
    start_time,
    write_record,
)
from clusterctl.supervision import Forget, Kill, Kind, Process, Spec, Start, Terminate
from clusterctl.sweeping import sweep_process, sweep_sockets
from clusterctl.wakeups import signal_wakeups
from protocol import logs
from protocol.addresses import Home
from protocol.config import ClusterConfig, ConfigError, LogConfig
from protocol.folders import private_folder
from protocol.states import ExitCode

logger = logging.getLogger(__name__)

FAREWELL = "everything has ended"
TOO_LATE = "another supervisor serves this home"
_LOOK_S = 0.5
"""Between two looks at what sends no signal: readiness, and the end of adopted processes."""

Command = Callable[[Spec, Path], list[str]]
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
        self._environ = dict(environ)
        self._command = command
        self._readiness = readiness
        self._config = ClusterConfig(version=1)
        self._processes: dict[str, Process] = {}
        self._children: dict[str, Child] = {}
        self._log_sizes: dict[str, int] = {}
        self._to_reload: set[str] = set()
        self._stop_signalled = False
        self._stopping = False
        self._looked_at = 0.0

    def run(self, *, stop_at_once: bool = False) -> None:
        """Supervise until told to stop and all has ended.

        With `stop_at_once`, only end what an earlier supervisor left running, whatever the
        configuration says. Raises `AlreadyLockedError`, `ConfigError` and `OSError`.
        """
        if not stop_at_once:
            self._config = read_config(self._config_file)
        private_folder(self._home.path)
        private_folder(self._home.run)
        private_folder(self._home.logs)
        with locked(self._home.lock(NAME)), signal_wakeups(self._ask_to_stop) as wakeups:
            server = ControlServer(self._home)
            try:
                self._record_self()
                self._adopt()
                self._want(retry=False)
                if stop_at_once:
                    self._stop()
                with selectors.DefaultSelector() as selector:
                    selector.register(wakeups, selectors.EVENT_READ)
                    selector.register(server, selectors.EVENT_READ)
                    self._loop(selector, server, wakeups)
            finally:
                (self._home.run / f"{NAME}.pid").unlink(missing_ok=True)
                server.close()
                sweep_sockets(self._home)

    def _loop(self, selector: selectors.BaseSelector, server: ControlServer, wakeups: socket.socket) -> None:
        while True:
            if self._stop_signalled:
                self._stop()
            self._reap()
            self._look()
            self._reload()
            for action in supervision.decide(self._processes, time.monotonic()):
                self._perform(action)
            if self._stopping and not self._processes:
                logger.info(FAREWELL)
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
        for process_id, child in list(self._children.items()):
            if not child.ended():
                continue
            del self._children[process_id]
            words = last_words(self._log(process_id), self._log_sizes.get(process_id, 0))
            reason = describe_exit(child.exit_code, words)
            sweep_process(self._home, process_id)
            self._put(
                supervision.exited(self._processes[process_id], child.exit_code, reason, time.monotonic())
            )
            process = self._processes[process_id]
            logger.info(
                "%s (pid %d) has ended: %s; it is %s now", process_id, child.pid, reason, process.phase
            )

    def _must_look(self) -> bool:
        unready = any(p.phase is supervision.Phase.RUNNING and p.ready_at is None for p in self._all())
        return unready or any(child.adopted for child in self._children.values())

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S or not self._must_look():
            return
        self._looked_at = now
        for process_id, pid in self._readiness(self._home, self._config).items():
            if process_id in self._processes:
                self._put(supervision.seen_ready(self._processes[process_id], pid, now))

    def _reload(self) -> None:
        """Tell gateways that the configuration changed; one that still starts hears it when it is ready."""
        for process_id in sorted(self._to_reload):
            process = self._processes.get(process_id)
            runs = process is not None and process.phase is supervision.Phase.RUNNING
            if process is not None and runs and process.ready_at is None:
                continue
            self._to_reload.discard(process_id)
            if runs:
                self._children[process_id].reload()

    # --- what is done ----------------------------------------------------------------------

    def _perform(self, action: supervision.Action) -> None:
        process = self._processes[action.id]
        match action:
            case Start():
                self._start(process)
            case Terminate():
                logger.info("%s (pid %s) is asked to end", action.id, process.pid)
                self._put(supervision.terminated(process, time.monotonic()))
                self._children[action.id].terminate()
            case Kill():
                logger.warning("%s (pid %s) did not end in time; it is killed", action.id, process.pid)
                self._put(supervision.killed(process))
                self._children[action.id].kill()
            case Forget():
                del self._processes[action.id]
                sweep_process(self._home, action.id)
            case _:
                assert_never(action)

    def _start(self, process: Process) -> None:
        spec, log = process.spec, self._log(process.spec.id)
        self._rotate(log)
        self._log_sizes[spec.id] = size_of(log)
        environ = child_environment(spec, self._config, self._environ, available_cores())
        try:
            child = launch(self._command(spec, self._config_file), environ, self._home.path, log)
        except OSError as error:
            logger.error("%s cannot be started: %s", spec.id, error)
            reason = f"it cannot be started: {error}"
            self._put(supervision.exited(process, ExitCode.FAULT, reason, time.monotonic()))
            return
        self._children[spec.id] = child
        self._put(supervision.started(process, child.pid))
        logger.info("%s is started (pid %d)", spec.id, child.pid)
        try:
            self._write_record(spec, child)
        except OSError as error:
            # A full disk is no reason to stop serving; it costs that another supervisor cannot adopt it.
            logger.error("the pid file of %s cannot be written: %s", spec.id, error)

    def _rotate(self, log: Path) -> None:
        """A process that ends before it can look after its log itself must not fill the disk either."""
        if size_of(log) >= self._config.log.max_bytes:
            with contextlib.suppress(OSError):
                logs.rotate(log, self._config.log.keep)

    def _write_record(self, spec: Spec, child: Child) -> None:
        record = Record(
            pid=child.pid,
            started=child.started,
            kind=spec.kind.value,
            digest=spec.digest,
            drain_s=spec.drain_s,
        )
        write_record(self._pid_file(spec.id), record)

    def _record_self(self) -> None:
        pid = os.getpid()
        record = Record(pid=pid, started=start_time(pid) or 0.0, kind=NAME, digest="", drain_s=0.0)
        try:
            write_record(self._pid_file(NAME), record)
        except OSError as error:
            logger.error("the supervisor's pid file cannot be written: %s", error)

    def _adopt(self) -> None:
        """Take over the processes that an earlier supervisor left running."""
        for path in sorted(self._home.run.glob("*.pid")):
            process_id, record = path.stem, read_record(path)
            if process_id == NAME:
                continue
            if record is None or record.kind not in tuple(Kind):
                sweep_process(self._home, process_id)
                continue
            spec = Spec(process_id, Kind(record.kind), record.drain_s, record.digest)
            self._children[process_id] = Child(record.pid, record.started, None)
            self._put(supervision.adopted(spec, record.pid, record.digest))
            logger.info("%s (pid %d) was running already and is adopted", process_id, record.pid)

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
            case _:
                assert_never(request.command)
        return Reply(
            pid=os.getpid(),
            config=str(self._config_file),
            stopping=self._stopping,
            processes=tuple(view_of(process) for process in self._all()),
            error=error,
        )

    def _reconcile(self, request: Request) -> str:
        if self._stopping:
            return "the cluster is being taken down"
        try:
            self._config = read_config(self._config_file)
        except ConfigError as error:
            return str(error)
        if request.environment is not None:
            self._environ = dict(request.environment)
        self._want(retry=request.retry)
        self._to_reload = {p.spec.id for p in self._all() if p.spec.kind is Kind.GATEWAY and p.alive}
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
        self._processes[process.spec.id] = process

    def _log(self, process_id: str) -> Path:
        return self._home.log(process_id)

    def _pid_file(self, process_id: str) -> Path:
        return self._home.run / f"{process_id}.pid"


def main() -> None:
    """The supervisor as a program of its own; with `--detach` it says its pid and leaves its caller."""
    arguments = argparse.ArgumentParser(prog="clusterctl.supervisor", description=__doc__)
    arguments.add_argument("--config", type=Path, required=True)
    arguments.add_argument("--detach", action="store_true")
    options = arguments.parse_args()
    if options.detach:
        _detach()
    home = Home.from_environment(os.environ)
    logs.set_up(_log_settings(options.config), NAME, home.log(NAME))
    try:
        Supervisor(home, options.config, os.environ).run()
    except AlreadyLockedError:
        logger.info(TOO_LATE)
    except (ConfigError, OSError, ValueError) as error:
        logger.error("the supervisor cannot run: %s", error)
        sys.exit(ExitCode.MISCONFIGURED)


def _log_settings(config_file: Path) -> LogConfig:
    """As configured, but for the level: `clusterctl up` reads the last line to learn why it ended.

    A file that cannot be read is complained of by the supervisor itself.
    """
    with contextlib.suppress(OSError, ConfigError):
        return msgspec.structs.replace(read_config(config_file).log, level="info")
    return LogConfig()


def _detach() -> None:
    """Go on as a child of nobody: the caller reads the pid and may end, or close its terminal."""
    pid = os.fork()
    if pid:
        os.write(sys.stdout.fileno(), f"{pid}\n".encode())
        os._exit(0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
