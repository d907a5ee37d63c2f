"""Copying a model to another folder or machine: file by file, going on where an earlier copy stopped.

With nothing but what every Unix has there (sh, cat, find, wc, df, and a program for SHA-256), so that it
is one way for Linux, any macOS and a mounted disk. What arrives grows aside, and is in its place when
all of it has the hashes of the manifest.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from clusterctl.memory_fit import size
from clusterctl.model_manifest import (
    NAME,
    FileEntry,
    Manifest,
    encoded,
    model_bytes,
    read_manifest,
    taken,
    write_manifest,
)
from clusterctl.model_store import PARTIAL, folder_state, lock_of
from clusterctl.operations import OperationError, RefusedError
from clusterctl.runner import Ended, Runner
from clusterctl.transfers import AGAIN, Counter, shown
from protocol.locks import locked

_BLOCK = 1 << 20
_SLOWEST_READ = 20_000_000
"""Bytes a second at which a disk is read, at least."""
_LOOK = r"""
[ -e "$1/$3" ] && { echo manifest; cat "$1/$3"; exit 0; }
[ -e "$1" ] && { echo other; exit 0; }
mkdir -p "$2" && cd "$2" || exit 1
echo free "$(df -Pk . | tail -n 1 | awk '{print $4}')"
find . -type f -exec wc -c {} \;
"""
_HASH = r"""
if command -v sha256sum >/dev/null 2>&1; then sha256sum "$0"; else shasum -a 256 "$0"; fi
"""
_FINISH = r"""
cat > "$0/$2" && mv "$0" "$1"
"""


def push(source: Path, target: PurePosixPath, runner: Runner) -> bool:
    """Have the model of the folder `source` in `target` on that machine; whether anything was to be done.

    Raises `RefusedError`, `OperationError`, `LockHeldError`, and what the runner raises.
    """
    with locked(lock_of(source)):
        manifest = _manifest_of(source)
        copy = _Copy(source, manifest, target, runner)
        if copy.is_there():
            return False
        copy.run()
    return True


def _manifest_of(source: Path) -> Manifest:
    state, why = folder_state(source)
    if state == "damaged":
        raise RefusedError(f"a damaged model is not copied: {why}")
    if state == "changed":
        raise RefusedError(
            f"{source} is not as it arrived; first: clusterctl model verify (or remove {source / NAME}, to"
            " take it as it is)"
        )
    if (manifest := read_manifest(source)) is not None:
        return manifest
    counter = Counter()
    with shown(f"reading {source.name}", model_bytes(source), lambda: counter.done):
        manifest = taken(source, counter)
    write_manifest(source, manifest)
    return manifest


class _Copy:
    """One model on its way."""

    def __init__(self, source: Path, manifest: Manifest, target: PurePosixPath, runner: Runner) -> None:
        self._source, self._manifest, self._target, self._runner = source, manifest, target, runner
        self._partial = target.with_name(f".{target.name}{PARTIAL}")
        self._there: dict[str, int] = {}
        """Bytes of each file that arrived."""

    def is_there(self) -> bool:
        """Look there. Raises `RefusedError` when something else is, or the disk is too small."""
        words = ("/bin/sh", "-s", "--", str(self._target), str(self._partial), NAME)
        ended = self._checked(self._runner.run(words, stdin=_LOOK.encode()), "cannot be written to")
        first, _, rest = ended.out.partition("\n")
        if first == "manifest" and encoded(self._manifest).decode().strip() == rest.strip():
            return True
        if first in ("manifest", "other"):
            raise RefusedError(
                f"{self._target} is there already on {self._runner.name}, and is not this model; remove it"
            )
        found = re.findall(r"^\s*(\d+) \./(.+)$", rest, re.MULTILINE)
        self._there = {name: int(count) for count, name in found if name in self._manifest.files}
        wanted = sum(entry.size - self._kept(name, entry) for name, entry in self._manifest.files.items())
        free = int(first.split()[1]) << 10
        if wanted > free:
            raise RefusedError(
                f"{size(wanted)} are to be copied, and the disk of {self._target} on {self._runner.name} has"
                f" {size(free)} left; make room there"
            )
        return False

    def run(self) -> None:
        files = self._manifest.files
        kept = sum(self._kept(name, entry) for name, entry in files.items())
        counter, what = Counter(kept), f"{self._source.name} to {self._runner.name}"
        with shown(what, self._manifest.bytes, lambda: counter.done):
            for name, entry in files.items():
                self._send(name, self._kept(name, entry), counter)
        checked = Counter()
        with shown(f"{what}: checking", self._manifest.bytes, lambda: checked.done):
            for name, entry in files.items():
                if not self._is_whole(name, entry):
                    self._send(name, 0, Counter())
                    if not self._is_whole(name, entry):
                        raise OperationError(
                            f"{name} arrives damaged on {self._runner.name}, twice; check disk and network"
                        )
                checked(entry.size)
        words = ("/bin/sh", "-c", _FINISH, str(self._partial), str(self._target), NAME)
        self._checked(self._runner.run(words, stdin=encoded(self._manifest)), "cannot be finished in")

    def _kept(self, name: str, entry: FileEntry) -> int:
        """Bytes of it that need not be sent again."""
        there = self._there.get(name, 0)
        return there if there <= entry.size else 0

    def _send(self, name: str, begin: int, counter: Callable[[int], None]) -> None:
        """Raises `OperationError` when the connection breaks."""
        path = self._source / name
        if begin == path.stat().st_size > 0:
            return
        aim = str(self._partial / name)
        into = ">>" if begin else ">"
        words = self._runner.command(["/bin/sh", "-c", f'mkdir -p "${{0%/*}}" && cat {into} "$0"', aim])
        with tempfile.TemporaryFile() as said, path.open("rb") as file:
            file.seek(begin)
            code = _feed(subprocess.Popen(words, stdin=subprocess.PIPE, stderr=said), file, counter)
            said.seek(0)
            why = said.read().decode(errors="replace").strip() or f"exit code {code}"
        if code != 0:
            raise OperationError(f"{name} did not reach {self._runner.name} ({why}); {AGAIN}")

    def _is_whole(self, name: str, entry: FileEntry) -> bool:
        words = ("/bin/sh", "-c", _HASH, str(self._partial / name))
        ended = self._runner.run(words, limit_s=60 + entry.size / _SLOWEST_READ)
        return self._checked(ended, "cannot be read in").out.split(" ")[0] == entry.sha256

    def _checked(self, ended: Ended, what: str) -> Ended:
        if ended.code != 0:
            raise OperationError(
                f"{self._source.name} {what} {self._target.parent} on {self._runner.name}: {ended.words}"
            )
        return ended


def _feed(process: subprocess.Popen[bytes], file: BinaryIO, counter: Callable[[int], None]) -> int:
    """Write the rest of the file to the program; its exit code. It ends with us, whatever happens."""
    pipe = cast("BinaryIO", process.stdin)
    try:
        with contextlib.suppress(BrokenPipeError), pipe:
            while block := file.read(_BLOCK):
                pipe.write(block)
                counter(len(block))
        return process.wait()
    finally:
        process.kill()
        process.wait()
