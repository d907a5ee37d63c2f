"""What may be too small on a machine: disk, memory, descriptors. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterctl.diagnosis import Check, Found, Level
from clusterctl.facts import Facts
from clusterctl.memory_fit import size

_LEAST_FOR_MODELS = 2 << 30
_LIVE = 640
"""Descriptors of a gateway beside those of its clients."""


def _disk_models(facts: Facts) -> Iterator[Found]:
    free = _free(facts, facts.home.models)
    if free is not None and free < _LEAST_FOR_MODELS:
        yield Found(
            f"{size(free)} are free where models are kept ({facts.home.models}): hardly a model fits there",
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
            f"the logs in {facts.home.logs} may grow to {size(most)} ({processes} processes x"
            f" {config.log.keep + 1} files x {config.log.max_bytes >> 20} MiB), and {size(free)} are free",
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
            f"prefix caches may grow to {size(most)} in {facts.home.prefix_cache}, and {size(free)} are free",
            "make room, or lower prefix_cache_disk_mb of the workers",
        )


def _memory(facts: Facts) -> Iterator[Found]:
    fit = facts.home.fit
    if fit is not None and not fit.fits:
        terms = " + ".join(f"{need.asked.worker_id} {size(need.total)}" for need in fit.needs if need.total)
        yield Found(
            f"the workers need {size(fit.total)} ({terms}; those on demand take turns), which is more than"
            f" {fit.machine.words}",
            'let some take turns (residency = "on_demand"), give them less (max_model_len, max_num_seqs), or'
            " take smaller models; to calculate: clusterctl model fit",
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


CHECKS = (
    Check("disk.models", Level.WARNING, "less than 2 GiB free for models", _disk_models),
    Check("disk.logs", Level.WARNING, "less free than the logs may take", _disk_logs),
    Check(
        "disk.prefix-cache", Level.WARNING, "less free than the prefix caches may take", _disk_prefix_cache
    ),
    Check("memory.ceiling", Level.ERROR, "workers that need more memory than models may take", _memory),
    Check("limits.descriptors", Level.WARNING, "fewer descriptors than a gateway needs", _descriptors),
)
