"""What may be too small on a machine: disk, memory, descriptors. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterctl.diagnosis import Check, Found, Level
from clusterctl.facts import Facts

_LEAST_FOR_MODELS = 2 << 30
_SHARE = 0.75
"""Of the memory, for models, where the configuration says nothing."""
_LIVE = 640
"""Descriptors of a gateway beside those of its clients."""


def _disk_models(facts: Facts) -> Iterator[Found]:
    free = _free(facts, facts.home.models)
    if free is not None and free < _LEAST_FOR_MODELS:
        yield Found(
            f"{_gib(free)} are free where models are kept ({facts.home.models}): hardly a model fits there",
            "remove models that are not needed, or keep them elsewhere: STUDIOFLEET_MODELS",
        )


def _disk_logs(facts: Facts) -> Iterator[Found]:
    config = facts.home.config
    free = _free(facts, facts.home.logs)
    if config is None or free is None:
        return
    processes = len(config.local_gateways) + len(config.local_workers) + 1
    most = processes * config.log.max_bytes * (config.log.keep + 1)
    if free < most - facts.home.log_bytes:
        yield Found(
            f"the logs in {facts.home.logs} may grow to {_gib(most)} ({processes} processes x"
            f" {config.log.keep + 1} files x {config.log.max_bytes >> 20} MiB), and {_gib(free)} are free",
            "make room, or keep less of them: max_bytes and keep of [log]",
        )


def _disk_prefix_cache(facts: Facts) -> Iterator[Found]:
    config = facts.home.config
    free = _free(facts, facts.home.prefix_cache)
    if config is None or free is None:
        return
    most = sum(worker.prefix_cache_disk_mb for worker in config.local_workers) << 20
    if most and free < most - facts.home.prefix_cache_bytes:
        yield Found(
            f"prefix caches may grow to {_gib(most)} in {facts.home.prefix_cache}, and {_gib(free)} are free",
            "make room, or lower prefix_cache_disk_mb of the workers",
        )


def needed_memory(facts: Facts) -> dict[str, int]:
    """What each worker takes in bytes: `memory_mb`, else its weight files and its prefix cache."""
    weights = {model.worker: model.weight_bytes for model in facts.home.model_places}
    workers = facts.home.config.local_workers if facts.home.config else ()
    return {
        worker.id: (
            worker.memory_mb << 20
            if worker.memory_mb is not None
            else weights.get(worker.id, 0) + ((worker.prefix_cache_mb << 20) if weights.get(worker.id) else 0)
        )
        for worker in workers
    }


def memory_ceiling(facts: Facts) -> tuple[int, str] | None:
    """What models may take together in bytes, and who says so."""
    config, machine = facts.home.config, facts.machine
    if config is not None and config.residency.memory_budget_mb is not None:
        return config.residency.memory_budget_mb << 20, "memory_budget_mb of [residency]"
    if machine.mac is not None and machine.mac.wired_limit_mb:
        return machine.mac.wired_limit_mb << 20, "iogpu.wired_limit_mb"
    if machine.memory_bytes is None:
        return None
    return int(_SHARE * machine.memory_bytes), f"three quarters of {_gib(machine.memory_bytes)}"


def _memory(facts: Facts) -> Iterator[Found]:
    config, ceiling = facts.home.config, memory_ceiling(facts)
    if config is None or ceiling is None:
        return
    on_demand = {worker.id for worker in config.local_workers if worker.residency == "on_demand"}
    need = needed_memory(facts)
    together = {worker: size for worker, size in need.items() if worker not in on_demand}
    if turns := [need[worker] for worker in on_demand]:
        together["the largest of those on demand"] = max(turns)
    total, (most, whose) = sum(together.values()), ceiling
    if total > most:
        terms = " + ".join(f"{name} {_gib(size)}" for name, size in together.items() if size)
        yield Found(
            f"the workers need {_gib(total)} ({terms}), and models may take {_gib(most)} ({whose});"
            " key-value caches come on top",
            'let some take turns (residency = "on_demand"), take smaller models, or raise the ceiling',
        )


def _descriptors(facts: Facts) -> Iterator[Found]:
    config, limit = facts.home.config, facts.machine.descriptors
    if config is None or limit is None or not config.local_gateways:
        return
    if limit < (need := config.limits.max_connections + _LIVE):
        yield Found(
            f"a process may have {limit} descriptors, and a gateway with max_connections ="
            f" {config.limits.max_connections} needs {need}: it takes fewer connections",
            f"raise the limit (ulimit -Hn {need}), or lower max_connections of [limits]",
        )


def _free(facts: Facts, folder: Path) -> int | None:
    return facts.machine.free_bytes.get(folder)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


CHECKS = (
    Check("disk.models", Level.WARNING, "less than 2 GiB free for models", _disk_models),
    Check("disk.logs", Level.WARNING, "less free than the logs may take", _disk_logs),
    Check(
        "disk.prefix-cache", Level.WARNING, "less free than the prefix caches may take", _disk_prefix_cache
    ),
    Check("memory.ceiling", Level.ERROR, "workers that need more memory than models may take", _memory),
    Check("limits.descriptors", Level.WARNING, "fewer descriptors than a gateway needs", _descriptors),
)
