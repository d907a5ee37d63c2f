"""Pictures from the network: every address is judged, and what was judged is what is connected to."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from urllib.parse import urljoin

from gateway.binding import StartError
from gateway.media.exchange import Answered, get
from gateway.media.pictures import HEAD, kind_of
from gateway.media.policy import Place, Policy, unreachable
from gateway.media.refusal import NoConnectionError, PictureError
from gateway.media.resolving import Resolve
from gateway.media.turns import Turns
from protocol.config import MediaConfig
from protocol.errors import ClusterError, ErrorCode

logger = logging.getLogger(__name__)

_MOST_ADDRESSES = 4
"""So many of a host are tried at most."""
_CERTIFICATES_OF_MACOS = "/etc/ssl/cert.pem"


class Fetcher:
    """Fetches within the limits of one configuration. On the event loop."""

    def __init__(self, config: MediaConfig, resolve: Resolve) -> None:
        """Raises `StartError`."""
        self._config = config
        self._policy = Policy(config)
        self._resolve = resolve
        self._tls = trusted(config.ca_file)
        self._turns = Turns(config.max_fetches)

    async def fetch(self, url: str, asker: str) -> bytes:
        """The bytes of a picture; who calls sets the time limit. `asker`: with whose turn.

        Raises `PictureError`, and `ClusterError` where others keep this gateway from fetching it.
        """
        self._policy.place(url)
        try:
            async with asyncio.timeout(self._config.timeout_s / 2):
                await self._turns.take(asker)
        except TimeoutError:
            message = "this gateway fetches as many pictures at once as it may; ask again later"
            raise ClusterError(ErrorCode.OVERLOADED, message) from None
        try:
            return await self._follow(url, asker)
        finally:
            self._turns.give_back(asker)

    async def _follow(self, url: str, asker: str) -> bytes:
        """Every redirect is judged as an address that a client gave."""
        for _ in range(self._config.max_redirects + 1):
            place = self._policy.place(url)
            answered = await self._ask(place, asker)
            if answered.location is None:
                logger.debug("fetched %d bytes from %s", len(answered.body), place.origin)
                return answered.body
            url = _joined(place, answered.location)
        raise PictureError(f"it is redirected more than {self._config.max_redirects} times")

    async def _ask(self, place: Place, asker: str) -> Answered:
        """Of the first of its addresses that can be connected to."""
        found = await self._resolve(place.host, place.port, asker)
        problem: PictureError = unreachable(place.host)
        for address in self._policy.reachable(place.host, found)[:_MOST_ADDRESSES]:
            try:
                return await get(
                    place,
                    address,
                    self._tls,
                    max_bytes=self._config.max_bytes,
                    connect_timeout_s=self._config.connect_timeout_s,
                    look=_look,
                )
            except NoConnectionError as error:
                problem = error
        raise problem


def trusted(ca_file: str | None) -> ssl.SSLContext:
    """The system's certificates, and those of a file. Raises `StartError`."""
    tls = ssl.create_default_context()
    paths = ssl.get_default_verify_paths()
    if not (paths.cafile or paths.capath) and Path(_CERTIFICATES_OF_MACOS).exists():
        tls.load_verify_locations(_CERTIFICATES_OF_MACOS)  # python.org's builds look elsewhere, in vain
    try:
        if ca_file is not None:
            tls.load_verify_locations(ca_file)
    except OSError as error:
        why = "it has no certificates in PEM form" if isinstance(error, ssl.SSLError) else error.strerror
        raise StartError(f"media.ca_file: {ca_file} cannot be used: {why}") from error
    return tls


def _joined(place: Place, location: str) -> str:
    try:
        return urljoin(f"{place.origin}{place.target}", location)
    except ValueError:
        raise PictureError(f"{place.origin} redirects to what is no address") from None


def _look(body: bytearray) -> None:
    """What is no picture is not read to its end."""
    if len(body) >= HEAD:
        kind_of(body[:HEAD])
