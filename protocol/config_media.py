"""The table `[media]` of `cluster.toml`: which pictures a gateway takes, and from where it fetches them."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated

import msgspec

from protocol.codec import MAX_MESSAGE_BYTES
from protocol.config_errors import ConfigError
from protocol.config_tables import FileName, Seconds, Table
from protocol.values import Count, NotNegative

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=MAX_MESSAGE_BYTES)]

_HOST = re.compile(r"(\*\.)?[a-z0-9:][a-z0-9._:-]*")


class MediaConfig(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[media]`: pictures in requests, for models that can see."""

    fetch: bool = True
    """Fetch what a request names by its address; False: only pictures that are in the request itself."""
    http: bool = False
    """Fetch from http addresses too, where everybody on the way can read and change the picture."""
    ports: tuple[Port, ...] = (80, 443)
    allow_hosts: tuple[str, ...] = ()
    """Fetch from these only: names, or `*.NAME` for all below it. Empty: from all."""
    deny_hosts: tuple[str, ...] = ()
    """Never from these, in the same form."""
    allow_private: tuple[str, ...] = ()
    """Addresses and networks outside the public internet from which pictures may come all the same."""
    deny_addresses: tuple[str, ...] = ()
    """Public addresses and networks from which none may come: those of your own servers, for example."""
    ca_file: FileName | None = None
    """Certificates, in PEM, that are trusted beside the system's."""
    max_pictures: Count = 20
    """In one request."""
    max_bytes: Bytes = 20 * 1024 * 1024
    """Of one picture."""
    max_total_bytes: Bytes = 32 * 1024 * 1024
    """Of all pictures of one request."""
    max_pixels: Count = 50_000_000
    """Of one picture: width by height."""
    max_redirects: NotNegative = 3
    connect_timeout_s: Seconds = 5.0
    timeout_s: Seconds = 20.0
    """For all pictures of one request, waiting for a turn included."""
    max_fetches: Count = 16
    """At the same time; further ones wait. One key has half of what the others leave at most."""


def check_media(media: MediaConfig) -> None:
    """Raises `ConfigError` with the first fault."""
    for name in ("allow_private", "deny_addresses"):
        for entry in getattr(media, name):
            try:
                ipaddress.ip_network(entry)
            except ValueError as error:
                raise ConfigError(
                    f"media.{name}: {error}; write an address or a network, such as 10.0.0.5 or 10.0.0.0/24"
                ) from error
    for name in ("allow_hosts", "deny_hosts"):
        for entry in getattr(media, name):
            if _HOST.fullmatch(entry) is None:
                raise ConfigError(
                    f"media.{name}: {entry!r:.200} is no host; write its name in small letters, without"
                    " scheme, port and path, or *.NAME for all below it"
                )
