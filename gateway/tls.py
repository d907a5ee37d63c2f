"""TLS for clients: a certificate and its key, taken anew when they were renewed."""

from __future__ import annotations

import hashlib
import re
import ssl
from pathlib import Path

from gateway.binding import StartError
from gateway.watch import Watched
from protocol.config import GatewayConfig
from protocol.keyfiles import KeyFileError, refuse_open_file

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Tls:
    """Owns what new connections are secured with."""

    def __init__(self, cert: Path, key: Path) -> None:
        """Raises `StartError` where the files cannot be used."""
        self._cert = cert
        self._key = key
        self._watched = Watched(cert, key)
        self.load()

    @classmethod
    def of(cls, gateway: GatewayConfig) -> Tls | None:
        """As configured. Raises `StartError`."""
        if gateway.tls_cert is None or gateway.tls_key is None:
            return None
        return cls(Path(gateway.tls_cert).expanduser(), Path(gateway.tls_key).expanduser())

    def load(self) -> None:
        """Take what the files have now. Raises `StartError`; then the old one stays."""
        certificate = _first_certificate(self._cert)
        context = _context(self._cert, self._key)
        self.context = context
        self.fingerprint = hashlib.sha256(certificate).hexdigest()
        """SHA-256 of the certificate, in hexadecimal digits."""

    def was_renewed(self) -> bool:
        """Whether the files are others than when this was asked last, and were taken. Raises `StartError`."""
        if not self._watched.has_changed():
            return False
        self.load()
        return True


def _first_certificate(path: Path) -> bytes:
    """The gateway's own one; those that vouch for it follow."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise StartError(f"tls_cert: {path} cannot be read ({error.strerror}); name the file here") from error
    if (found := _CERTIFICATE.search(text)) is None:
        raise StartError(f"tls_cert: {path} has no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    try:
        return ssl.PEM_cert_to_DER_cert(found[0])
    except ValueError as error:
        raise StartError(f"tls_cert: {path} has a damaged certificate ({error}); copy it again") from error


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    def no_password() -> str:
        raise StartError(f"tls_key: {key} needs a password; write it without: openssl pkey -in … -out …")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        refuse_open_file(key, "name the certificate's key there")
        context.load_cert_chain(cert, key, password=no_password)
    except KeyFileError as error:
        raise StartError(f"tls_key: {error}") from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"is not the key of the certificate in {cert}; name the two that were issued together"
        else:
            why = f"and {cert} cannot be used together ({error.reason}); both have to be in PEM form"
        raise StartError(f"tls_key: {key} {why}") from error
    except OSError as error:
        raise StartError(f"tls_key: {key} cannot be read ({error.strerror})") from error
    return context
