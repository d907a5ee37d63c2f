"""Files that take effect when they change: what a process knows of them is what they said last."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int] | None


class Watched:
    """Tells when one of some files is another one, or was written."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._stamps = [_stamp(path) for path in paths]

    def has_changed(self) -> bool:
        """Since it was asked last."""
        before, self._stamps = self._stamps, [_stamp(path) for path in self._paths]
        return self._stamps != before


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns
