"""What clusterctl does in several steps, written down as it goes, so that what was cut off is found.

One small file an operation, `state/ops/TIME-NAME.json` in the home, replaced whole at each step, and a
lock beside it while its process lives: `kill -9` frees that. Names, ids and versions stand in it, no secrets.

    with journal.operation(home, "upgrade", {"node": "studio-2", "version": "0.4.2"}) as operation:
        with operation.step("switch", was="0.4.1"):
            ...

A block that ends well is `done`. One that raises is `failed`: whoever raises has put things right; if
that was not possible, `operation.leave_open()`. What is open and has no process was interrupted, and
the next command takes it up, resumes or undoes it, and tells people which:

    for entry in journal.interrupted(home, "upgrade"):
        with journal.taken_up(home, entry) as operation:
            if operation is not None:  # else another command takes it up
                ...  # entry.subject, entry.has_begun("switch")
                operation.outcome = "undone"
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from clusterctl.configfile import write_whole
from protocol.addresses import Home
from protocol.folders import private_folder
from protocol.locks import LockHeldError, folder_locked, is_locked, locked, remove_if_free

KEPT = 100
"""So many operations that have ended are kept."""
_TIME = "%Y%m%dT%H%M%S.%f"
_LONGEST_ERROR = 500


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step: begun, and done or not."""

    name: str
    begun: datetime
    done: datetime | None = None
    facts: dict[str, str] = {}


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One operation, as its file has it."""

    name: str
    subject: dict[str, str]
    """What it is about, such as a worker and its node."""
    begun: datetime
    steps: tuple[Step, ...] = ()
    outcome: str = ""
    """`done`, `failed`, or what became of one that was interrupted; empty while it is open."""
    ended: datetime | None = None
    error: str = ""

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.begun.strftime(_TIME)}-{self.name}.json"

    @property
    def words(self) -> str:
        """For people."""
        about = ", ".join(f"{key} {value}" for key, value in self.subject.items())
        return f"{self.name}{f' ({about})' if about else ''} of {self.begun.astimezone():%Y-%m-%d %H:%M:%S}"

    @property
    def reached(self) -> str:
        """How far it came, for people."""
        if not self.steps:
            return "before its first step"
        last = self.steps[-1]
        return f"{'after' if last.done else 'in'} the step {last.name!r}"

    def has_begun(self, step: str) -> bool:
        return any(known.name == step for known in self.steps)


class Operation:
    """One that is going on. Threads may take steps side by side."""

    def __init__(self, folder: Path, entry: Entry) -> None:
        self.entry = entry
        self.outcome = "done"
        """Of a block that ends well."""
        self._folder = folder
        self._open = False
        self._lock = threading.Lock()
        self._write()

    @contextlib.contextmanager
    def step(self, name: str, **facts: str) -> Iterator[None]:
        """A step; it is done when the block ends well. Raises `OSError` when it cannot be written down."""
        begun = Step(name=name, begun=datetime.now(UTC), facts=facts)
        with self._lock:
            self._set_steps((*self.entry.steps, begun))
        yield
        done = msgspec.structs.replace(begun, done=datetime.now(UTC))
        with self._lock:
            self._set_steps(tuple(done if known is begun else known for known in self.entry.steps))

    def leave_open(self) -> None:
        """However the block ends, what it left could not be put right: the next command has to."""
        self._open = True

    def end(self, error: BaseException | None) -> None:
        """Write down how it ended, unless it is left open."""
        if self._open:
            return
        self.entry = msgspec.structs.replace(
            self.entry,
            outcome=self.outcome if error is None else "failed",
            ended=datetime.now(UTC),
            error="" if error is None else f"{type(error).__name__}: {error}"[:_LONGEST_ERROR],
        )
        self._write()

    def _set_steps(self, steps: tuple[Step, ...]) -> None:
        self.entry = msgspec.structs.replace(self.entry, steps=steps)
        self._write()

    def _write(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self.entry), indent=1).decode()
        write_whole(self._folder / self.entry.file, text + "\n", 0o600)


@contextlib.contextmanager
def operation(home: Home, name: str, subject: Mapping[str, str]) -> Iterator[Operation]:
    """Write down what the block does. Raises `OSError` when that is not possible."""
    folder = operations_folder(home)
    with contextlib.ExitStack() as stack:
        with folder_locked(folder):
            _prune(folder)
            entry = Entry(name=name, subject=dict(subject), begun=datetime.now(UTC))
            while (folder / entry.file).exists():
                entry = msgspec.structs.replace(entry, begun=entry.begun + timedelta(microseconds=1))
            stack.enter_context(locked(_lock_of(folder, entry)))
            it = Operation(folder, entry)
        with _ending(it):
            yield it


def interrupted(home: Home, name: str = "") -> list[Entry]:
    """Those that are open and have no process, of that name or of any, the oldest first."""
    # A lock is looked at before its file, which says how it ended before the lock is left.
    found = []
    for path in sorted((home.path / "state" / "ops").glob("*.json")):
        free = not is_locked(path.with_suffix(".lock"))
        entry = _read(path)
        if free and entry is not None and not entry.outcome and name in ("", entry.name):
            found.append(entry)
    return found


@contextlib.contextmanager
def taken_up(home: Home, entry: Entry) -> Iterator[Operation | None]:
    """Go on with one that was interrupted; None when another command does, or did."""
    folder = operations_folder(home)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(_lock_of(folder, entry), patience_s=0.0))
        except LockHeldError:
            yield None
            return
        present = _read(folder / entry.file)
        if present is None or present.outcome:
            yield None
            return
        it = Operation(folder, present)
        with _ending(it):
            yield it


@contextlib.contextmanager
def _ending(it: Operation) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        it.end(error)
        raise
    it.end(None)


def operations_folder(home: Home) -> Path:
    """Where the journal is, and locks of what goes on. Raises `AddressError`."""
    private_folder(home.path / "state")
    return private_folder(home.path / "state" / "ops")


def _lock_of(folder: Path, entry: Entry) -> Path:
    return (folder / entry.file).with_suffix(".lock")


def _read(path: Path) -> Entry | None:
    """None for a file that is none of ours, or has just been pruned."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Entry)
    except (OSError, msgspec.MsgspecError):
        return None


def _prune(folder: Path) -> None:
    entries = [(path, _read(path)) for path in sorted(folder.glob("*.json"))]
    ended = [path for path, entry in entries if entry is not None and entry.outcome]
    for path in ended[: max(0, len(ended) - KEPT)]:
        path.unlink(missing_ok=True)
    for path in folder.glob("*.lock"):
        remove_if_free(path)
