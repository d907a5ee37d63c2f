"""The admin key of a home: whoever can read its file may drain workers and reload the configuration."""

from __future__ import annotations

import secrets

from protocol.addresses import Home
from protocol.keyfiles import KeyFileError, create_secret, read_secret

_BYTES = 32


def ensure_admin_key(home: Home) -> bool:
    """Make the key where there is none; False when it is there. Whole or not at all, for its owner alone.

    Raises `AddressError` and `OSError`.
    """
    return create_secret(home.admin_key, secrets.token_urlsafe(_BYTES) + "\n")


def read_admin_key(home: Home) -> str:
    """The key. Raises `KeyFileError`."""
    path = home.admin_key
    key = read_secret(path, "make it with: clusterctl up")
    if len(key) < _BYTES:
        raise KeyFileError(f"{path} holds no key of {_BYTES} characters; remove it and run: clusterctl up")
    return key
