"""The files of a home as facts: who may read them, certificates, models, what was left behind."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from clusterctl.facts import Certificate, ModelPlace, Place
from clusterctl.model_sizes import ENGINES
from clusterctl.processes import read_record
from clusterctl.runner import Runner
from protocol.addresses import Home
from protocol.config import EMBEDDED, ClusterConfig, GatewayConfig, WorkerConfig
from protocol.locks import is_locked
from protocol.model_folder import open_folder
from protocol.models import find_model, model_path

_ENDINGS = (".pid", ".lock", ".memory", ".url", ".sock")


def places(home: Home, config: ClusterConfig | None) -> tuple[Place, ...]:
    """Folders and files that are for their owner alone, and are there."""
    keys = sorted(home.keys.rglob("*")) if home.keys.is_dir() else []
    sockets = [] if home.sockets == home.run else [home.sockets]
    wanted = [home.path, home.run, home.logs, home.keys, *sockets, *keys]
    for gateway in config.local_gateways if config else ():
        wanted += [_path(gateway.tls_key)] if gateway.tls_key else []
    if config is not None and config.limits.storage_password_file:
        wanted.append(_path(config.limits.storage_password_file))
    found = []
    for path in wanted:
        try:
            status = path.stat()
        except OSError:
            continue
        mode = stat.S_IMODE(status.st_mode)
        found.append(Place(path, mode, status.st_uid == os.getuid(), stat.S_ISDIR(status.st_mode)))
    return tuple(found)


def _path(name: str) -> Path:
    return Path(name).expanduser()


def certificates(runner: Runner, config: ClusterConfig) -> tuple[Certificate, ...]:
    """Those of the gateways that serve HTTPS."""
    return tuple(_certificate(runner, it) for it in config.local_gateways if it.tls_cert and it.tls_key)


def _certificate(runner: Runner, gateway: GatewayConfig) -> Certificate:
    cert, key = _path(gateway.tls_cert or ""), _path(gateway.tls_key or "")
    ended = runner.run(("openssl", "x509", "-noout", "-enddate", "-in", str(cert)))
    _, found, date = ended.out.strip().partition("notAfter=")
    expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(date), UTC) if found else None
    return Certificate(gateway.id, cert, _pair_fault(cert, key), expires)


class _PasswordError(Exception):
    """The key asks for one."""


def _pair_fault(cert: Path, key: Path) -> str:
    def no_password() -> str:
        raise _PasswordError

    for path in (cert, key):
        if not os.access(path, os.R_OK):
            return f"{path} is not there, or cannot be read"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=no_password)
    except _PasswordError:
        return f"the key {key} needs a password, which nobody is there to type"
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return f"{key} is not the key of the certificate in {cert}"
        return f"{cert} and {key} cannot be used together ({error.reason}): both have to be in PEM form"
    except OSError as error:
        return f"{cert} and {key} cannot be read ({error.strerror})"
    return ""


def model_places(config: ClusterConfig, models: Path) -> tuple[ModelPlace, ...]:
    """The folders that this machine's workers name."""
    ours = [worker for worker in config.local_workers if worker.engine in ENGINES]
    return tuple(place for worker in ours for place in _places_of(worker, models))


def _places_of(worker: WorkerConfig, models: Path) -> Iterator[ModelPlace]:
    for name in (worker.model, worker.engine_options.get("draft_model")):
        if isinstance(name, str) and name != EMBEDDED:
            yield _place(worker.id, name, models)
    if worker.adapter is not None and not (adapter := _path(worker.adapter)).is_dir():
        yield ModelPlace(worker.id, adapter, f"there is no adapter folder at {adapter}")


def _place(worker_id: str, name: str, models: Path) -> ModelPlace:
    path = model_path(name, models)
    try:
        find_model(name, models)
    except ValueError as error:
        return ModelPlace(worker_id, path, missing=str(error))
    try:
        open_folder(path)
    except (ValueError, OSError) as error:
        return ModelPlace(worker_id, path, damaged=str(error))
    return ModelPlace(worker_id, path)


def leftovers(home: Home, alive: Collection[str]) -> tuple[str, ...]:
    """The ids whose files are in the run folder although none of `alive` has them, and nobody holds a
    lock."""
    folders = {home.run, home.sockets}
    files = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    ids = {path.stem for path in files if path.suffix in _ENDINGS} - set(alive)
    return tuple(sorted(process_id for process_id in ids if not _lives(home, process_id)))


def _lives(home: Home, process_id: str) -> bool:
    held = is_locked(home.lock(process_id)) or is_locked(home.memory_claim(process_id))
    return held or read_record(home.run / f"{process_id}.pid") is not None


def bytes_in(folder: Path) -> int:
    """Of all files beneath it; those that go meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except OSError:
            continue
        total += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return total
