"""The built-in supervisor behind the interface of the backends: a home of one service, and its supervisor."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from clusterctl import supervision
from clusterctl.control import ProcessView, Reply, Request, SupervisorAbsentError, ask
from clusterctl.services import Backend, ServiceSpec, ServiceState
from clusterctl.supervision import Spec
from clusterctl.supervisor import Supervisor
from protocol.addresses import Home
from protocol.config import ClusterConfig
from tests.integration.cluster import wait_for

ID = "smol-1"
_GRACE_S = 0.5
"""Instead of 10 s, before what does not end is killed."""
_CONFIG = """\
version = 1
gateway = {{ id = "{id}", http = "127.0.0.1:0" }}
limits = {{ drain_timeout_s = {drain_s} }}
traces = {{ endpoint = "http://127.0.0.1/{digest}" }}
"""
"""The service is a gateway, as those hear of changes; what it is told is in its digest."""


class Process(Backend):
    """Stopped is taken down, as nobody else is in this home."""

    kind = "process"

    def __init__(self, home: Home) -> None:
        self._home = home
        self._service = home.path / "service.json"
        self._supervisor: subprocess.Popen[bytes] | None = None

    def install(self, spec: ServiceSpec) -> bool:
        service = json.dumps([spec.argv, dict(spec.environ)])
        digest = hashlib.sha256(service.encode()).hexdigest()
        text = _CONFIG.format(id=ID, drain_s=spec.stop_s - _GRACE_S, digest=digest)
        if not self._home.config.exists() or self._home.config.read_text() != text:
            self._home.config.write_text(text)
            self._service.write_text(service)
        elif self._reply():
            return False
        self._follow()
        view = self._view()
        if view is not None and view.outdated:
            self.restart(spec.label)
        return True

    def _follow(self) -> None:
        if self._reply():
            environment = json.loads(self._service.read_text())[1]
            ask(self._home, Request(command="reconcile", retry=True, environment=environment))
            return
        command = [sys.executable, "-P", "-m", "tests.fleet.supervised", str(self._home.path)]
        self._supervisor = subprocess.Popen(command, start_new_session=True)
        wait_for(self._reply, "the supervisor to answer")

    def start(self, label: str) -> None:
        if not self.state(label).running:
            self._follow()

    def stop(self, label: str) -> bool:
        if self._reply() is None:
            return False
        ask(self._home, Request(command="down"))
        self.end()
        return True

    def end(self) -> None:
        """Of the supervisor is waited for."""
        if self._supervisor is not None:
            assert self._supervisor.wait(timeout=100) == 0

    def reload(self, label: str) -> None:
        ask(self._home, Request(command="reconcile"))

    def restart(self, label: str) -> None:
        assert not ask(self._home, Request(command="restart", id=ID)).error

    def state(self, label: str) -> ServiceState:
        loaded, view = self._home.config.exists(), self._view()
        if view is None:
            return ServiceState(loaded=loaded)
        return ServiceState(
            loaded=loaded,
            running=view.pid is not None,
            pid=view.pid,
            runs=view.starts,
            last_exit=view.last_exit,
        )

    def remove(self, label: str) -> bool:
        self.stop(label)
        there = self._home.config.exists()
        self._home.config.unlink(missing_ok=True)
        return there

    def _reply(self) -> Reply | None:
        try:
            return ask(self._home, Request(command="status"))
        except SupervisorAbsentError:
            return None

    def _view(self) -> ProcessView | None:
        reply = self._reply()
        return next(iter(reply.processes), None) if reply else None


def supervise(home: Home) -> None:
    """The supervisor of such a home; ready is who says that it has begun."""
    service = home.path / "service.json"

    def command(_spec: Spec, _config_file: Path) -> list[str]:
        return list(json.loads(service.read_text())[0])

    def ready(_home: Home, _config: ClusterConfig) -> Mapping[str, int]:
        lines = home.log(ID).read_text().splitlines()
        begun = [int(pid) for word, pid in map(str.split, lines) if word == "begun"]
        return {ID: begun[-1]} if begun else {}

    supervision.KILL_GRACE_S = _GRACE_S
    environ = json.loads(service.read_text())[1]
    Supervisor(home, home.config, environ, command=command, readiness=ready).run()


if __name__ == "__main__":
    os.umask(0o077)
    supervise(Home(Path(sys.argv[1])))
