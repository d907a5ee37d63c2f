"""The API keys of a home: who may ask its gateways, for which models, how much at once.

`clusterctl keys` writes the file, gateways read it again when it changes. It has no key in it, only
hashes: a key is shown once, when it is made. As it is 256 bits of chance, one round of SHA-256 keeps it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import msgspec

from protocol.addresses import Home, is_loopback, split_http
from protocol.config import GatewayConfig
from protocol.config_errors import ConfigError
from protocol.keyfiles import KeyFileError, refuse_open_file
from protocol.values import Count, Name

Priority = Literal["interactive", "normal", "batch"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "batch")
"""The first is served first."""
KeyName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}(?!\n)$")]
"""For people, in logs, and the one by whom requests are queued fairly."""

_MARK = "sf"
_KEY = re.compile(r"(sf-[0-9a-f]{8})-[\w-]{20,}")
_NO_HASH = "0" * 64


class Secret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key that is known by its hash."""

    prefix: str
    """Its public part, by which it is found, and recognised by people."""
    sha256: str
    """Of the whole key, in hexadecimal digits."""
    expires: datetime | None = None
    """Of one that was rotated out."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Who asks, and what he may. None is no limit.

    Unknown fields are refused: one of a later version may be a restriction.
    """

    name: KeyName
    secrets: tuple[Secret, ...]
    created: datetime
    expires: datetime | None = None
    models: tuple[Name, ...] = ()
    """Names, aliases, or patterns with `*` and `?`; none: all models."""
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    max_concurrent: Count | None = None
    """Answers at the same time, in each gateway."""
    priority: Priority = "normal"

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires

    def allows(self, names: Iterable[str]) -> bool:
        """Whether it may use the model that has these names."""
        return not self.models or any(fnmatchcase(name, rule) for name in names for rule in self.models)


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. While it is there, gateways ask for keys; also when it has none."""

    version: Literal[1] = 1
    keys: tuple[ApiKey, ...] = ()


def new_secret() -> tuple[str, Secret]:
    """A key, and what is kept of it."""
    prefix = f"{_MARK}-{secrets.token_hex(4)}"
    key = f"{prefix}-{secrets.token_urlsafe(32)}"
    return key, Secret(prefix=prefix, sha256=digest(key))


def digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()


def hide_keys(text: str) -> str:
    """The text with no key in it: one that was sent as a model's name, perhaps."""
    return _KEY.sub(r"\1-…", text) if _MARK in text else text


class KeyRing:
    """The keys of a file, to be found by what a client sends."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._found = {secret.prefix: (key, secret) for key in keys for secret in key.secrets}

    def owner(self, given: str, now: datetime) -> ApiKey | None:
        """Whose key it is; None where it is nobody's, or is over. Takes as long for every wrong one."""
        prefix = "-".join(given.split("-", 2)[:2])
        key, secret = self._found.get(prefix, (None, None))
        known = hmac.compare_digest(digest(given), secret.sha256 if secret else _NO_HASH)
        if key is None or secret is None or not known or not key.is_valid(now):
            return None
        return key if secret.expires is None or now < secret.expires else None


def read_api_keys(home: Home) -> KeyFile | None:
    """The file of the home; None where there is none. Raises `KeyFileError`."""
    path = home.api_keys
    try:
        path.lstat()  # a link to nothing does not `exist`, but somebody wants keys to be asked for
        refuse_open_file(path, "it is a link to nothing: put the file there, or remove the link")
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return msgspec.json.decode(content, type=KeyFile)
    except msgspec.MsgspecError as error:
        raise KeyFileError(
            f"{path} is no file of API keys of this version ({error}); put an older copy in its place"
        ) from error


def is_open(gateway: GatewayConfig) -> bool:
    """Whether other machines reach the gateway."""
    return not is_loopback(split_http(gateway.http)[0])


def may_be_keyless(gateway: GatewayConfig) -> bool:
    """Whether it serves without keys where there are none: on loopback, or where the operator says so."""
    return gateway.open_without_keys or not is_open(gateway)


def refuse_open_gateways(gateways: Iterable[GatewayConfig], keys: KeyFile | None) -> None:
    """Raises `ConfigError` where anybody could use one of these gateways, and nobody said that he may."""
    for gateway in gateways:
        if keys is None and not may_be_keyless(gateway):
            raise ConfigError(
                f"gateway {gateway.id!r}: http = {gateway.http!r} is open to other machines, and there are no"
                " API keys; make one (clusterctl keys create NAME), bind 127.0.0.1, or write"
                " open_without_keys = true if that is meant"
            )


def now() -> datetime:
    return datetime.now(UTC)
