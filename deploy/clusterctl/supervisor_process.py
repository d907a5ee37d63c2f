"""The supervisor as a program of its own, that may leave its caller and its terminal."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from pathlib import Path

import msgspec

from clusterctl.control import NAME
from clusterctl.supervisor import Supervisor
from protocol import logs
from protocol.addresses import Home
from protocol.config import LogConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config
from protocol.locks import LockHeldError
from protocol.states import ExitCode

logger = logging.getLogger(__name__)

TOO_LATE = "another supervisor serves this home"


def main() -> None:
    """The supervisor as a program of its own; with `--detach` it says its pid and leaves its caller."""
    arguments = argparse.ArgumentParser(prog="clusterctl.supervisor_process", description=__doc__)
    arguments.add_argument("--config", type=Path, required=True)
    arguments.add_argument("--detach", action="store_true")
    options = arguments.parse_args()
    if options.detach:
        _detach()
    home = Home.from_environment(os.environ)
    logs.set_up(_log_settings(options.config), NAME, home.log(NAME))
    try:
        Supervisor(home, options.config, os.environ).run()
    except LockHeldError:
        logger.info(TOO_LATE)
    except (ConfigError, OSError, ValueError) as error:
        logger.error("the supervisor cannot run: %s", error)
        sys.exit(ExitCode.MISCONFIGURED)


def _log_settings(config_file: Path) -> LogConfig:
    """As configured, but for the level: `clusterctl up` reads the last line to learn why it ended.

    A file that cannot be read is complained of by the supervisor itself.
    """
    with contextlib.suppress(OSError, ConfigError):
        return msgspec.structs.replace(read_config(config_file).log, level="info")
    return LogConfig()


def _detach() -> None:
    """Go on as a child of nobody: the caller reads the pid and may end, or close its terminal."""
    pid = os.fork()
    if pid:
        os.write(sys.stdout.fileno(), f"{pid}\n".encode())
        os._exit(0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
