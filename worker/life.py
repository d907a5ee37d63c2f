"""Where the worker is in its life, and how it will end. Pure."""

from __future__ import annotations

from protocol.states import ExitCode, WorkerState, move

_WORST = (ExitCode.FAULT, ExitCode.MISCONFIGURED)


class Life:
    """The state, by the table; and the exit code: a fault stands whatever comes after it."""

    def __init__(self) -> None:
        self.state = WorkerState.STARTING
        self.detail = ""
        """What is wrong, once something is."""
        self.note = ""
        """What keeps it from being ready, while nothing is wrong."""
        self.exit_code: ExitCode | None = None

    @property
    def leaving(self) -> bool:
        return self.exit_code is not None

    def enter(self, state: WorkerState) -> None:
        """Raises `TransitionError`."""
        self.state = move(self.state, state)

    def leave(self, code: ExitCode, why: str) -> None:
        """The process is to end. The first reason counts, but for one that is worse."""
        if self.exit_code is None or (code in _WORST and self.exit_code not in _WORST):
            self.exit_code = code
            self.detail = why

    @property
    def last_state(self) -> WorkerState:
        return WorkerState.FAILED if self.exit_code in _WORST else WorkerState.STOPPED
