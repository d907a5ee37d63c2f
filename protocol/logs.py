"""How a process logs: lines for people or for programs, in a file that it rotates itself.

Everything goes to stderr, so that a crash leaves its traceback in the same place. Whoever starts
the process redirects stdout and stderr to `HOME/logs/ID.log`; where that is so, the process moves
the file aside when it is full and puts a new one under both descriptors. A terminal, a pipe or
another file is only written to.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from protocol.api_keys import hide_keys
from protocol.config import LogConfig

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
LIKE_LINES_A_MINUTE = 30
"""Warnings and errors of one logger and one wording; the others are counted."""
_WINDOW_S = 60.0
_WORDINGS = 1000
_LOOK_S = 5.0
"""Between two looks at the size of the file and at what was suppressed, when nothing is logged."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def set_up(settings: LogConfig, process_id: str, file: Path) -> None:
    """Send all logging to stderr, in place of what was set up before. `file` is this process's log."""
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old, LogHandler):
            root.removeHandler(old)
            old.close()
    handler = LogHandler(LogFile(file, settings.max_bytes, settings.keep))
    handler.setFormatter(formatter(settings.format, process_id, terminal=sys.stderr.isatty()))
    root.addHandler(handler)
    root.setLevel(settings.level.upper())


def formatter(form: Literal["text", "json"], process_id: str, *, terminal: bool) -> logging.Formatter:
    """Lines for people on a terminal, else as configured."""
    return JsonFormatter(process_id) if form == "json" and not terminal else TextFormatter()


def request_of(record: logging.LogRecord) -> str | None:
    """The id of the request that a record concerns: such messages begin with `request %s`."""
    if isinstance(record.args, tuple) and record.args and str(record.msg).startswith("request %s"):
        return str(record.args[0])
    return None


def message_of(line: str) -> str:
    """The message in a line of a log, whatever its form."""
    with contextlib.suppress(ValueError):
        if line.startswith("{") and isinstance(message := json.loads(line).get("message"), str):
            return message
    return _TEXT_PREFIX.sub("", line)


_TEXT_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ \S+ ")


class TextFormatter(logging.Formatter):
    """One line a record, a traceback's lines below it."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        return hide_keys(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        # What others said must not look like lines of ours.
        return _CONTROL.sub(lambda found: repr(found[0])[1:-1], super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a record. A record's `fields`, a dict, are merged into it."""

    def __init__(self, process_id: str) -> None:
        super().__init__()
        self._process_id = process_id

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": self._process_id,
        }
        if (request := request_of(record)) is not None:
            line["request_id"] = request
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return hide_keys(json.dumps(line, ensure_ascii=False, default=str))


@dataclass
class _Wording:
    """Records of one logger and one template since `began`."""

    began: float
    count: int = 0
    suppressed: int = 0


class Repeats:
    """Lets so many like faults a minute through, and counts the rest. Pure but for its counts."""

    def __init__(self, a_minute: int = LIKE_LINES_A_MINUTE) -> None:
        self._a_minute = a_minute
        self._wordings: dict[tuple[str, str], _Wording] = {}

    def passes(self, logger: str, template: str, now: float) -> bool:
        key = (logger, template)
        wording = self._wordings.get(key)
        if wording is None:
            if len(self._wordings) >= _WORDINGS:
                return True  # texts that never come again are no repetition
            wording = self._wordings[key] = _Wording(now)
        wording.count += 1
        if wording.count <= self._a_minute:
            return True
        wording.suppressed += 1
        return False

    def over(self, now: float) -> Iterator[tuple[str, str, int]]:
        """End the minutes that are over; logger, template and count of what was suppressed in them."""
        for (logger, template), wording in list(self._wordings.items()):
            if now - wording.began >= _WINDOW_S:
                del self._wordings[logger, template]
                if wording.suppressed:
                    yield logger, template, wording.suppressed


class LogFile:
    """The file behind stderr, if that is `path`: moved aside when it is full."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._ours = _is_same(2, path)

    def look(self) -> None:
        """Rotate if it is due; follow to the new file when somebody else moved or removed it."""
        if not self._ours:
            return
        with contextlib.suppress(OSError):  # a full disk must not end the process: it goes on in this file
            if _is_same(2, self._path):
                if os.fstat(2).st_size < self._max_bytes:
                    return
                rotate(self._path, self._keep)
            self._reopen()

    def _reopen(self) -> None:
        both = os.path.samestat(os.fstat(1), os.fstat(2))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.dup2(descriptor, 2)
            if both:
                os.dup2(descriptor, 1)
        finally:
            os.close(descriptor)


def rotate(path: Path, keep: int) -> None:
    """ID.log becomes ID.log.1, that one ID.log.2, up to `keep`; the oldest goes. Raises `OSError`."""
    for number in range(keep - 1, 0, -1):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}.{number}", f"{path}.{number + 1}")
    os.replace(path, f"{path}.1")


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


class LogHandler(logging.StreamHandler[Any]):
    """Writes to stderr, and looks now and then, from a thread of its own, at what is due without a record."""

    def __init__(self, file: LogFile) -> None:
        super().__init__(sys.stderr)
        self._file = file
        self._repeats = Repeats()
        self._closed = threading.Event()
        threading.Thread(target=self._look_on, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        self._tell_suppressed(now)
        if record.levelno < logging.WARNING or self._repeats.passes(record.name, str(record.msg), now):
            self._file.look()
            super().emit(record)

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            with self._held():
                self._tell_suppressed(float("inf"))
        super().close()

    def _look_on(self) -> None:
        while not self._closed.wait(_LOOK_S):
            with self._held():
                self._tell_suppressed(time.monotonic())
                self._file.look()

    def _tell_suppressed(self, now: float) -> None:
        for name, template, count in self._repeats.over(now):
            message = f"{template} … suppressed {count} times"
            super().emit(logging.LogRecord(name, logging.WARNING, __file__, 0, message, None, None))

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()
