"""Keys of the encrypted wire: a pair for each process, and which worker may come with which key.

CURVE keys in Z85, 40 characters. In `keys/wire` of a home: `ID.key` is the secret half of a process,
`ID.pub` the public half of a gateway, as its workers expect it. `keys/workers.allowed` says which
workers a gateway takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from protocol.addresses import Home
from protocol.folders import private_folder
from protocol.keyfiles import KeyFileError, create_secret, read_secret, write_private
from protocol.locks import folder_locked
from protocol.values import Id

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_HEAD = "# Which workers may come over tcp, and with which public key: ID KEY. Gateways read it at once.\n"


def is_key(text: str) -> bool:
    """Whether it is 32 bytes in Z85."""
    groups = [text[start : start + 5] for start in range(0, len(text), 5)]
    return _KEY.fullmatch(text) is not None and all(_number(group) < 1 << 32 for group in groups)


def _number(group: str) -> int:
    value = 0
    for digit in group:
        value = value * 85 + _DIGITS.index(digit)
    return value


def secret_path(home: Home, process_id: str) -> Path:
    return home.keys / "wire" / f"{process_id}.key"


def public_path(home: Home, gateway_id: str) -> Path:
    return home.keys / "wire" / f"{gateway_id}.pub"


def allowed_path(home: Home) -> Path:
    return home.keys / "workers.allowed"


def read_wire_secret(home: Home, process_id: str) -> str:
    """The secret key of a gateway or worker. Raises `KeyFileError`."""
    return _key_in(secret_path(home, process_id), f"make it with: clusterctl worker-key show {process_id}")


def read_gateway_key(home: Home, gateway_id: str) -> str:
    """The public key that a worker expects of a gateway. Raises `KeyFileError`."""
    cure = (
        f"on the gateway's machine, clusterctl worker-key show {gateway_id} tells its key;"
        f" take it here with: clusterctl worker-key pin {gateway_id} KEY"
    )
    return _key_in(public_path(home, gateway_id), cure)


def _key_in(path: Path, cure: str) -> str:
    key = read_secret(path, cure)
    if not is_key(key):
        raise KeyFileError(f"{path} holds no key of 40 characters; remove it, and {cure}")
    return key


def create_wire_secret(home: Home, process_id: str, secret: str) -> bool:
    """False when the process has a key. Raises `AddressError` and `OSError`."""
    return create_secret(secret_path(home, process_id), secret + "\n")


def pin_gateway_key(home: Home, gateway_id: str, public: str) -> None:
    """Have this home's workers expect that key. Raises `AddressError` and `OSError`."""
    write_private(public_path(home, gateway_id), public + "\n")


class AllowList(msgspec.Struct, frozen=True):
    """The public key of each worker that may come over tcp, by its id."""

    keys: Mapping[str, str] = {}

    def has(self, key: str) -> bool:
        return key in self.keys.values()

    def ids_of(self, key: str) -> list[str]:
        return sorted(worker_id for worker_id, its_key in self.keys.items() if its_key == key)


def read_allowed(home: Home) -> AllowList:
    """Nobody where there is no file. Raises `KeyFileError`."""
    path = allowed_path(home)
    if not path.exists():
        return AllowList()
    keys: dict[str, str] = {}
    for number, line in enumerate(read_secret(path, "").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        worker_id, _, key = line.strip().partition(" ")
        if not is_id(worker_id) or not is_key(key.strip()):
            raise KeyFileError(f"{path}, line {number}: it is not of the form ID KEY; correct or remove it")
        keys[worker_id] = key.strip()
    return AllowList(keys)


def allow(home: Home, worker_id: str, key: str | None) -> bool:
    """Let the worker come with that key only, or with None not at all; False when it is so already.

    Raises `AddressError`, `KeyFileError` and `OSError`.
    """
    if key is None and not allowed_path(home).exists():
        return False
    with folder_locked(private_folder(home.keys)):
        before = read_allowed(home).keys
        keys = {known: its_key for known, its_key in before.items() if known != worker_id}
        if key is not None:
            keys[worker_id] = key
        if keys == before:
            return False
        lines = [f"{known} {its_key}\n" for known, its_key in sorted(keys.items())]
        write_private(allowed_path(home), _HEAD + "".join(lines))
    return True


def is_id(text: str) -> bool:
    """Whether it can be the id of a gateway or worker."""
    try:
        msgspec.convert(text, Id)
    except msgspec.ValidationError:
        return False
    return True
