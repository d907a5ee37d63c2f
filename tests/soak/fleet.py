"""The cluster that is soaked: what is done to it, and what is measured of it."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil

from clusterctl.processes import Record, read_record
from tests.integration.cluster import fake_worker, wait_for
from tests.integration.operating import Operator
from tests.soak.measures import Sample

KEEP = 2
MAX_BYTES = 64 * 1024
PROCESSES = ("supervisor", "gw-1", "gw-2", "w-1", "w-2", "w-3")
LIMITS = {
    "open": 0.0,
    "doubled": 0.0,
    "bytes": float((KEEP + 1) * MAX_BYTES + 8192),
    "kept": float((KEEP + 1) * len(PROCESSES)),
}
"""Of a process's logs: the present file, which may end with one long line, and those that are kept."""
VICTIMS = ("gw-2", "w-2", "w-3")
"""The others live as long as the soak, but for the supervisor, which is killed only while it warms up."""
PATIENCE_S = 120.0
_LOOKS = 4
_LOOK_S = 0.1

GATEWAYS = """
[[gateways]]
id = "gw-1"
http = "127.0.0.1:0"
[[gateways]]
id = "gw-2"
http = "127.0.0.1:0"
"""
SETTINGS = f"""
[log]
level = "debug"
max_bytes = {MAX_BYTES}
keep = {KEEP}
"""


def configuration() -> str:
    """Two gateways, two models, three workers, small logs."""
    workers = [fake_worker(f"w-{number}", max_num_seqs=4) for number in (1, 2, 3)]
    return "version = 1\n" + GATEWAYS + SETTINGS + "".join(workers)


class Fleet:
    """A cluster under its supervisor, and an operator who is seldom idle."""

    def __init__(self, operator: Operator, rng: random.Random) -> None:
        self._operator = operator
        self._home = operator.home
        self._rng = rng
        operator.home.path.mkdir(mode=0o700)
        operator.home.config.write_text(configuration())
        operator.run("up", "--wait")

    def urls(self) -> list[str]:
        """Of the gateways that run at this moment."""
        files = [self._home.http_url(gateway_id) for gateway_id in ("gw-1", "gw-2")]
        return [text for path in files if (text := _text(path))]

    # --- what is done to it ---

    def disturb(self, *, warm: bool) -> str:
        """One thing that an operator, or bad luck, does on an ordinary day."""
        acts = [self._restart, self._drain, self._kill, self._reload]
        act = self._rng.choice(acts if warm else [*acts, self._kill_supervisor])
        return act()

    def _restart(self) -> str:
        victim = self._rng.choice(VICTIMS)
        self._operator.run("restart", victim)
        return f"restart {victim}"

    def _drain(self) -> str:
        worker = self._rng.choice(("w-1", "w-2", "w-3"))
        self._operator.run("drain", worker)
        self._operator.run("undrain", worker)
        return f"drain and undrain {worker}"

    def _kill(self) -> str:
        victim = self._rng.choice(VICTIMS)
        os.kill(self._pid(victim), signal.SIGKILL)
        return f"kill -9 {victim}"

    def _kill_supervisor(self) -> str:
        os.kill(self._pid("supervisor"), signal.SIGKILL)
        self._operator.run("up")
        return "kill -9 supervisor, up"

    def _reload(self) -> str:
        self._operator.run("up")
        return "up, which has the gateways read everything again"

    # --- what is measured of it ---

    def settle(self) -> None:
        """Return when everything serves and nothing is under way."""
        self._operator.run("up", "--wait")
        wait_for(lambda: self._open() == 0 and self._all_ready(), "everything to rest", PATIENCE_S)

    def sample(self) -> Sample:
        found = {"all open": float(self._open())}
        for process_id in PROCESSES:
            process = psutil.Process(self._pid(process_id))
            found[f"{process_id} descriptors"] = _descriptors(process)
            threads = "young-threads" if process_id in VICTIMS else "threads"
            found[f"{process_id} {threads}"] = process.num_threads()
            found[f"{process_id} memory"] = process.memory_info().rss
            logs = self._home.logs.glob(f"{process_id}.log*")
            found[f"{process_id} bytes"] = sum(path.stat().st_size for path in logs)
        # Of the gateway that nobody restarts: the other's begin from nothing each time.
        metrics = httpx.get(self.urls()[0] + "/metrics", timeout=PATIENCE_S).text
        found["gw-1 series"] = len(metrics.splitlines())
        found["run files"] = len(list(self._home.run.iterdir()))
        found["logs kept"] = len(list(self._home.logs.iterdir()))
        found["all doubled"] = sum(count - 1 for count in self._operator.generations().values())
        return found

    def _states(self) -> list[dict[str, Any]]:
        return [httpx.get(url + "/admin/state", timeout=PATIENCE_S).json() for url in self.urls()]

    def _all_ready(self) -> bool:
        """Whether every gateway has every worker."""
        ready = [[worker["state"] == "ready" for worker in state["workers"]] for state in self._states()]
        return ready == [[True] * 3] * 2

    def _open(self) -> int:
        """What the gateways believe to be under way, at themselves and in workers."""
        states = self._states()
        at_gateways = sum(g["streams"] + g["queued"] for state in states for g in state["gateways"])
        at_workers = sum(w["running"] + w["waiting"] for state in states for w in state["workers"])
        return int(at_gateways + at_workers)

    def _pid(self, process_id: str) -> int:
        path = self._home.run / f"{process_id}.pid"
        record: Record = wait_for(lambda: read_record(path), f"{process_id} to run", PATIENCE_S)
        return record.pid


def _descriptors(process: psutil.Process) -> int:
    """Without the connections of those who only look, as the supervisor does now and then."""
    looks = []
    for _ in range(_LOOKS):
        looks.append(process.num_fds())
        time.sleep(_LOOK_S)
    return min(looks)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
