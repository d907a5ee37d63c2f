"""Changes to the API keys of a home. Keys in, keys out; and the file, under its lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from msgspec.structs import replace

from clusterctl.configfile import write_whole
from clusterctl.edits import EditError
from protocol.addresses import Home
from protocol.api_keys import ApiKey, KeyFile, Secret, read_api_keys
from protocol.config import ClusterConfig
from protocol.folders import private_folder
from protocol.locks import folder_locked

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_NAME_RULE = "a name has 1 to 64 letters, digits, '.', '_', '@' or '-', and begins with a letter or a digit"

Keys = tuple[ApiKey, ...]


def change_keys(home: Home, change: Callable[[Keys], Keys]) -> KeyFile:
    """Replace the keys of the home by `change` of them. Raises what `change` raises, and `KeyFileError`."""
    private_folder(home.keys)
    with folder_locked(home.keys):
        file = KeyFile(keys=change((read_api_keys(home) or KeyFile()).keys))
        text = msgspec.json.format(msgspec.json.encode(file), indent=2).decode() + "\n"
        write_whole(home.api_keys.resolve(), text, 0o600)  # a symbolic link stays one
        return file


def with_key(keys: Keys, wanted: dict[str, Any], secret: Secret, now: datetime) -> Keys:
    """One key more. Raises `EditError` where its name is taken, or a value is none."""
    try:
        key = msgspec.convert({**wanted, "secrets": (secret,), "created": now}, ApiKey)
    except msgspec.ValidationError as error:
        words = _NAME_RULE if "`$.name`" in str(error) else error
        raise EditError(f"the key: {words}") from error
    if any(other.name == key.name for other in keys):
        raise EditError(
            f"there is a key {key.name!r} already; choose another name, or: clusterctl keys rotate {key.name}"
        )
    return (*keys, key)


def unknown_models(wanted: Iterable[str], config: ClusterConfig) -> list[str]:
    """Those of the names and patterns that mean no model of the configuration."""
    names = {name for worker in config.workers for name in (worker.name, *worker.aliases)}
    names.update(name for rule in config.models for name in (rule.name, *rule.aliases, *rule.patterns))
    return [
        each
        for each in wanted
        if not any(fnmatchcase(name, each) or fnmatchcase(each, name) for name in names)
    ]


def without_key(keys: Keys, name: str) -> Keys:
    """Raises `EditError` where there is none of that name."""
    gone = _named(keys, name)
    return tuple(key for key in keys if key is not gone)


def with_new_secret(keys: Keys, name: str, secret: Secret, until: datetime, now: datetime) -> Keys:
    """The key with another secret; those that it has are good until then. Raises `EditError`."""
    key = _named(keys, name)
    older = [
        replace(old, expires=until if old.expires is None else min(until, old.expires)) for old in key.secrets
    ]
    kept = (old for old in older if old.expires is not None and old.expires > now)
    rotated = replace(key, secrets=(*kept, secret))
    return tuple(rotated if other is key else other for other in keys)


def span(text: str) -> timedelta:
    """`30s`, `10m`, `2h`, `30d` or `4w`. Raises `EditError`."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise EditError(f"{text!r} is no span of time: write 30s, 10m, 2h, 30d or 4w")
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


def expiry(text: str, now: datetime) -> datetime:
    """A span of time from now, or a date with or without a time, local where it names no zone."""
    if _SPAN.fullmatch(text.strip()):
        return now + span(text)
    try:
        found = datetime.fromisoformat(text.strip()).astimezone(now.tzinfo)
    except ValueError as error:
        raise EditError(f"{text!r} is no time: write 30d, 2027-01-31 or 2027-01-31T18:00") from error
    if found <= now:
        raise EditError(f"{text!r} is past")
    return found


def key_document(keys: Iterable[ApiKey], now: datetime) -> list[dict[str, Any]]:
    """The keys for programs: what is not set stands there too, and no hash does."""
    return [
        {
            "name": key.name,
            "valid": key.is_valid(now),
            "prefixes": [
                secret.prefix for secret in key.secrets if not secret.expires or secret.expires > now
            ],
            "models": key.models,
            "priority": key.priority,
            "requests_per_minute": key.requests_per_minute,
            "tokens_per_minute": key.tokens_per_minute,
            "max_concurrent": key.max_concurrent,
            "created": key.created,
            "expires": key.expires,
        }
        for key in keys
    ]


def _named(keys: Keys, name: str) -> ApiKey:
    for key in keys:
        if key.name == name:
            return key
    known = ", ".join(key.name for key in keys) or "none"
    raise EditError(f"there is no key {name!r}; known are: {known}")
