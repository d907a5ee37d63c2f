"""What runs of a home although its run folder does not tell of it: somebody removed the files there."""

from __future__ import annotations

import sys
from pathlib import Path

from clusterctl.control import NAME
from clusterctl.launching import command_of, specs_of
from clusterctl.processes import find_children
from protocol.addresses import Home
from protocol.config_errors import ConfigError
from protocol.configfile import read_config


def supervisor_command(config_file: Path) -> list[str]:
    """The command line of a supervisor that detaches."""
    program = [sys.executable, "-P", "-m", "clusterctl.supervisor_process"]
    return [*program, "--config", str(config_file), "--detach"]


def running(home: Home, config_file: Path) -> dict[str, int]:
    """The pids of the supervisor and the configured processes that run there, by their command lines."""
    try:
        specs = specs_of(read_config(config_file))
    except ConfigError:
        specs = []
    commands = {spec.id: command_of(spec, config_file) for spec in specs}
    found = find_children({**commands, NAME: supervisor_command(config_file)}, home.path)
    return {process_id: child.pid for process_id, child in found.items()}
