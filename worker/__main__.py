"""`cluster-worker --config FILE --id ID`: one process that serves one model."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

from protocol import logs
from protocol.addresses import AddressError, Home, models_folder
from protocol.config import ClusterConfig, LogConfig, WorkerConfig
from protocol.config_errors import ConfigError
from protocol.configfile import read_config
from protocol.folders import leave_socket_folder, private_folder, socket_folder
from protocol.keyfiles import KeyFileError
from protocol.locks import LockHeldError, locked
from protocol.states import ExitCode
from protocol.traces import collector
from worker.attempts import Attempts
from worker.engine.load import make_engine
from worker.server import Server

logger = logging.getLogger(__name__)


def main() -> None:
    arguments = _arguments()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    home = Home.from_environment(os.environ)
    logs.set_up(LogConfig(), arguments.id, home.log(arguments.id))
    attempts = Attempts(home, arguments.id, os.environ)
    try:
        code = _run(arguments.config, arguments.id, home, attempts) if attempts.begin() else ExitCode.OK
    except (ConfigError, AddressError, KeyFileError, LockHeldError, OSError) as error:
        logger.error("worker %s cannot start: %s", arguments.id, error)
        attempts.why = str(error)
        code = ExitCode.MISCONFIGURED
    except _StoppedError:
        code = ExitCode.OK
    _end(attempts.end(code))


class _StoppedError(BaseException):
    """A signal came before the event loop takes it over: nothing runs yet that would have to be drained."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _StoppedError


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cluster-worker", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the cluster's configuration file")
    parser.add_argument("--id", required=True, help="which of its [[workers]] to be")
    return parser.parse_args()


def _run(path: Path, worker_id: str, home: Home, attempts: Attempts) -> ExitCode:
    config = read_config(path)
    worker = config.worker_named(worker_id)
    logs.set_up(config.log, worker_id, home.log(worker_id))
    private_folder(home.run)
    socket_folder(home)
    try:
        with locked(home.lock(worker_id)):
            return _serve(config, worker, home, attempts)
    except LockHeldError as error:
        raise LockHeldError(f"another worker of this id is running: {error}") from error
    finally:
        leave_socket_folder(home)


def _serve(config: ClusterConfig, worker: WorkerConfig, home: Home, attempts: Attempts) -> ExitCode:
    engine = make_engine(worker, models_folder(os.environ))
    traces = collector(config.traces, "studiofleet-worker", worker.id)
    server = Server(config, worker, engine, home, attempts.arrived, traces)
    runner = asyncio.Runner()
    try:
        code = runner.run(server.run())
    except Exception:
        logger.exception("worker %s met a fault of its own", worker.id)
        code = ExitCode.FAULT
    attempts.why = server.last_words
    for number in (signal.SIGTERM, signal.SIGINT):
        # The exit code is settled: a signal that comes late must not end the process with another.
        runner.get_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    if traces is not None:
        traces.close()
    if server.is_stuck:
        home.lock(worker.id).unlink(missing_ok=True)
        _end(attempts.end(code))
    runner.close()
    return code


def _end(code: ExitCode) -> NoReturn:
    """Without an end of the interpreter: a thread that does not end would keep it waiting, and threads of the
    engine that have just ended would abort the process (mlx's thread-local destructors want the GIL)."""
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    main()
