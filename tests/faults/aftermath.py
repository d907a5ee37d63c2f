"""What a cluster has to be after any fault: at rest, complete, no larger than before, and serving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import psutil

from protocol.addresses import Home
from tests.integration.cluster import PATIENCE_S, chat, script, wait_for

MORE_MEMORY = 48 << 20
"""Bytes: what an allocator keeps after a burst, and no leak that is worth the name."""
MORE_DESCRIPTORS = 3
"""Connections that are looked at just when they close."""
_COUNTED = ("studiofleet_requests_", "studiofleet_retries_", "studiofleet_takeovers_")
"""Their labels are error codes: new ones may come."""


@dataclass(frozen=True)
class Scene:
    """A cluster at rest, by the ids of its processes."""

    processes: Counter[str]
    pids: dict[str, int]
    descriptors: dict[str, int]
    memory: dict[str, int]
    files: set[str]
    series: set[str]


@contextmanager
def unscathed(
    home: Home, gateways: tuple[str, ...] = ("gw-1",), *, tracebacks: bool = False
) -> Iterator[None]:
    """Fails unless the cluster of this home is after the block what it was before it.

    Processes may be others than before, under the same ids. `tracebacks`: some are right, in logs.
    """
    before = _scene(home, gateways)
    yield
    wait_for(lambda: processes(home) == before.processes, "each process to run once")
    for gateway_id in gateways:
        wait_for(partial(_is_complete, home, gateway_id, before), "every worker at each gateway")
    at_rest(home, gateways)
    after = _scene(home, gateways)
    assert after.processes == before.processes
    assert after.files == before.files
    # Those of a peer that just closed vanish when it is missed.
    wait_for(lambda: _series(home, gateways) == before.series, "the series of before")
    for name in before.memory:
        assert after.memory[name] < before.memory[name] + MORE_MEMORY, name
    # Lost peers are noticed a moment later.
    wait_for(lambda: _is_small(_descriptors(pids(home)), before.descriptors), "descriptors to be closed")
    if not tracebacks:
        for log in home.logs.glob("*.log"):
            assert "Traceback" not in log.read_text(), log.read_text()[-4000:]


def at_rest(home: Home, gateways: tuple[str, ...] = ("gw-1",)) -> None:
    """Wait until every counter is exactly zero, at the gateways and in their workers."""
    for gateway_id in gateways:
        wait_for(partial(_rests, home, gateway_id), "every counter to be zero")


def state(home: Home, gateway_id: str = "gw-1") -> dict[str, Any]:
    """What the gateway tells of the cluster; empty while it is away."""
    try:
        url = home.http_url(gateway_id).read_text().strip()
        return dict(httpx.get(url + "/admin/state", timeout=PATIENCE_S).json())
    except (FileNotFoundError, httpx.TransportError):
        return {}


def metrics(home: Home, gateway_id: str = "gw-1") -> dict[str, float]:
    """Values by series."""
    url = home.http_url(gateway_id).read_text().strip()
    lines = httpx.get(url + "/metrics", timeout=PATIENCE_S).text.splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def total(home: Home, name: str, gateway_id: str = "gw-1") -> float:
    """A counter over all of its labels."""
    return sum(value for series, value in metrics(home, gateway_id).items() if series.startswith(name))


def processes(home: Home) -> Counter[str]:
    """How many run of each id, whoever started them."""
    return Counter(name for name, _pid in _ours(home))


def pids(home: Home) -> dict[str, int]:
    return dict(_ours(home))


def _ours(home: Home) -> list[tuple[str, int]]:
    """Ids and pids."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            ours = str(home.config) in words and "--id" in words
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append((words[words.index("--id") + 1], process.pid))
        except psutil.Error:
            continue
    return found


def _scene(home: Home, gateways: tuple[str, ...]) -> Scene:
    for gateway_id in gateways:
        _serves(home, gateway_id)
    found = pids(home)
    return Scene(
        processes=processes(home),
        pids=found,
        descriptors=_descriptors(found),
        memory={name: psutil.Process(pid).memory_info().rss for name, pid in found.items()},
        files={path.name for path in home.run.iterdir()},
        series=_series(home, gateways),
    )


def _series(home: Home, gateways: tuple[str, ...]) -> set[str]:
    return {name for each in gateways for name in metrics(home, each) if not name.startswith(_COUNTED)}


def _serves(home: Home, gateway_id: str) -> None:
    url = home.http_url(gateway_id).read_text().strip()
    model = state(home, gateway_id)["workers"][0]["model"]
    body = chat(script(tokens=["well"]), model=model)
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "well"


def _rests(home: Home, gateway_id: str) -> bool:
    return _open(state(home, gateway_id)) == 0


def _open(found: dict[str, Any]) -> int:
    """What a gateway believes to be under way."""
    if not found:
        return 1
    counts = [gateway[name] for gateway in found["gateways"] for name in ("streams", "queued")]
    names = ("running", "waiting", "prefill_tokens", "kv_tokens")
    counts += [worker[name] for worker in found["workers"] for name in names]
    return sum(counts) if min(counts) >= 0 else -1


def _is_complete(home: Home, gateway_id: str, before: Scene) -> bool:
    """Whether it has all workers that run, and nobody else."""
    seen = {w["id"]: w["state"] for w in state(home, gateway_id).get("workers", ()) if w["pid"]}
    running = [name for name in before.processes if not home.http_url(name).exists()]
    return seen == dict.fromkeys(running, "ready")


def _descriptors(found: dict[str, int]) -> dict[str, int]:
    return {name: psutil.Process(pid).num_fds() for name, pid in found.items()}


def _is_small(after: dict[str, int], before: dict[str, int]) -> bool:
    return all(after[name] <= count + MORE_DESCRIPTORS for name, count in before.items())
