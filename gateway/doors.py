"""The keys that a gateway's home has for its clients and its operator, read again when they change."""

from __future__ import annotations

import logging

from gateway.access import Access, AdminKey
from gateway.watch import Watched
from protocol.addresses import Home, split_http
from protocol.api_keys import may_be_keyless, read_api_keys, refuse_open_gateways
from protocol.config import AuthConfig, GatewayConfig
from protocol.keyfiles import KeyFileError
from protocol.keys import read_admin_key

logger = logging.getLogger(__name__)


class Doors:
    """Hands what the files say to `access` and `admin`."""

    def __init__(self, home: Home, gateway: GatewayConfig, auth: AuthConfig) -> None:
        """Raises `KeyFileError`, and `ConfigError` where anybody could use the gateway."""
        self._home = home
        self._watched = Watched(home.api_keys)
        self.admin = AdminKey()
        names = (split_http(gateway.http)[0], *auth.hosts)
        self.access = Access(self.admin, auth.metrics, names, keyless=may_be_keyless(gateway))
        file = read_api_keys(home)
        refuse_open_gateways([gateway], file)
        self.access.take(file)

    def read_admin_key(self) -> None:
        try:
            self.admin.take(read_admin_key(self._home))
        except KeyFileError as error:
            self.admin.lack(str(error))
            logger.info("nobody may act on this gateway over HTTP: %s", error)

    def look(self) -> None:
        """Take the API keys anew where their file changed; a broken one changes nothing."""
        if not self._watched.has_changed():
            return
        try:
            file = read_api_keys(self._home)
        except KeyFileError as error:
            logger.error("the API keys were not read again, the old ones hold: %s", error)
            return
        self.access.take(file)
        logger.info("API keys in force: %s", "none is asked for" if file is None else len(file.keys))
