"""What all commands share: their options, their exit codes, and how faults are told."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import click

from clusterctl import edits, operations, output
from clusterctl.runner import RunnerTimeoutError
from clusterctl.services import ServiceError, ServiceRefusedError
from clusterctl.ssh import HostUnreachableError
from protocol.addresses import AddressError, Home
from protocol.config_errors import ConfigError as WrongConfigError
from protocol.keyfiles import KeyFileError
from protocol.locks import LockHeldError

P = ParamSpec("P")
_REFUSALS = (
    WrongConfigError,
    edits.EditError,
    operations.RefusedError,
    ServiceRefusedError,
    AddressError,
    KeyFileError,
)
_FAILURES = (operations.OperationError, ServiceError, RunnerTimeoutError, LockHeldError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Exit(IntEnum):
    """What a command tells its caller."""

    DONE = 0
    FAILED = 1
    REFUSED = 3
    ROLLED_BACK = 4
    PARTLY = 5
    UNREACHABLE = 6
    INTERRUPTED = 130
    """As a shell has it for whatever Ctrl-C ends."""
    UNREAD = 141
    """As a shell has it for what SIGPIPE ends: who read the output, like `head`, left."""


def reported(command: Callable[P, None]) -> Callable[P, None]:
    """Turns what can go wrong into words and an exit code."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except _REFUSALS as error:
            output.say(f"refused: {_words(error)}")
            sys.exit(Exit.REFUSED)
        except HostUnreachableError as error:
            output.say(f"failed: {_words(error)}")
            sys.exit(Exit.UNREACHABLE)
        except operations.RolledBackError as error:
            output.say(f"failed: {error}")
            sys.exit(Exit.ROLLED_BACK)
        except (*_FAILURES, OSError) as error:
            if isinstance(error, BrokenPipeError) and _reader_left():
                sys.exit(Exit.UNREAD)
            full = isinstance(error, OSError) and error.errno in _FULL
            output.say(f"failed: {_words(error)}{'; make room on the disk' if full else ''}")
            sys.exit(Exit.FAILED)
        except KeyboardInterrupt as error:
            output.say(_words(error, "interrupted"))
            sys.exit(Exit.INTERRUPTED)

    return wrapper


def _reader_left() -> bool:
    """Whether it is the output that has no reader, and no connection; then the rest goes nowhere."""
    output_pipe = select.poll()
    output_pipe.register(1, 0)
    if not output_pipe.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True


def _words(error: BaseException, said: str = "") -> str:
    """What it says, and what was noted on its way here."""
    return "; ".join([said or str(error), *getattr(error, "__notes__", ())])


@contextlib.contextmanager
def going_on(what: str) -> Iterator[None]:
    """For a wait: Ctrl-C ends it, and the person is told what goes on without it."""
    try:
        yield
    except KeyboardInterrupt:
        output.say(f"interrupted: {what}")
        sys.exit(Exit.INTERRUPTED)


def taught(*examples: str, failed: str = "", refused: str = "", also: Sequence[str] = ()) -> str:
    """What stands beneath a command's options: examples, and what its exit codes mean."""
    codes = ["0 done or unchanged", f"1 {failed or 'failed'}", "2 wrong usage"]
    codes += [f"3 refused: {refused}"] if refused else []
    codes += also
    lines = ["\b", "Examples:" if len(examples) > 1 else "Example:", *(f"  {line}" for line in examples)]
    return "\n".join([*lines, "", f"Exit codes: {', '.join(codes)}."])


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
