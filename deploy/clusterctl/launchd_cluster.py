"""The gateways and workers of a home as services of this machine's launchd, one each.

Nothing of ours runs beside them: launchd starts them at boot and again when they fail, a worker parks
itself. They are daemons, which run whoever is logged in, as the owner of the home.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from clusterctl import root_access, root_helper
from clusterctl.admin import observe_ready
from clusterctl.bootunits import boot_environment
from clusterctl.control import ProcessView, Reply
from clusterctl.launchd import Launchd
from clusterctl.launchd_plist import exit_timeout_s
from clusterctl.launchd_verbs import HelperVerbs
from clusterctl.launching import command_of, settled_environment, specs_of
from clusterctl.processes import describe_exit, last_lines, last_words
from clusterctl.runner import Ended, LocalRunner, Runner
from clusterctl.services import ServiceError, ServiceSpec, ServiceState
from clusterctl.supervision import Kind, Phase, Spec
from clusterctl.sweeping import sweep_process
from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.parking import SUPERVISOR_VARIABLE, lift, why_parked

LAUNCHD_PID = 1
THROTTLE_S = {Kind.GATEWAY: 10, Kind.WORKER: 30}
_LAST_LINES = 20
_PASSWORD_S = 600.0
_PROMPT = "so that clusterctl may have launchd run services of %u: password for root's rights: "


class LaunchdCluster:
    """What one home has in launchd."""

    def __init__(self, home: Home, config_file: Path, config: ClusterConfig) -> None:
        self._home = home
        self._config_file = config_file
        self._config = config
        self._name = root_access.name_of(home)
        self._runner: Runner = LocalRunner()

    @cached_property
    def _helper(self) -> root_helper.RootHelper:
        return root_access.local_helper(self._home)

    @cached_property
    def _launchd(self) -> Launchd:
        return Launchd(HelperVerbs(self._runner, self._helper))

    @property
    def is_installed(self) -> bool:
        """Whether launchd has, or will get at boot, any process of this home."""
        return bool(self._installed())

    def follow(self, environ: Mapping[str, str], *, retry: bool) -> None:
        """Have launchd run what is configured, and nothing else; with `retry`, what is down is started, too.

        A running process goes on with what it has read, unless its property list changes. Raises
        `ServiceError` at the end, when all others are done.
        """
        faults = []
        if not root_access.is_usable(self._runner, self._helper):
            self.install_helper()
        installed = self._installed()
        wanted = {spec.id: spec for spec in specs_of(self._config)}
        for process_id, kind in installed.items():
            if process_id not in wanted:
                self._drop(process_id, kind)
        for spec in wanted.values():
            try:
                self._follow_one(spec, environ, start=retry or spec.id not in installed)
            except ServiceError as error:
                faults.append(str(error))
        if faults:
            raise ServiceError("; ".join(faults))

    def install_helper(self) -> bool:
        """Have the program that acts for root there; False when it was. Raises `ServiceError`."""
        return root_access.install(self._runner, self._helper, self._as_root)

    def remove_helper(self) -> bool:
        """Have nothing left of it, nor of its services; False when there was none. Raises `ServiceError`."""
        return root_access.uninstall(self._runner, self._helper)

    def _as_root(self, text: str) -> Ended:
        """sudo asks at the terminal for the password, where there is one."""
        return self._runner.run(["sudo", "-p", _PROMPT, "/bin/sh", "-c", text], limit_s=_PASSWORD_S)

    def _follow_one(self, spec: Spec, environ: Mapping[str, str], *, start: bool) -> None:
        label = self._label(spec.kind, spec.id)
        if start:
            lift(self._home, spec.id)
            if self._launchd.install(self._service(spec, environ)):
                return  # it has just read all that there is
            self._launchd.start(label)
        if self._home.http_url(spec.id).exists():  # a gateway that serves, and minds the signal
            self._launchd.reload(label)

    def remove(self) -> None:
        """End everything of this home, workers first, and leave nothing in launchd. Raises `ServiceError`."""
        installed = self._installed()
        for process_id, kind in sorted(installed.items(), key=lambda item: item[1] is Kind.GATEWAY):
            self._drop(process_id, kind)

    def restart(self, process_id: str) -> None:
        """End it as it wants to be ended, and start it with the present configuration."""
        kind = next(spec.kind for spec in specs_of(self._config) if spec.id == process_id)
        lift(self._home, process_id)
        self._launchd.restart(self._label(kind, process_id))

    def reply(self) -> Reply | None:
        """What the built-in supervisor would say; None when launchd has nothing of this home."""
        installed = self._installed()
        wanted = {spec.id for spec in specs_of(self._config)}
        states = {
            process_id: self._launchd.state(self._label(kind, process_id))
            for process_id, kind in installed.items()
        }
        if not any(state.loaded for state in states.values()):
            return None
        ready = observe_ready(self._home, self._config)
        views = [
            self._view(
                process_id, installed[process_id], state, ready.get(process_id), wanted=process_id in wanted
            )
            for process_id, state in states.items()
        ]
        return Reply(
            pid=LAUNCHD_PID,
            config=str(self._config_file),
            stopping=False,
            processes=tuple(views),
        )

    def _view(
        self, process_id: str, kind: Kind, state: ServiceState, ready_pid: int | None, *, wanted: bool
    ) -> ProcessView:
        parked = why_parked(self._home, process_id) if kind is Kind.WORKER else None
        phase = _phase(state, parked)
        log = self._home.log(process_id)
        error = parked or ""
        if phase is Phase.WAITING:
            error = state.last_signal or describe_exit(state.last_exit, last_words(log, 0))
        return ProcessView(
            id=process_id,
            kind=kind.value,
            phase=phase.value,
            pid=state.pid,
            ready=state.pid is not None and state.pid == ready_pid,
            starts=state.runs or 0,
            restarts=max(0, (state.runs or 0) - 1),
            last_exit=state.last_exit,
            last_error=error,
            outdated=False,
            wanted=wanted,
            last_log=last_lines(log, _LAST_LINES) if phase is Phase.PARKED else (),
        )

    def _drop(self, process_id: str, kind: Kind) -> None:
        self._launchd.remove(self._label(kind, process_id))
        sweep_process(self._home, process_id)

    def _label(self, kind: Kind, process_id: str) -> str:
        return f"{self._name}.{kind.value}.{process_id}"

    def _installed(self) -> dict[str, Kind]:
        """The ids of the processes whose property lists are there."""
        found = {}
        for kind in Kind:
            prefix = self._label(kind, "")
            for path in sorted(Path(root_helper.DAEMONS).glob(f"{prefix}*.plist")):
                found[path.name[len(prefix) : -len(".plist")]] = kind
        return found

    def _service(self, spec: Spec, environ: Mapping[str, str]) -> ServiceSpec:
        argv = tuple(command_of(spec, self._config_file))
        settled = settled_environment(environ, Path.cwd(), self._home)
        return ServiceSpec(
            label=self._label(spec.kind, spec.id),
            argv=argv,
            environ={
                **boot_environment(settled, argv[0]),
                "HOME": environ.get("HOME") or str(Path.home()),
                "LANG": "en_US.UTF-8",
                SUPERVISOR_VARIABLE: "launchd",
            },
            folder=self._home.path,
            log=self._home.log(spec.id),
            stop_s=exit_timeout_s(spec.drain_s),
            throttle_s=THROTTLE_S[spec.kind],
            user=self._helper.user,
            umask=0o077,
        )


def _phase(state: ServiceState, parked: str | None) -> Phase:
    if state.running:
        return Phase.RUNNING
    if parked is not None:
        return Phase.PARKED
    if not state.loaded or (state.last_exit == 0 and not state.last_signal):
        return Phase.STOPPED
    return Phase.WAITING
