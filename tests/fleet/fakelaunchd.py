"""A double of launchd that really runs processes: a daemon, and `launchctl` that talks to it.

It models our understanding of launchd, from manual pages and from what others have logged; whatever
passes here is not verified on a Mac. `fakelaunchd.py serve FOLDER` is launchd; called by a link of
the name launchctl in FOLDER it sends its words there.

Each fault is a key of FOLDER/faults.json, read at each command:
settle_s          bootstrap fails with 5 for so long after the job of that label has left
refuses           bootstrap loads nothing, and exits with this code
began_but         bootstrap starts the job, and exits with this code (5, 37)
bootout_code      of a bootout that goes on (0 early, as a rule; 36)
bootout_waits     bootout returns when the job is gone
gui_session       false: no domain of a user (125)
root_only         whoever does not come by the double of sudo may only look

With FOLDER/one_user all jobs run as the user of the double, whoever their lists name.
"""

from __future__ import annotations

import contextlib
import json
import os
import plistlib
import pwd
import signal
import socket
import stat
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICK_S = 0.02
DEFAULT_EXIT_TIMEOUT_S = 5
WORDS = {
    3: "No such process",
    5: "Input/output error",
    36: "Operation now in progress",
    37: "Operation already in progress",
    109: "Invalid property list",
    113: "Could not find service",
    119: "Service is disabled",
    122: "Path had bad ownership/permissions",
    125: "Domain does not support specified action",
}
SPAWN_TYPES = {"Interactive": "interactive (4)", "Background": "background (5)", "Adaptive": "adaptive (6)"}
Answer = tuple[int, str, str]


@dataclass
class Job:
    """One that is loaded, or on its way out."""

    target: str
    path: Path
    plist: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    runs: int = 0
    last_exit: int | None = None
    last_signal: int | None = None
    started_at: float = -1e9
    due: float | None = None
    kill_at: float | None = None
    waiting: list[socket.socket] = field(default_factory=list)

    @property
    def leaving(self) -> bool:
        return self.kill_at is not None

    @property
    def exit_timeout_s(self) -> int:
        return int(self.plist.get("ExitTimeOut", DEFAULT_EXIT_TIMEOUT_S))

    @property
    def throttle_s(self) -> int:
        return int(self.plist.get("ThrottleInterval", 10))

    def shown(self) -> str:
        """As `launchctl print` has it: nested blocks have lines of the same names."""
        state = "running" if self.process else ("spawn scheduled" if self.due is not None else "not running")
        kind = SPAWN_TYPES.get(self.plist.get("ProcessType", ""), "daemon (3)")
        environ = self.plist.get("EnvironmentVariables", {})
        ended = "last exit code = (never exited)" if self.last_exit is None else self._exit_line()
        lines = [
            f"{self.target} = {{",
            f"\tactive count = {int(self.process is not None)}",
            f"\tpath = {self.path}",
            "\ttype = LaunchDaemon",
            f"\tstate = {state}",
            "",
            f"\tprogram = {self.plist['ProgramArguments'][0]}",
            "\targuments = {",
            *(f"\t\t{word}" for word in self.plist["ProgramArguments"]),
            "\t}",
            "\tdefault environment = {",
            "\t\tPATH => /usr/bin:/bin:/usr/sbin:/sbin",
            "\t}",
            "\tenvironment = {",
            *(f"\t\t{key} => {value}" for key, value in environ.items()),
            "\t\tstate = running",
            "\t\tpid = 1",
            "\t}",
            f"\tminimum runtime = {self.throttle_s}",
            f"\texit timeout = {self.exit_timeout_s}",
            f"\truns = {self.runs}",
            *([f"\tpid = {self.process.pid}"] if self.process else []),
            "\timmediate reason = speculative",
            f"\t{ended}",
            "\tresource coalition = {",
            "\t\tID = 1114",
            "\t\ttype = resource",
            "\t\tstate = active",
            "\t\tactive count = 1",
            "\t}",
            "\tjetsam coalition = {",
            "\t\tstate = active",
            "\t}",
            f"\tspawn type = {kind}",
            "\tproperties = keepalive | runatload | inferred program",
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _exit_line(self) -> str:
        if self.last_signal is not None:
            return f"last terminating signal = {signal.strsignal(self.last_signal)}: {self.last_signal}"
        named = ": EX_CONFIG" if self.last_exit == 78 else ""
        return f"last exit code = {self.last_exit}{named}"


class FakeLaunchd:
    """All domains; one thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, Job] = {}
        self.settled_at: dict[str, float] = {}

    # --- commands --------------------------------------------------------------------------

    def answer(self, words: list[str], connection: socket.socket) -> Answer | None:
        verb, *rest = words
        handler = getattr(self, f"_{verb.replace('-', '_')}", None)
        if handler is None:
            return 1, "", f"Unrecognized subcommand: {verb}\n"
        if any(word.startswith("gui/") for word in rest) and not self._fault("gui_session", True):
            return self._failed(verb, 125)
        answer: Answer | None = handler(rest, connection)
        return answer

    def _print(self, rest: list[str], _connection: socket.socket) -> Answer:
        target = rest[0]
        if target == "system" or (target.count("/") == 1 and target.startswith("gui/")):
            return 0, f"{target} = {{\n\ttype = system\n}}\n", ""
        job = self.jobs.get(target)
        if job is None:
            domain, _, label = target.rpartition("/")
            return 113, "", f'Bad request.\nCould not find service "{label}" in domain for {domain}\n'
        return 0, job.shown(), ""

    def _print_disabled(self, _rest: list[str], _connection: socket.socket) -> Answer:
        lines = [f'\t\t"{target.rpartition("/")[2]}" => disabled' for target in sorted(self._disabled())]
        return 0, "\n".join(["\tdisabled services = {", *lines, "\t}", ""]), ""

    def _enable(self, rest: list[str], _connection: socket.socket) -> Answer:
        self._write_disabled(self._disabled() - {rest[0]})
        return 0, "", ""

    def _disable(self, rest: list[str], _connection: socket.socket) -> Answer:
        self._write_disabled(self._disabled() | {rest[0]})
        return 0, "", ""

    def _bootstrap(self, rest: list[str], _connection: socket.socket) -> Answer:
        domain, path = rest[0], Path(rest[1])
        if not path.exists():
            return self._failed("Bootstrap", 5)
        badly_owned = stat.S_IMODE(path.stat().st_mode) & 0o022
        if code := int(self._fault("refuses", 0)) or (122 if badly_owned else 0):
            return self._failed("Bootstrap", code)
        try:
            plist = plistlib.loads(path.read_bytes())
        except (plistlib.InvalidFileException, ValueError):
            return self._failed("Bootstrap", 109)
        target = f"{domain}/{plist['Label']}"
        if target in self._disabled():
            return self._failed("Bootstrap", 119)
        if target in self.jobs or time.monotonic() < self.settled_at.get(target, 0.0):
            return self._failed("Bootstrap", 5)
        job = self.jobs[target] = Job(target, path, plist)
        if plist.get("RunAtLoad"):
            self._spawn(job)
        code = int(self._fault("began_but", 0))
        return self._failed("Bootstrap", code) if code else (0, "", "")

    def _bootout(self, rest: list[str], connection: socket.socket) -> Answer | None:
        job = self.jobs.get(rest[0])
        if job is None:
            return self._failed("Boot-out", 3)
        if job.leaving:
            return self._failed("Boot-out", 36)
        job.kill_at = time.monotonic() + job.exit_timeout_s
        if job.process is None:
            self._gone(job)
            return 0, "", ""
        job.process.send_signal(signal.SIGTERM)
        if self._fault("bootout_waits", False):
            job.waiting.append(connection)
            return None
        code = int(self._fault("bootout_code", 0))
        return self._failed("Boot-out", code) if code else (0, "", "")

    def _kickstart(self, rest: list[str], _connection: socket.socket) -> Answer:
        job = self.jobs.get(rest[-1])
        if job is None:
            return self._failed("kickstart", 113)
        if "-k" in rest and job.process:
            job.process.kill()
            job.process.wait()
            self._ended(job)
        if job.process is None:
            self._spawn(job)
        return 0, "", ""

    def _kill(self, rest: list[str], _connection: socket.socket) -> Answer:
        job = self.jobs.get(rest[1])
        if job is None or job.process is None:
            return self._failed("kill", 113 if job is None else 3)
        job.process.send_signal(signal.Signals[rest[0]])
        return 0, "", ""

    def _failed(self, verb: str, code: int) -> Answer:
        return code, "", f"{verb} failed: {code}: {WORDS[code]}\n"

    def _fault(self, name: str, default: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            return json.loads((self.folder / "faults.json").read_text()).get(name, default)
        return default

    def _disabled(self) -> set[str]:
        """Overrides outlive jobs, files and boots."""
        with contextlib.suppress(FileNotFoundError):
            return set(json.loads((self.folder / "disabled.json").read_text()))
        return set()

    def _write_disabled(self, targets: set[str]) -> None:
        (self.folder / "disabled.json").write_text(json.dumps(sorted(targets)))

    # --- processes -------------------------------------------------------------------------

    def _spawn(self, job: Job) -> None:
        job.due = None
        job.runs += 1
        job.started_at = time.monotonic()
        plist = job.plist
        try:
            environ = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "XPC_SERVICE_NAME": plist["Label"]}
            environ |= {k: v for k, v in plist.get("EnvironmentVariables", {}).items() if isinstance(v, str)}
            named = "UserName" in plist and not (self.folder / "one_user").exists()
            user = pwd.getpwnam(plist["UserName"]) if named else None
            with contextlib.ExitStack() as stack:
                out, err = (
                    stack.enter_context(Path(plist.get(key, os.devnull)).open("ab"))
                    for key in ("StandardOutPath", "StandardErrorPath")
                )
                job.process = subprocess.Popen(
                    plist["ProgramArguments"],
                    env=environ,
                    cwd=plist.get("WorkingDirectory", "/"),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    umask=plist.get("Umask", 0o022),
                    user=user.pw_uid if user and user.pw_uid != os.getuid() else None,
                    start_new_session=True,
                )
        except (OSError, KeyError):
            job.last_exit, job.last_signal = 78, None
            self._keep_alive(job)

    def _ended(self, job: Job) -> None:
        assert job.process is not None
        code = job.process.returncode
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(job.process.pid, signal.SIGKILL)  # what is left of its process group
        job.process = None
        job.last_exit, job.last_signal = code, -code if code < 0 else None
        if job.leaving:
            self._gone(job)
        else:
            self._keep_alive(job)

    def _keep_alive(self, job: Job) -> None:
        keep = job.plist.get("KeepAlive", False)
        again = keep if isinstance(keep, bool) else (job.last_exit != 0) != keep.get("SuccessfulExit", True)
        if again:
            job.due = max(time.monotonic(), job.started_at + job.throttle_s)

    def _gone(self, job: Job) -> None:
        del self.jobs[job.target]
        self.settled_at[job.target] = time.monotonic() + float(self._fault("settle_s", 0.0))
        for connection in job.waiting:
            reply(connection, (0, "", ""))

    def tick(self) -> None:
        now = time.monotonic()
        for job in list(self.jobs.values()):
            if job.process is not None:
                if job.kill_at is not None and now >= job.kill_at:
                    job.process.kill()
                if job.process.poll() is not None:
                    self._ended(job)
            elif job.due is not None and now >= job.due:
                self._spawn(job)

    def end_all(self) -> None:
        """When the double ends, so does what it has started."""
        for job in self.jobs.values():
            if job.process is not None:
                job.process.terminate()
        deadline = time.monotonic() + 5
        for job in self.jobs.values():
            if job.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(max(0.0, deadline - time.monotonic()))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(job.process.pid, signal.SIGKILL)


def reply(connection: socket.socket, answer: Answer) -> None:
    with connection, contextlib.suppress(OSError):
        connection.sendall(json.dumps(answer).encode())


def serve(folder: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    launchd = FakeLaunchd(folder)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(64)
        listener.settimeout(TICK_S)
        try:
            while True:
                launchd.tick()
                with contextlib.suppress(TimeoutError):
                    connection = listener.accept()[0]
                    connection.settimeout(5)
                    answer = launchd.answer(json.loads(connection.recv(65536)), connection)
                    if answer is not None:
                        reply(connection, answer)
        finally:
            launchd.end_all()


def ask(folder: Path, words: list[str]) -> Answer:
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(words) + "\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(folder / "socket"))
        connection.sendall(json.dumps(words).encode())
        text = b"".join(iter(lambda: connection.recv(65536), b""))
    code, out, err = json.loads(text)
    return code, out, err


def launchctl(folder: Path, words: list[str]) -> int:
    faults = folder / "faults.json"
    root_only = faults.exists() and json.loads(faults.read_text()).get("root_only", False)
    if root_only and words[0] != "print" and "BY_SUDO" not in os.environ:
        sys.stderr.write(f"{words[0]} failed: 1: Operation not permitted\n")
        return 1
    code, out, err = ask(folder, words)
    sys.stdout.write(out)
    sys.stderr.write(err)
    return code


def main() -> int:
    name = Path(sys.argv[0]).name
    if name == "launchctl":
        return launchctl(Path(sys.argv[0]).parent, sys.argv[1:])
    serve(Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
