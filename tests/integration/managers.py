"""Doubles of systemctl and loginctl, as little of them as `clusterctl boot` uses.

They are called by links of those names. State is in the folder of the links: files that say what is
enabled and loaded, `calls` with each command line. What they start they really start. `loginctl`
grants nothing while there is a file `no-linger`. The double of launchd is in tests/fleet.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

FOLDER = Path(sys.argv[0]).parent


def main() -> int:
    name = Path(sys.argv[0]).name
    with (FOLDER / "calls").open("a") as file:
        file.write(f"{name} {' '.join(sys.argv[1:])}\n")
    return {"systemctl": systemctl, "loginctl": loginctl}[name](sys.argv[1:])


def mark(name: str) -> Path:
    return FOLDER / f"state-{name}"


def launch(command: list[str], environ: dict[str, str], log: str) -> None:
    with Path(log).open("ab") as file:
        base = {"HOME": os.environ["HOME"]}
        subprocess.Popen(command, env=base | environ, stdout=file, stderr=file, start_new_session=True)


def systemctl(words: list[str]) -> int:
    assert words.pop(0) == "--user"
    verb, *units = words
    if (FOLDER / "no-systemd").exists():
        sys.stderr.write("Failed to connect to bus: No medium found\n")
        return 1
    if verb in ("daemon-reload", "show-environment"):
        return 0
    unit = Path(os.environ["HOME"]) / ".config/systemd/user" / units[0]
    if verb in ("enable", "start") and not unit.exists():
        return 1
    if verb == "enable":
        mark(units[0]).touch()
    elif verb == "disable":
        mark(units[0]).unlink()
    elif verb == "is-enabled":
        sys.stdout.write("enabled\n" if mark(units[0]).exists() else "disabled\n")
    elif verb == "is-active":
        sys.stdout.write("inactive\n")
    elif verb == "start":
        text = unit.read_text()
        found = {
            key: re.findall(rf"^{key}=(.*)$", text, re.MULTILINE) for key in ("ExecStart", "Environment")
        }
        environ = dict(shlex.split(line)[0].split("=", 1) for line in found["Environment"])
        log = re.findall(r"^StandardError=append:(.*)$", text, re.MULTILINE)[0]
        launch(shlex.split(found["ExecStart"][0]), environ, log)
    return 0


def loginctl(words: list[str]) -> int:
    if words[0] == "show-user":
        sys.stdout.write("Linger=yes\n" if mark("linger").exists() else "Linger=no\n")
    elif (FOLDER / "no-linger").exists():
        sys.stderr.write("Access denied\n")
        return 1
    else:
        mark("linger").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
