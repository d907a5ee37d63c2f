"""Starts what is measured, and stops it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from clusterctl.launching import available_cores, child_environment, command_of, specs_of
from clusterctl.supervision import Spec
from protocol.configfile import read_config

BENCHES = Path(__file__).resolve().parent
PATIENCE_S = 60.0
CONFIG = """version = 1
[gateway]
id = "gw"
http = "127.0.0.1:0"
[log]
level = "warning"
"""


class Processes:
    """Owns the processes of one benchmark."""

    def __init__(self) -> None:
        self._all: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        cores: set[int] | None = None,
        environ: Mapping[str, str] | None = None,
        **options: object,
    ) -> subprocess.Popen[bytes]:
        """On these cores only, where the system knows how."""
        process = subprocess.Popen(command, env={**os.environ, **(environ or {})}, **options)  # type: ignore[call-overload]
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, cores)
        self._all.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self._all):
            process.terminate()
            process.send_signal(signal.SIGCONT)  # one that stands still would not hear of it
        for process in self._all:
            process.wait(timeout=PATIENCE_S)


@contextmanager
def processes() -> Iterator[Processes]:
    owned = Processes()
    try:
        yield owned
    finally:
        owned.stop()


class Cluster:
    """A gateway and one worker, or several alike."""

    def __init__(
        self,
        folder: Path,
        engine: str | Sequence[str],
        owned: Processes,
        *,
        gateway_cores: set[int] | None = None,
        worker_cores: set[int] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`engine`: lines of the worker's table, or of each worker's; `environ`: for all.

        Returns when it is ready.
        """
        home = folder / "home"
        home.mkdir(mode=0o700, parents=True)
        config = home / "cluster.toml"
        engines = [engine] if isinstance(engine, str) else engine
        tables = {f"w-{number}": lines for number, lines in enumerate(engines, 1)}
        config.write_text(CONFIG + "".join(f'[[workers]]\nid = "{i}"\n{t}\n' for i, t in tables.items()))
        parsed = read_config(config)
        environ = {**os.environ, "STUDIOFLEET_HOME": str(home), **(environ or {})}

        def start(spec: Spec, cores: set[int] | None) -> subprocess.Popen[bytes]:
            child = child_environment(spec, parsed, environ, available_cores(), sys.platform)
            return owned.start(command_of(spec, config), cores, child, cwd=home)

        gateway, *workers = specs_of(parsed)
        self.gateway = start(gateway, gateway_cores)
        self.workers = [start(worker, worker_cores) for worker in workers]
        self.worker = self.workers[0]
        self.url = wait_for_text(home / "run" / "gw.url", self.gateway)
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            if time.monotonic() > deadline or any(worker.poll() is not None for worker in self.workers):
                raise SystemExit("the worker does not become ready")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        state = httpx.get(self.url + "/admin/state").json()
        return all(worker["state"] == "ready" for worker in state["workers"])


def wait_for_text(path: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (path.exists() and path.read_text().strip()):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"a server did not start: {process.args}")
        time.sleep(0.05)
    return path.read_text().strip()


def environment(folder: Path, *packages: Sequence[str]) -> Path:
    """The folder of the programs of a virtual environment, made at the first use by these calls of pip."""
    programs = folder / "bin"
    if not (folder / "made").exists():
        print(f"installing into {folder}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        for each in packages:
            subprocess.run([str(programs / "python"), "-m", "pip", "install", "--quiet", *each], check=True)
        (folder / "made").touch()
    return programs


def start_peer(
    name: str,
    command: Sequence[str],
    environ: Mapping[str, str],
    owned: Processes,
    folder: Path,
    cores: set[int] | None = None,
) -> tuple[subprocess.Popen[bytes], str]:
    """Another project's server and its URL, once it answers."""
    port = _free_port()
    with (folder / f"{name}.log").open("wb") as log:
        arguments = [*command, "--host", "127.0.0.1", "--port", str(port)]
        process = owned.start(arguments, cores, environ, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 3 * PATIENCE_S
    while not _answers(url):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{name} does not start:\n{(folder / f'{name}.log').read_text()[-2000:]}")
        time.sleep(0.2)
    return process, url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models").status_code == 200
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
