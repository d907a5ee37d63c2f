"""What a machine tells of itself, asked in one round trip, and why nothing can be installed there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from clusterctl.mac_readings import parse_switch

ASK = r"""
prefix=$1 asked=$2
say() { printf '%s=%s\n' "$1" "$2"; }
say system "$(uname -s)"
say machine "$(uname -m)"
say user "$(id -un)"
if [ "$(uname -s)" = Darwin ]; then
    say release "$(sw_vers -productVersion) ($(sw_vers -buildVersion))"
    say chip "$(sysctl -n machdep.cpu.brand_string)"
    say memory "$(sysctl -n hw.memsize)"
    pmset -g | while read -r name value rest; do say power "$name $value"; done
    say filevault "$(fdesetup status)"
    say updates "$(defaults read /Library/Preferences/com.apple.SoftwareUpdate \
        AutomaticallyInstallMacOSUpdates 2>/dev/null)"
else
    say release "$(uname -r)"
    say memory "$(($(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo) * 1024))"
fi
place=$prefix
while [ ! -e "$place" ]; do place=$(dirname "$place"); done
[ -w "$place" ] && say writable yes
[ -e "$prefix/etc/studiofleet-node" ] && say ours yes
[ -d "$prefix" ] && [ -n "$(ls -A "$prefix")" ] && say occupied yes
say free_kb "$(df -Pk "$place" | awk 'NR == 2 { print $4 }')"
say current "$(readlink "$prefix/current" 2>/dev/null)"
for folder in "$prefix"/versions/*/; do
    [ -d "$folder" ] && say version "$(basename "$folder")"
done
for minor in 13 12 11 14; do
    for python in "$asked" \
        "/Library/Frameworks/Python.framework/Versions/3.$minor/bin/python3.$minor" \
        "/opt/homebrew/opt/python@3.$minor/bin/python3.$minor" \
        "/usr/local/bin/python3.$minor" "/usr/bin/python3.$minor"; do
        [ -x "$python" ] && "$python" -I -c 'import ensurepip, venv' 2>/dev/null &&
            say python "$("$python" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])') $python"
    done
done
say end yes
"""
"""For `/bin/sh`, with the folder of the installation, and a Python that is preferred, or nothing."""
LEAST_FREE_GIB = 2.0
"""For an installation."""
LEAST_FREE_TO_RUN_GIB = 1.0
"""For logs, and what a worker writes down of its state."""
_LEAST_MACOS = 14


class FactsError(ValueError):
    """A machine answered something else than was asked."""


@dataclass(frozen=True)
class NodeFacts:
    """Of one machine."""

    system: str
    """As `uname -s` says it."""
    machine: str
    release: str
    chip: str
    memory_gib: float | None
    """None: it does not tell."""
    user: str
    writable: bool
    """Whether the folder is there, or can be made, and written to."""
    ours: bool
    """Whether the folder is one of ours."""
    occupied: bool
    """Whether anything is in it."""
    free_gib: float | None
    """Beside the folder; None: it does not tell."""
    current: str
    """The version that workers are started with; empty where none is installed."""
    versions: tuple[str, ...]
    pythons: tuple[tuple[str, str], ...]
    """Version, such as `3.13`, and path, the preferred ones first."""
    power: Mapping[str, str] = field(default_factory=dict)
    """What `pmset -g` has of a Mac."""
    filevault: bool | None = None
    """None: it does not tell, as any that is no Mac."""
    installs_updates: bool | None = None

    @property
    def power_words(self) -> str:
        """For people: whether a Mac goes on by itself; empty where it does not tell."""
        found = [f"{name} {self.power[name]}" for name in ("sleep", "autorestart") if name in self.power]
        switches = (("FileVault", self.filevault), ("automatic updates", self.installs_updates))
        found += [f"{name} {'on' if on else 'off'}" for name, on in switches if on is not None]
        return ", ".join(found)

    @property
    def words(self) -> str:
        """For people."""
        system = "macOS" if self.system == "Darwin" else self.system
        chip = f"{self.chip}, " if self.chip else ""
        memory = "memory unknown" if self.memory_gib is None else f"{self.memory_gib:.0f} GiB"
        return f"{chip}{memory}, {system} {self.release} {self.machine}"

    @property
    def cautions(self) -> tuple[str, ...]:
        """What a worker can begin with, but will not bear for long."""
        return tuple(_cautions(self))

    def python_for(self, version: str | None) -> str | None:
        """The path of a Python of that version; None: of any."""
        return next((path for its, path in self.pythons if version in (None, its)), None)


def read_facts(text: str) -> NodeFacts:
    """From what `ASK` printed. Raises `FactsError`."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        found.setdefault(key, []).append(value.strip())
    if "end" not in found:
        raise FactsError(f"it does not answer as a machine does: {text.strip()[-200:]!r}")

    def one(key: str) -> str:
        return found.get(key, [""])[0]

    def in_gib(key: str, unit: int) -> float | None:
        return int(one(key)) * unit / 2**30 if one(key).isdigit() else None

    pythons = dict.fromkeys(tuple(text.split(" ", 1)) for text in found.get("python", ()))
    return NodeFacts(
        system=one("system"),
        machine=one("machine"),
        release=one("release"),
        chip=one("chip"),
        memory_gib=in_gib("memory", 1),
        user=one("user"),
        writable=bool(one("writable")),
        ours=bool(one("ours")),
        occupied=bool(one("occupied")),
        free_gib=in_gib("free_kb", 1024),
        current=one("current").removeprefix("versions/"),
        versions=tuple(found.get("version", ())),
        pythons=tuple((version, path) for version, path in pythons),
        power=dict(text.split(" ", 1) for text in found.get("power", ()) if " " in text),
        filevault=parse_switch(one("filevault")),
        installs_updates=one("updates") == "1" if one("updates") else None,
    )


def _cautions(facts: NodeFacts) -> Iterator[str]:
    if facts.free_gib is None:
        yield "it does not tell how much room its disk has; look with: df"
    if facts.memory_gib is None:
        yield "it does not tell how much memory it has"
    if facts.power.get("sleep", "0") != "0":
        yield (
            f"it goes to sleep after {facts.power['sleep']} minutes without use; there: sudo pmset -a sleep 0"
            " disksleep 0 womp 1"
        )
    if facts.power.get("autorestart") == "0":
        yield "it stays off after a power failure; there: sudo pmset -a autorestart 1"
    if facts.filevault:
        yield "FileVault is on: after a restart nothing of ours starts until somebody unlocks the disk"
    if facts.installs_updates:
        yield "macOS installs updates by itself, and restarts for them"


def refusal(facts: NodeFacts, prefix: str, python: str | None) -> str:
    """Why nothing can be installed there, and what to do; empty where it can.

    `python` is the version that the wheels are made for.
    """
    return _wrong_system(facts) or _wrong_folder(facts, prefix) or _no_python(facts, python)


def _wrong_system(facts: NodeFacts) -> str:
    if facts.system != "Darwin":
        return ""
    if facts.machine != "arm64":
        return f"MLX needs Apple silicon, and this is a Mac with {facts.machine}"
    major = facts.release.partition(".")[0]
    if major.isdigit() and int(major) < _LEAST_MACOS:
        return f"MLX needs macOS {_LEAST_MACOS} or later, and this is {facts.release}; update it"
    return ""


def _wrong_folder(facts: NodeFacts, prefix: str) -> str:
    if facts.occupied and not facts.ours:
        return f"{prefix} has other things in it; give another folder: --prefix"
    if not facts.writable:
        return (
            f"{facts.user} may not write to {prefix}; there, run: sudo install -d -o {facts.user} {prefix};"
            " or give another folder: --prefix"
        )
    if facts.free_gib is not None and facts.free_gib < LEAST_FREE_GIB:
        return f"{prefix} has {facts.free_gib:.1f} GiB free, and {LEAST_FREE_GIB:.0f} are needed; make room"
    return ""


def _no_python(facts: NodeFacts, python: str | None) -> str:
    if facts.python_for(python) is not None:
        return ""
    there = ", ".join(path for _version, path in facts.pythons) or "none that has venv"
    return (
        f"there is no Python {python or '3.11 or later'} (found: {there}); install it from python.org or"
        " with Homebrew, or name one: --python PATH"
    )
