"""What is started for each entry of the configuration: the command, the environment, the digest."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from clusterctl.supervision import Kind, Spec
from protocol.addresses import Home, models_folder
from protocol.config import ClusterConfig, WorkerConfig

HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""glibc reads it before a program's first instruction; musl passes over it."""


def specs_of(config: ClusterConfig) -> list[Spec]:
    """One spec for each process of the configuration, gateways first."""
    gateways = [
        Spec(g.id, Kind.GATEWAY, config.limits.drain_timeout_s, _digest_of_gateway(config))
        for g in config.local_gateways
    ]
    workers = [
        Spec(w.id, Kind.WORKER, w.drain_timeout_s, _digest_of_worker(config, w)) for w in config.local_workers
    ]
    return gateways + workers


def whole_digest(config: ClusterConfig) -> str:
    """Of all that processes of this machine read in the configuration, further names of models included."""
    return _digest(msgspec.structs.replace(config, nodes=()))


def _digest_of_gateway(config: ClusterConfig) -> str:
    """Of what it reads at its start; the names of workers and models it takes from the file while it runs."""
    return _digest(msgspec.structs.replace(config, workers=(), nodes=(), models=()))


def _digest_of_worker(config: ClusterConfig, worker: WorkerConfig) -> str:
    """Of what it reads at its start: its own entry gateways, beats, logs, traces; no further names."""
    gateways = [(gateway.id, gateway.listen, gateway.insecure_tcp) for gateway in config.all_gateways]
    own = msgspec.structs.replace(worker, aliases=())
    return _digest((own, gateways, config.heartbeat, config.residency, config.log, config.traces))


def _digest(read: object) -> str:
    return hashlib.sha256(msgspec.json.encode(read, order="deterministic")).hexdigest()[:16]


def command_of(spec: Spec, config_file: Path) -> list[str]:
    """The command line of the process."""
    return [sys.executable, "-P", "-m", spec.kind.value, "--config", str(config_file), "--id", spec.id]


def gateway_check(gateway_id: str, config_file: Path) -> list[str]:
    """The command that only says whether a gateway of that id could start: 0, or why not."""
    python = [sys.executable, "-P", "-m", Kind.GATEWAY.value]
    return [*python, "--config", str(config_file), "--id", gateway_id, "--check"]


def settled_environment(environ: Mapping[str, str], folder: Path, home: Home) -> dict[str, str]:
    """`environ` with its paths made absolute from `folder`, so that it means the same elsewhere."""
    settled = dict(environ)
    settled["STUDIOFLEET_HOME"] = str(home.path)
    settled["STUDIOFLEET_MODELS"] = str(folder / models_folder(environ))
    if search := environ.get("PYTHONPATH"):
        entries = [str(folder / entry) for entry in search.split(os.pathsep)]
        settled["PYTHONPATH"] = os.pathsep.join(entries)
    return settled


def available_cores() -> int:
    """Those that this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def child_environment(
    spec: Spec, config: ClusterConfig, environ: Mapping[str, str], cores: int, platform: str
) -> dict[str, str]:
    """What the process finds in its environment; what is in `environ` stays.

    The cores are shared out among the workers that compute; on Linux, a model lies in huge pages.
    """
    child = dict(environ)
    if spec.kind is not Kind.WORKER:
        return child
    engines = {worker.id: worker.engine for worker in config.local_workers}
    if computing := sum(engine in ("batched", "vision") for engine in engines.values()):
        child.setdefault("OPENBLAS_NUM_THREADS", str(max(1, cores // computing)))
    if platform == "linux" and engines.get(spec.id, "fake") != "fake":
        child.setdefault("GLIBC_TUNABLES", HUGE_PAGES)
    return child
