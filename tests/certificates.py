"""Certificates for tests, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(
    folder: Path, name: str, *, password: str = "", days: int = 2, names: str = "IP:127.0.0.1"
) -> tuple[Path, Path]:
    """A self-signed one, for this machine where no other `names` are given, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    secrecy = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={names}"]
    curve = ["-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        *curve,
        "-days",
        str(days),
        *secrecy,
        *subject,
        *files,
    ]
    subprocess.run(command, check=True, capture_output=True)
    key.chmod(0o600)
    return cert, key
