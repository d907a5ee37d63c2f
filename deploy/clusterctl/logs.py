"""What the processes wrote to their logs: parsed, chosen, merged by time. Lines in, entries out.

An entry is a line with a time stamp and what follows it without one, such as a traceback.
"""

from __future__ import annotations

import heapq
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[,.](\d{3}) ([A-Z]+) (\S+) ?(.*)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST_ENTRY = 1000
"""Lines without a time stamp that one entry holds."""


class TimeError(ValueError):
    """What was given is no time."""


@dataclass(frozen=True)
class Entry:
    """One thing that one process said."""

    id: str
    time: datetime
    level: str
    logger: str
    message: str
    """May have several lines."""


@dataclass(frozen=True)
class Choice:
    """Which entries are wanted."""

    since: datetime | None = None
    request: str | None = None

    def takes(self, entry: Entry) -> bool:
        if self.since is not None and entry.time < self.since:
            return False
        return self.request is None or concerns(entry, self.request)


def concerns(entry: Entry, request_id: str) -> bool:
    """Whether the entry names the request; in a worker its id has an ending more."""
    pattern = rf"(?<![A-Za-z0-9_.-]){re.escape(request_id)}(?![A-Za-z0-9_-])"
    return re.search(pattern, entry.message) is not None


def moment(text: str, now: datetime) -> datetime:
    """`10m`, `2h` or `1d` ago; or a local date with time, or a time of today. Raises `TimeError`."""
    try:
        if match := _SPAN.fullmatch(text.strip()):
            return now - timedelta(seconds=float(match[1]) * _SECONDS[match[2]])
        if re.fullmatch(r"\d\d?:\d\d(:\d\d)?", text.strip()):
            return datetime.fromisoformat(f"{now.date()} {text.strip():0>5}")
        found = datetime.fromisoformat(text.strip())
        return found.astimezone().replace(tzinfo=None) if found.tzinfo else found
    except (ValueError, OverflowError) as error:
        raise TimeError(f"{text!r} is no time: write 10m, 2h, 1d, 22:40 or 2026-01-31 22:40:00") from error


class _Begun(msgspec.Struct, frozen=True):
    """The first line of an entry, as a process writes it with `format = "json"`."""

    time: datetime
    level: str
    logger: str
    message: str
    exception: str = ""


def _begun(line: str) -> _Begun | None:
    """None where the line goes on with the entry before, as one with an impossible time does."""
    try:
        if match := _STAMP.fullmatch(line):
            return _Begun(datetime.fromisoformat(f"{match[1]}.{match[2]}"), match[3], match[4], match[5])
        found = msgspec.json.decode(line, type=_Begun)
        local = found.time.astimezone().replace(tzinfo=None)
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return None
    text = f"{found.message}\n{found.exception}" if found.exception else found.message
    return _Begun(local, found.level, found.logger, _CONTROL.sub("", text))


class Parser:
    """Makes entries of the lines of one log, in their order."""

    def __init__(self, process_id: str) -> None:
        self._id = process_id
        self._time: datetime | None = None
        self._level = self._logger = ""
        self._lines: list[str] = []

    def line(self, text: str) -> Entry | None:
        """The entry before, when this line begins another."""
        text = _CONTROL.sub("", text)  # a log must not move the cursor of whoever reads it
        begun = _begun(text)
        if begun is None:
            if len(self._lines) < _LONGEST_ENTRY:
                self._lines.append(text)
            return None
        done = self.rest(begun.time)
        self._time, self._level, self._logger = begun.time, begun.level, begun.logger
        self._lines = begun.message.split("\n")
        return done

    def rest(self, now: datetime) -> Entry | None:
        """The last entry; `now` is its time when no line had one so far."""
        lines, self._lines = self._lines, []
        level, self._level = self._level, ""
        logger, self._logger = self._logger, ""
        if not lines:
            return None
        return Entry(self._id, self._time or now, level, logger, "\n".join(lines))


def merged(logs: Iterable[Iterable[Entry]], choice: Choice, last: int | None) -> Iterable[Entry]:
    """The wanted entries of all logs by time; with `last`, no more than so many, the youngest."""
    entries = heapq.merge(*logs, key=lambda entry: entry.time)
    wanted = (entry for entry in entries if choice.takes(entry))
    return wanted if last is None else deque(wanted, maxlen=last)
