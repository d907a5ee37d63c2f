"""What may be wrong with a Mac. Pure.

Nothing of this is verified on a Mac: it is how we understand it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterctl.diagnosis import Check, Fix, Found, Level
from clusterctl.facts import Facts, Mac
from clusterctl.memory_fit import size
from protocol.addresses import is_loopback, split_http

_OLDEST = 14
_ALWAYS_ON = ("sudo", "-n", "/usr/bin/pmset", "-a", "sleep", "0", "disksleep", "0", "womp", "1")
_RESTARTED = ("sudo", "-n", "/usr/bin/pmset", "-a", "autorestart", "1")
_PROTECTED = ("Desktop", "Documents", "Downloads", "Library/Mobile Documents")


def _macs(facts: Facts) -> Iterator[Mac]:
    if facts.machine.mac is not None:
        yield facts.machine.mac


def _version(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        major = mac.version.partition(".")[0]
        if major.isdigit() and int(major) < _OLDEST:
            yield Found(f"macOS {mac.version} is older than {_OLDEST}, which MLX needs", "update macOS")


def _arch(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        if mac.translated or facts.machine.arch == "x86_64":
            yield Found(
                "this Python is one for Intel: MLX has no GPU there",
                "install a Python for arm64, and Studiofleet with that",
            )


def _sleep(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        if mac.power.get("sleep", "0") != "0":
            yield Found(
                f"it goes to sleep after {mac.power['sleep']} minutes without use: requests look as if"
                " they hung",
                "sudo pmset -a sleep 0 disksleep 0 womp 1",
                Fix("it does not sleep any more", _ALWAYS_ON),
            )


def _autorestart(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        if mac.power.get("autorestart") == "0":
            yield Found(
                "it stays off after a power failure",
                "sudo pmset -a autorestart 1",
                Fix("it starts by itself after a power failure", _RESTARTED),
            )


def _filevault(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        if mac.filevault:
            yield Found(
                "FileVault is on: after a restart nothing of ours starts until somebody unlocks the disk",
                "sudo fdesetup disable; or restart with sudo fdesetup authrestart; macOS 26 also unlocks"
                " over ssh with a password",
            )


def _updates(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        if mac.installs_updates:
            yield Found(
                "macOS installs updates by itself, and restarts for them",
                "sudo defaults write /Library/Preferences/com.apple.SoftwareUpdate"
                " AutomaticallyInstallMacOSUpdates -bool false; then update when it suits you",
            )


def _firewall(facts: Facts) -> Iterator[Found]:
    config = facts.home.config
    hosts = [split_http(gateway.http)[0] for gateway in config.local_gateways] if config else []
    listens = any(not is_loopback(host) for host in hosts)
    for mac in _macs(facts):
        if listens and mac.firewall and mac.firewall_blocks is not False:
            tool = "/usr/libexec/ApplicationFirewall/socketfilterfw"
            yield Found(
                "the application firewall is on, and does not let in what comes for this Python: other"
                " machines do not reach the gateway",
                f"sudo {tool} --add PYTHON; sudo {tool} --unblockapp PYTHON, with the path of the Python that"
                " runs it (scripts/install shows it)",
            )


def _wired_limit(facts: Facts) -> Iterator[Found]:
    memory = facts.machine.memory
    if memory is None or memory.wired_limit is None:
        return
    most = memory.memory - memory.reserve
    if memory.wired_limit > most:
        yield Found(
            f"iogpu.wired_limit_mb lets the GPU hold {size(memory.wired_limit)} of {size(memory.memory)}: too"
            " little is left for macOS, which freezes or panics when models fill it",
            f"sudo sysctl iogpu.wired_limit_mb={most >> 20}",
        )


def _wired_leak(facts: Facts) -> Iterator[Found]:
    memory = facts.machine.memory
    need = facts.home.fit.total if facts.home.fit else 0
    for mac in _macs(facts):
        if memory is None or mac.wired_bytes is None or facts.home.alive or facts.home.strays:
            continue
        if mac.wired_bytes + need > memory.ceiling and mac.wired_bytes > memory.ceiling // 4:
            yield Found(
                f"{size(mac.wired_bytes)} are wired although no worker of ours runs: a killed process"
                f" leaves its model's memory wired; {size(need)} more do not fit",
                "end other programs that use the GPU; if it stays wired, restart this Mac",
            )


def _panics(facts: Facts) -> Iterator[Found]:
    for mac in _macs(facts):
        if mac.panics:
            yield Found(
                f"macOS has panicked in the last three days: {', '.join(mac.panics)}",
                "read the reports in /Library/Logs/DiagnosticReports; when they name IOGPU or watchdogd,"
                " give the workers less memory (memory_limit_mb, kv_tokens, max_num_seqs)",
            )


def _protected_folders(facts: Facts) -> Iterator[Found]:
    if not facts.on_mac:
        return
    protected = [Path("/Volumes"), *(facts.user_folder / name for name in _PROTECTED)]
    for model in facts.home.model_places:
        if any(model.path.is_relative_to(folder) for folder in protected):
            yield Found(
                f"worker {model.worker}: {model.path} lies where macOS lets jobs of launchd read nothing,"
                " without asking anybody, although it works in a terminal",
                "move the model to a folder of the internal disk that is not one of those, such as"
                " /opt/studiofleet/models",
            )


CHECKS = (
    Check("macos.version", Level.ERROR, "macOS before 14", _version),
    Check("macos.arch", Level.ERROR, "a Python for Intel", _arch),
    Check("power.sleep", Level.ERROR, "the Mac goes to sleep", _sleep, fixes=True),
    Check("power.autorestart", Level.WARNING, "it stays off after a power failure", _autorestart, fixes=True),
    Check("power.filevault", Level.WARNING, "FileVault keeps it from starting unattended", _filevault),
    Check("updates.automatic", Level.WARNING, "updates that restart it by themselves", _updates),
    Check(
        "firewall.gateway", Level.ERROR, "the application firewall keeps clients from a gateway", _firewall
    ),
    Check("memory.wired-limit", Level.ERROR, "a GPU limit that leaves macOS too little", _wired_limit),
    Check("memory.wired-leak", Level.ERROR, "memory that a killed process left wired", _wired_leak),
    Check("panic.recent", Level.WARNING, "reports of kernel panics", _panics),
    Check(
        "model.protected-folder", Level.ERROR, "models where jobs of launchd may not read", _protected_folders
    ),
)
