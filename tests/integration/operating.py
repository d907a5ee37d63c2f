"""A person who types `clusterctl` in a home of their own, for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil

from clusterctl.operations import read_status
from protocol.addresses import Home
from protocol.configfile import read_config
from tests.integration.cluster import wait_for

CLUSTERCTL = [sys.executable, "-P", "-m", "clusterctl.cli"]


class Operator:
    """Types commands, in a home of its own. Ends whatever they left running there."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(folder)
        self.environ = {**os.environ, "STUDIOFLEET_HOME": str(folder)}

    def run(self, *arguments: str, code: int = 0, limit_s: float = 60) -> str:
        """The command's output, both streams. Fails when it does not end with that code."""
        result = subprocess.run(
            [*CLUSTERCTL, *arguments],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        assert result.returncode == code, f"{result.returncode}: {result.stdout}\n{self.logs()}"
        return result.stdout

    def begin(self, *arguments: str, stdin: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*CLUSTERCTL, *arguments],
            env=self.environ,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def init(self, *workers: str, **options: str) -> None:
        """A configuration with these fake workers; `options` are `engine_options` of all."""
        self.run("init", "--workers", "0", "--http", "127.0.0.1:0")
        for worker in workers:
            self.add(worker, *(w for k, v in options.items() for w in ("--engine-option", f"{k}={v}")))

    def add(self, worker: str, *more: str) -> str:
        return self.run("add-worker", "--model", "fake-model", "--engine", "fake", "--id", worker, *more)

    def status(self) -> dict[str, Any]:
        """What `status --json` prints, without the cost of a process for each look."""
        return dict(msgspec.to_builtins(read_status(self.home, read_config(self.home.config))))

    def worker(self, worker_id: str) -> dict[str, Any]:
        return next((w for w in self.status()["workers"] if w["id"] == worker_id), {})

    def wait_state(self, worker_id: str, state: str) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            worker = self.worker(worker_id)
            return worker if worker.get("state") == state else None

        return dict(wait_for(found, f"{worker_id} to be {state}"))

    def pids(self) -> list[int]:
        status = self.status()
        found = [status["supervisor"]["pid"], *(p["pid"] for p in status["gateways"] + status["workers"])]
        return [pid for pid in found if pid]

    def processes(self) -> list[int]:
        """Every process that was started with this configuration, whoever knows of it."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.home.config) in process.cmdline():
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def generations(self) -> Counter[str]:
        """How many processes of each gateway and worker run at this moment."""
        found: Counter[str] = Counter()
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                ours = str(self.home.config) in words and "--id" in words
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found[words[words.index("--id") + 1]] += 1
            except psutil.Error:
                continue
        return found

    def url(self) -> str:
        """Of the gateway; empty while it does not run."""
        path = self.home.http_url("gw-1")
        try:
            return path.read_text().strip()
        except FileNotFoundError:
            return ""

    def answers(self) -> bool:
        url = self.status()["gateways"][0]["url"]
        if url is None:
            return False
        body = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30)
        return answer.status_code == 200 and bool(answer.json()["choices"][0]["message"]["content"])

    def logs(self) -> str:
        return "\n".join(
            f"--- {p.name}\n{p.read_text()[-1500:]}" for p in sorted(self.home.logs.glob("*.log"))
        )

    def nothing_is_left(self, pids: list[int]) -> None:
        wait_for(lambda: not any(running(pid) for pid in pids), "all processes to have ended")
        assert list(self.home.run.iterdir()) == []
        assert self.home.sockets == self.home.run or not self.home.sockets.exists()

    def end_all(self) -> None:
        subprocess.run([*CLUSTERCTL, "down"], env=self.environ, capture_output=True, timeout=100, check=False)


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def operating() -> Iterator[Operator]:
    """Somebody with an empty home, which is gone afterwards, with all that ran there."""
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    operator = Operator(folder / "home")
    try:
        yield operator
    finally:
        operator.end_all()
        shutil.rmtree(folder)
