"""Log files on the disk: read to their end and on from there, over rotation and truncation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from clusterctl.logs import Entry, Parser


def ids_in(folder: Path) -> list[str]:
    """Whoever has a log there."""
    return sorted(path.name.removesuffix(".log") for path in folder.glob("*.log"))


def files_of(folder: Path, process_id: str) -> list[Path]:
    """The log of a process and what was rotated away of it (`ID.log.1` is the youngest), oldest first."""
    rotated = [
        (int(path.suffix[1:]), path)
        for path in folder.glob(f"{process_id}.log.*")
        if path.suffix[1:].isdigit()
    ]
    return [path for _number, path in sorted(rotated, reverse=True)] + [folder / f"{process_id}.log"]


class Tail:
    """The log of one process. Used by one thread; close it."""

    def __init__(self, folder: Path, process_id: str) -> None:
        self._folder = folder
        self.id = process_id
        self._parser = Parser(process_id)
        self._file: BinaryIO | None = None
        self._piece = b""

    def history(self, since: datetime | None) -> Iterator[Entry]:
        """All that is there at this moment, oldest first; files that end before `since` are left out."""
        for path in files_of(self._folder, self.id):
            try:
                old = since is not None and path.stat().st_mtime < since.timestamp()
                if not (old and path.suffix != ".log"):
                    yield from self._open(path)
            except FileNotFoundError:
                continue
        yield from self._rest()

    def news(self) -> Iterator[Entry]:
        """What was added since the last look."""
        if self._file is not None:
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0)
                self._piece = b""
            yield from self._read()
        for path in self._younger():
            try:
                yield from self._open(path)
            except FileNotFoundError:
                continue
        yield from self._rest()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _younger(self) -> list[Path]:
        """The files that came after the one that is open; the present log, when that one is gone."""
        files = files_of(self._folder, self.id)
        if self._file is not None:
            own = os.fstat(self._file.fileno())
            for index, path in enumerate(files):
                try:
                    if os.path.samestat(own, path.stat()):
                        return files[index + 1 :]
                except FileNotFoundError:
                    continue
        return files[-1:]

    def _open(self, path: Path) -> Iterator[Entry]:
        file = path.open("rb")
        if self._file is not None:
            yield from self._read()  # what came while the other was opened
        self.close()
        self._file = file
        yield from self._read()

    def _read(self) -> Iterator[Entry]:
        """The entries that are complete; a line without its end waits for the rest of it."""
        if self._file is None:
            return
        for line in self._file:
            self._piece += line
            if not self._piece.endswith(b"\n"):
                return
            text, self._piece = self._piece.decode("utf-8", "replace").rstrip("\r\n"), b""
            if (entry := self._parser.line(text)) is not None:
                yield entry

    def _rest(self) -> Iterator[Entry]:
        if (entry := self._parser.rest(self._modified())) is not None:
            yield entry

    def _modified(self) -> datetime:
        if self._file is None:
            return datetime.fromtimestamp(0)
        return datetime.fromtimestamp(os.fstat(self._file.fileno()).st_mtime)
