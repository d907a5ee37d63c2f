"""What all commands share: their options, their exit codes, and how faults are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click

from clusterctl import edits, operations, output
from protocol.addresses import AddressError, Home
from protocol.config import ConfigError as WrongConfigError
from protocol.locks import LockHeldError

P = ParamSpec("P")


class Exit(IntEnum):
    """What a command tells its caller."""

    DONE = 0
    FAILED = 1
    REFUSED = 3


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Turns what can go wrong into words and an exit code."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (WrongConfigError, edits.EditError, operations.RefusedError, AddressError) as error:
            output.say(f"refused: {error}")
            sys.exit(Exit.REFUSED)
        except (operations.OperationError, LockHeldError, OSError) as error:
            output.say(f"failed: {error}")
            sys.exit(Exit.FAILED)

    return wrapper


config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The configuration.  [default: cluster.toml in STUDIOFLEET_HOME]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")
start_timeout_option = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds, with --wait.",
)


def places(config_file: Path | None) -> tuple[Home, Path]:
    """The home, and the configuration that is meant."""
    home = Home.from_environment(os.environ)
    return home, (config_file or home.config).expanduser().absolute()
