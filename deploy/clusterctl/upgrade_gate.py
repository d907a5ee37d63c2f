"""Whether a worker that was started with another version serves: it has to generate a token."""

from __future__ import annotations

import time
from pathlib import Path

from clusterctl import node_workers
from clusterctl.admin import ActionError, WorkerView, read_states
from clusterctl.asking import ask_model
from clusterctl.nodes import Node
from clusterctl.operations import OperationError, Say
from clusterctl.progress import SERVES
from protocol.addresses import Home
from protocol.configfile import read_config
from protocol.keyfiles import KeyFileError

_LOOK_S = 0.2
_ASK_THERE_S = 3.0


class Gate:
    """Looks at workers through the gateways of this machine."""

    def __init__(self, home: Home, path: Path, say: Say, timeout_s: float) -> None:
        self._home = home
        self._path = path
        self._say = say
        self._timeout_s = timeout_s
        """A worker has so long to serve, and as long again to answer."""

    def views(self, worker_id: str) -> dict[str, WorkerView]:
        """What each gateway that is connected to the worker knows of it, by the gateway's id."""
        return {
            gateway_id: view
            for gateway_id, state in read_states(self._home, read_config(self._path)).items()
            for view in state.workers
            if view.id == worker_id and view.pid is not None
        }

    def runs(self, worker_id: str, version: str) -> bool:
        """Whether gateways are connected to it, and all to a process of that version."""
        views = self.views(worker_id).values()
        return bool(views) and all(view.version == version for view in views)

    def passed(self, node: Node, worker_id: str, version: str) -> str:
        """A sentence about a token that the worker, of that version, generated. Raises `OperationError`."""
        gateway_id = self._wait_until_serving(node, worker_id, version)
        model = read_config(self._path).worker_named(worker_id).name
        begun = time.monotonic()
        try:
            answer = ask_model(self._home, gateway_id, model, self._timeout_s, only=worker_id)
        except (ActionError, KeyFileError) as error:
            raise OperationError(f"{worker_id} is ready, but gives no answer: {error}") from error
        return f"{answer.worker_id} answers: {answer.text!r} ({time.monotonic() - begun:.2f} s)"

    def _wait_until_serving(self, node: Node, worker_id: str, version: str) -> str:
        """A gateway, once all that are connected to the worker see it serve with that version."""
        begun = looked = time.monotonic()
        attempts = node_workers.Attempts(worker_id)
        while True:
            views = self.views(worker_id)
            if views and all(v.version == version and v.state in SERVES for v in views.values()):
                return next(iter(views))
            now = time.monotonic()
            if now - looked > _ASK_THERE_S:
                self._refuse_hopeless(node, version, attempts)
                looked = time.monotonic()
            if now - begun > self._timeout_s:
                found = ", ".join(f"{v.state} with {v.version}" for v in views.values())
                raise OperationError(
                    f"{worker_id} does not serve after {self._timeout_s:g} s"
                    f" ({found or 'connected to no gateway'}); its log is on {node.name}: {node.prefix}/log"
                )
            time.sleep(_LOOK_S)

    def _refuse_hopeless(self, node: Node, version: str, attempts: node_workers.Attempts) -> None:
        """Raises `OperationError` when it never comes up, with the end of its log told before."""
        if known := attempts.hopeless(node_workers.witnesses(node, version)):
            for line in known.last_log:
                self._say(f"  {line}")
            raise OperationError(f"{known.id} does not come up: {known.last_error}")
