"""All facts that doctor judges, put together: of the machine by its programs, of the home by its files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from clusterctl import home_files, home_processes
from clusterctl.admin import read_states
from clusterctl.bootunits import unit_name
from clusterctl.control import Reply
from clusterctl.facts import Facts, Installation, Machine
from clusterctl.launching import specs_of
from clusterctl.machine_facts import Questions, read_machine
from clusterctl.model_sizes import fit
from clusterctl.operations import running_records, status_of, supervisor_of
from clusterctl.runner import Runner
from clusterctl.supervision import Phase
from protocol import __version__
from protocol.addresses import Home, models_folder
from protocol.config import ClusterConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config


def read_facts(
    runner: Runner, home: Home, config_file: Path, environ: Mapping[str, str], now: datetime
) -> Facts:
    """Looks only: nothing is changed, started or asked of a model."""
    config, error = None, ""
    try:
        config = read_config(config_file)
    except ConfigError as fault:
        error = "" if _is_idle_node(home, config_file) else str(fault)
    models = models_folder(environ)
    machine = read_machine(runner, _questions(home, config, models, now))
    installation = Installation(
        config_file=config_file,
        config=config,
        config_error=error,
        version=__version__,
        logs=home.logs,
        models=models,
        prefix_cache=models / "prefix-cache",
        log_bytes=home_files.bytes_in(home.logs),
        prefix_cache_bytes=home_files.bytes_in(models / "prefix-cache"),
        places=home_files.places(home, config),
        certificates=home_files.certificates(runner, config) if config else (),
        model_places=home_files.model_places(config, models) if config else (),
        fit=fit(machine.memory, config.local_workers, models) if config and machine.memory else None,
        **_processes(home, config_file, config, machine),
    )
    return Facts(now=now, user_folder=Path.home(), machine=machine, home=installation)


def _is_idle_node(home: Home, config_file: Path) -> bool:
    """Whether `node add` made it, and it was told nothing as it has no worker: then nothing has to run."""
    made = (home.path.parent / "etc" / "studiofleet-node").exists()
    return made and config_file == home.config and not config_file.exists()


def _questions(home: Home, config: ClusterConfig | None, models: Path, now: datetime) -> Questions:
    unit = unit_name(home.path, Home.from_environment({}).path)
    labels = (f"{unit}.{spec.kind.value}.{spec.id}" for spec in specs_of(config)) if config else ()
    return Questions(
        now=now,
        folders=(models, home.logs, models / "prefix-cache"),
        unit=unit,
        labels=tuple(labels),
        python=Path(sys.executable),
    )


def _processes(
    home: Home, config_file: Path, config: ClusterConfig | None, machine: Machine
) -> dict[str, Any]:
    """What runs, as fields of `Installation`."""
    reply = supervisor_of(home, config_file, config) if config else status_of(home)
    alive = {process_id: record.pid for process_id, record in running_records(home).items()}
    if reply is not None:
        alive |= {process.id: process.pid for process in reply.processes if process.pid is not None}
    strays = home_processes.find_strays(home, _known(reply, alive, machine))
    running = {*alive, *strays.values()}
    found: dict[str, Any] = {
        "supervised": reply is not None,
        "alive": alive,
        "strays": strays,
        "leftovers": home_files.leftovers(home, running),
    }
    if reply is not None:
        found["parked"] = {p.id: p.last_error for p in reply.processes if p.phase == Phase.PARKED}
        found["outdated"] = tuple(p.id for p in reply.processes if p.outdated)
    if config is not None:
        found["busy"] = home_processes.busy_addresses(config, running)
        found["versions"] = _versions(home, config)
        found["reached"] = home_processes.reached(config)
        found["cut_off"] = home_processes.cut_off(home, running)
        found["clocks"] = home_processes.clocks(home, config)
    return found


def _known(reply: Reply | None, alive: Mapping[str, int], machine: Machine) -> set[int]:
    pids = set(alive.values())
    if reply is not None:
        pids.add(reply.pid)
    if machine.mac is not None:
        pids |= {job.loaded.pid for job in machine.mac.jobs if job.loaded.pid is not None}
    return pids


def _versions(home: Home, config: ClusterConfig) -> dict[str, str]:
    found: dict[str, str] = {}
    for state in read_states(home, config).values():
        found |= {gateway.id: gateway.version for gateway in state.gateways}
        found |= {w.id: w.version for w in state.workers if w.pid is not None and w.version is not None}
    return found
