"""Which addresses a picture may be fetched from. Pure: who resolves and connects asks here first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from urllib.parse import quote, urlsplit

from gateway.media.addresses import Address, is_public, meanings, plain
from gateway.media.refusal import PictureError
from protocol.config import MediaConfig

_LONGEST_URL = 8192
_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")
_UNWRITTEN = re.compile(r"[\x00-\x20\x7f\\]")
"""What no URL has, and what readers of URLs disagree about."""
_SAFE = "%/:=&?~#+!$,;'@()*[]"


@dataclass(frozen=True)
class Place:
    """Where to ask, and for what."""

    scheme: str
    host: str
    """A name in ASCII, or an address."""
    port: int
    target: str
    """Path and query: may hold secrets, so it is in no log and no error."""

    @property
    def origin(self) -> str:
        """What may be shown of it."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """As the header `Host` has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class Policy:
    """The rules of one configuration."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config
        self._allowed = tuple(map(ip_network, config.allow_private))
        self._denied = tuple(map(ip_network, config.deny_addresses))

    def place(self, url: str) -> Place:
        """The place that a URL names, whether given by a client or by a redirect. Raises `PictureError`."""
        if not self._config.fetch:
            raise PictureError("pictures are not fetched here; send it within the request, as a data URL")
        if len(url) > _LONGEST_URL:
            raise PictureError(f"its address has more than {_LONGEST_URL} characters")
        if _UNWRITTEN.search(url):
            raise PictureError("its address has spaces, control characters or backslashes in it")
        try:
            parts = urlsplit(url)
            scheme, port = parts.scheme.lower(), parts.port
        except ValueError:
            raise PictureError("its address is no URL") from None
        if scheme not in (("https", "http") if self._config.http else ("https",)):
            allowed = "https or http" if self._config.http else "https"
            raise PictureError(f"its address has to begin with {allowed}://, or the picture to be a data URL")
        if "@" in parts.netloc:
            raise PictureError("its address has a user name or a password in it, which is not taken")
        host = _host(parts.hostname)
        if port is None:
            port = _PORTS[scheme]
        if port not in self._config.ports:
            raise PictureError(f"pictures are not fetched from the port {port}")
        self._check_host(host)
        target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_SAFE)
        return Place(scheme, host, port, target)

    def reachable(self, host: str, addresses: Sequence[str]) -> list[str]:
        """The addresses of a host, all of which were judged: to one of them is connected.

        Raises `PictureError` where one may not be fetched from, in the same words as where there is none:
        who asks would learn from others which names there are in our networks.
        """
        found: list[str] = []
        for address in addresses:
            try:
                judged = plain(address)
            except ValueError:
                judged = None
            if judged is None or not self._may_reach(judged):
                raise unreachable(host)
            found.append(str(judged))
        if not found:
            raise unreachable(host)
        return found

    def _may_reach(self, address: Address) -> bool:
        if any(meant in network for meant in meanings(address) for network in self._denied):
            return False
        return is_public(address) or any(address in network for network in self._allowed)

    def _check_host(self, host: str) -> None:
        allowed, denied = self._config.allow_hosts, self._config.deny_hosts
        if _matches(host, denied) or (allowed and not _matches(host, allowed)):
            raise PictureError(f"pictures are not fetched from {host:.100}")


def unreachable(host: str) -> PictureError:
    """What is said of a host without an address, and of one whose addresses may not be fetched from."""
    return PictureError(f"{host:.100} has no address on the public internet")


def _host(given: str | None) -> str:
    """In small letters and ASCII, without the dot that ends a full name. Raises `PictureError`."""
    host = (given or "").removesuffix(".")
    try:
        if ":" in host:
            return str(ip_address(host))
        host = host.encode("idna").decode().lower()
    except ValueError:
        host = ""
    if len(host) > 253 or _NAME.fullmatch(host) is None:
        raise PictureError("its address names no host")
    return host


def _matches(host: str, patterns: Iterable[str]) -> bool:
    return any(
        host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern for pattern in patterns
    )
