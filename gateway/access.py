"""Who asks, and what he may: keys in headers, before anything else of a request is looked at. Pure."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from gateway.body import Headers, header, waits_for_model
from gateway.flight import Terms
from protocol.addresses import is_loopback
from protocol.api_keys import ApiKey, KeyFile, KeyRing
from protocol.errors import ClusterError, ErrorCode

ANYBODY = ApiKey(name="", secrets=(), created=datetime.min.replace(tzinfo=UTC))
"""Who asks where no keys are asked for: all who do share one place in the queue."""
OPERATOR = ApiKey(name="(admin)", secrets=(), created=datetime.min.replace(tzinfo=UTC))
"""Who has the admin key. No API key is called like this."""

_PUBLIC = frozenset(
    ("/", "/health", "/health/live", "/health/ready", "/ping", "/version", "/openapi.json", "/api/version")
)
"""What tells nothing of models and traffic."""


class AdminKey:
    """The key that is in force. Without one, nobody may act, and all are told why."""

    def __init__(self) -> None:
        self._key = ""
        self._why = ""

    def take(self, key: str) -> None:
        self._key, self._why = key, ""

    def lack(self, why: str) -> None:
        """There is no key that can be used."""
        self._key, self._why = "", why

    def is_it(self, given: str) -> bool:
        return bool(self._key) and hmac.compare_digest(given.encode(), self._key.encode())

    def check(self, headers: Headers) -> None:
        """Raises `ClusterError` unless the request brings the key."""
        given = given_keys(headers)
        if not self._key:
            raise ClusterError(ErrorCode.FORBIDDEN, f"this gateway has no admin key: {self._why}")
        if not given:
            message = "this takes the admin key, as Authorization: Bearer KEY; it stands in keys/admin.key"
            raise ClusterError(ErrorCode.UNAUTHENTICATED, message, reason="missing_admin_key")
        if not any(map(self.is_it, given)):
            message = "this is not the admin key of this gateway; it stands in keys/admin.key"
            raise ClusterError(ErrorCode.FORBIDDEN, message, reason="wrong_admin_key")

    def check_reader(self, headers: Headers, peer: str) -> None:
        """Raises `ClusterError` unless the request brings the key; without one, this machine may read."""
        if self._key or not is_loopback(peer):
            self.check(headers)


class Access:
    """Owns the API keys that are in force."""

    def __init__(
        self,
        admin: AdminKey,
        metrics: Literal["local", "key", "open"] = "local",
        names: Iterable[str] = (),
        *,
        keyless: bool = True,
    ) -> None:
        """`keyless`: where there are no keys, everybody may ask. `metrics`: who may see those. `names`: of
        the gateway, beside addresses and `localhost`."""
        self._admin = admin
        self._metrics = metrics
        self._names = {"localhost", *(name.lower() for name in names)}
        self._keyless = keyless
        self._ring: KeyRing | None = None

    def take(self, file: KeyFile | None) -> None:
        """What the home says now; None: it has no file of keys."""
        self._ring = None if file is None else KeyRing(file.keys)

    def caller(self, path: str, headers: Headers, peer: str, now: datetime) -> ApiKey:
        """Who asks for that path (as `middleware.plain_path` leaves it). Raises `ClusterError`.

        Where no key is needed, whatever key is sent is passed over: many clients always send one.
        """
        for given in given_keys(headers):
            if self._admin.is_it(given):
                return OPERATOR
            owner = None if self._ring is None else self._ring.owner(given, now)
            if owner is not None:
                return owner
        if is_loopback(peer) and self._is_for_this_machine(path):
            self._check_host(headers)
        if (self._ring is None and self._keyless) or not self._needs_key(path, peer):
            return ANYBODY
        # The same words whatever is wrong with it.
        message = (
            "this gateway takes API keys: send a valid one as Authorization: Bearer KEY, or x-api-key: KEY"
        )
        raise ClusterError(ErrorCode.UNAUTHENTICATED, message)

    def _is_for_this_machine(self, path: str) -> bool:
        if path == "/metrics":
            return self._metrics == "local" and self._ring is not None
        return path.startswith("/admin")

    def _check_host(self, headers: Headers) -> None:
        """A page of another site can give its own name the address of this machine; its browser then asks
        here, by that name, and lets it read what is answered."""
        for name, value in headers:
            host = _host_of(value.decode("latin-1")) if name == b"host" else ""
            if host and host not in self._names and not _is_address(host):
                message = (
                    f"without a key, this is not told to who calls the gateway {host[:100]!r}: ask by address"
                    " or as localhost, bring the admin key, or add the name to `hosts` in [auth]"
                )
                raise ClusterError(ErrorCode.FORBIDDEN, message, reason="unknown_host")

    def _needs_key(self, path: str, peer: str) -> bool:
        if path == "/metrics":
            return self._metrics == "key" or (self._metrics == "local" and not is_loopback(peer))
        # The operator's paths ask for a key by themselves, and the dashboard's files tell nothing.
        return path not in _PUBLIC and not path.startswith(("/admin", "/dashboard"))


def _host_of(given: str) -> str:
    """The name or address in a `Host` header, without its port."""
    found = given.strip().lower()
    if found.startswith("["):
        return found[1:].partition("]")[0]
    return found.partition(":")[0].rstrip(".")


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def terms(headers: Headers, caller: ApiKey) -> Terms:
    """How the client wants its request placed. Raises `ClusterError` for a worker of its choice, unless it
    is the operator."""
    headers = list(headers)
    only = header(headers, b"x-worker-id").strip()
    if only and caller is not OPERATOR:
        message = "the header x-worker-id chooses a worker, which takes the admin key; leave it out"
        raise ClusterError(ErrorCode.FORBIDDEN, message, param="x-worker-id")
    return Terms(waits_for_model(headers), only)


def given_keys(headers: Headers) -> list[str]:
    """What a request brings as keys, in the order in which they count."""
    headers = list(headers)
    scheme, _, token = header(headers, b"authorization").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, header(headers, b"x-api-key").strip()) if key]
