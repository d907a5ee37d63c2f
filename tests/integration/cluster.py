"""A cluster of real processes in a home of its own, for tests. It ends what it started, only that."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from protocol.addresses import Home
from protocol.keys import ensure_admin_key, read_admin_key

PATIENCE_S = 30.0
"""Every wait ends as soon as its condition holds; this is when it gives up."""


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true value of `condition`. Fails the test, saying `what`, when there is none in time."""
    deadline = time.monotonic() + patience_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {patience_s} s in vain for: {what}"
        time.sleep(0.02)


class Cluster:
    """Processes by id, in one home."""

    def __init__(self, folder: Path, config: str) -> None:
        self.home = Home(folder)
        self.home.path.mkdir(mode=0o700, exist_ok=True)
        self.home.logs.mkdir(exist_ok=True)
        self.home.config.write_text(config)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, kind: str, process_id: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start `gateway` or `worker` of that id; its log is `logs/ID.log`."""
        with (self.home.logs / f"{process_id}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", kind, "--config", str(self.home.config), "--id", process_id],
                env={**os.environ, "STUDIOFLEET_HOME": str(self.home.path), **environ},
                cwd=self.home.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[process_id] = process
        return process

    def log(self, process_id: str) -> str:
        return (self.home.logs / f"{process_id}.log").read_text()

    def url(self, gateway_id: str = "gw-1") -> str:
        """The base URL of a gateway that runs, waiting for it."""
        path = self.home.http_url(gateway_id)

        def read() -> str:
            assert self.processes[gateway_id].poll() is None, self.log(gateway_id)
            return path.read_text().strip() if path.exists() else ""

        return str(wait_for(read, f"{gateway_id} to write its address"))

    def state(self, gateway_id: str = "gw-1") -> dict[str, Any]:
        answer = httpx.get(self.url(gateway_id) + "/admin/state", timeout=PATIENCE_S)
        answer.raise_for_status()
        return dict(answer.json())

    def worker(self, worker_id: str, gateway_id: str = "gw-1") -> dict[str, Any]:
        """What the gateway says of a worker; empty when it does not know it."""
        return next((dict(w) for w in self.state(gateway_id)["workers"] if w["id"] == worker_id), {})

    def wait_ready(self, *worker_ids: str, gateway_id: str = "gw-1", patience_s: float = PATIENCE_S) -> None:
        def all_ready() -> bool:
            for worker_id in worker_ids:
                process = self.processes.get(worker_id)
                assert process is None or process.poll() is None, self.log(worker_id)
            workers = {w["id"]: w["state"] for w in self.state(gateway_id)["workers"]}
            return all(workers.get(worker_id) == "ready" for worker_id in worker_ids)

        wait_for(all_ready, f"{worker_ids} to be ready at {gateway_id}", patience_s)

    def wait_idle(self, gateway_id: str = "gw-1", patience_s: float = PATIENCE_S) -> None:
        """Wait until every counter is exactly zero, on the gateway and in its workers."""

        def idle() -> bool:
            state = self.state(gateway_id)
            counters = [(g["streams"], g["queued"]) for g in state["gateways"]]
            counters += [(w["running"], w["waiting"]) for w in state["workers"]]
            counters += [(w["prefill_tokens"], w["kv_tokens"]) for w in state["workers"]]
            return all(pair == (0, 0) for pair in counters)

        wait_for(idle, "all counters to be zero", patience_s)

    def take_key(self, gateway_id: str = "gw-1") -> str:
        """Make an admin key, and have the gateway ask for it from now on."""
        ensure_admin_key(self.home)
        self.signal(gateway_id, signal.SIGHUP)
        key = read_admin_key(self.home)
        url, headers = self.url(gateway_id) + "/admin/reload", {"authorization": f"Bearer {key}"}
        wait_for(lambda: httpx.post(url, headers=headers).status_code == 200, "the key to be in force")
        return key

    def signal(self, process_id: str, number: signal.Signals) -> None:
        self.processes[process_id].send_signal(number)

    def wait_exit(self, process_id: str, patience_s: float = PATIENCE_S) -> int:
        return self.processes[process_id].wait(timeout=patience_s)

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def config_text(workers: str, *, gateways: tuple[str, ...] = ("gw-1",), extra: str = "") -> str:
    """A configuration with these gateways, each on a port of the system's choice."""
    tables = "".join(f'[[gateways]]\nid = "{g}"\nhttp = "127.0.0.1:0"\n' for g in gateways)
    return f"version = 1\n{extra}\n{tables}\n{workers}"


def fake_worker(worker_id: str, *, model: str = "fake-model", **settings: Any) -> str:
    """A `[[workers]]` table with the fake engine; `engine_options` is a dict."""
    options = settings.pop("engine_options", {})
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    lines += [f"engine_options.{key} = {json.dumps(value)}" for key, value in options.items()]
    return "\n".join(
        ["[[workers]]", f'id = "{worker_id}"', f'model = "{model}"', 'engine = "fake"', *lines, ""]
    )


@contextmanager
def running(
    config: str, *worker_ids: str, gateways: tuple[str, ...] = ("gw-1",), patience_s: float = PATIENCE_S
) -> Iterator[Cluster]:
    """A cluster whose gateways know all these workers as ready."""
    folder = Path(tempfile.mkdtemp(prefix="sf-test-"))
    cluster = Cluster(folder / "home", config)
    try:
        for gateway_id in gateways:
            cluster.start("gateway", gateway_id)
        for worker_id in worker_ids:
            cluster.start("worker", worker_id)
        for gateway_id in gateways:
            cluster.wait_ready(*worker_ids, gateway_id=gateway_id, patience_s=patience_s)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def chat(content: str, *, model: str = "fake-model", **fields: Any) -> dict[str, Any]:
    """The body of a chat request with one user message."""
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


def script(**fields: Any) -> str:
    """A message that tells the fake engine what to do."""
    return "fake:" + json.dumps(fields)


def sse(lines: list[str]) -> list[Any]:
    """The events of a stream: decoded JSON, and `[DONE]` as it stands. Comments are skipped."""
    data = [line[6:] for line in lines if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def text_of(events: list[Any]) -> str:
    """The visible text of a chat stream."""
    choices = [c for e in events if isinstance(e, dict) for c in e.get("choices", ())]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def stream_chat(
    client: httpx.AsyncClient, body: dict[str, Any], on_line: Callable[[str], object] = lambda line: None
) -> list[Any]:
    """All events of one streamed chat answer; `on_line` sees each line as it comes. Raises when the status
    is not 200."""

    async def lines(answer: httpx.Response) -> list[str]:
        found = []
        async for line in answer.aiter_lines():
            on_line(line)
            found.append(line)
        return found

    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        if answer.status_code != 200:
            await answer.aread()
            answer.raise_for_status()
        return sse(await lines(answer))
