"""Every check of doctor finds its fault, and that alone, in facts that are well otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from clusterctl.diagnosis import Level
from clusterctl.doctor import CHECKS, document, examine, has_errors
from clusterctl.facts import Certificate, Clock, Facts, Installation, Job, Mac, Machine, ModelPlace, Place
from clusterctl.memory_fit import Asked, Fit, need_of
from clusterctl.memory_fit import Machine as Memory
from clusterctl.services import ServiceState
from protocol.config import parse
from protocol.reachability import OPEN, Reach

NOW = datetime(2026, 12, 2, 12, 0, tzinfo=UTC)
TEXT = """version = 1
[gateway]
id = "gw-1"
http = "0.0.0.0:8000"
listen = ["tcp://10.0.0.5:5555"]
[[workers]]
id = "w-1"
model = "/models/m"
prefix_cache_disk_mb = 1024
"""
JOB = Job(
    label="studiofleet",
    domain="system",
    loaded=ServiceState(
        loaded=True,
        running=True,
        pid=4121,
        exit_timeout_s=90,
        throttle_s=10,
        spawn_type="interactive",
        path="/Library/LaunchDaemons/studiofleet.plist",
    ),
    exit_timeout_s=90,
    throttle_s=10,
    list_is_there=True,
)
MAC = Mac(
    version="26.5.2",
    power={"sleep": "0", "autorestart": "1"},
    filevault=False,
    installs_updates=False,
    firewall=True,
    firewall_blocks=False,
    wired_bytes=4 << 30,
    jobs=(JOB,),
)
MEMORY = Memory("local", 256 << 30, recommended=192 << 30)
FOLDERS = {
    "models": Path("/models"),
    "logs": Path("/srv/logs"),
    "prefix_cache": Path("/models/prefix-cache"),
}


def needing(*sizes: int, memory: Memory = MEMORY) -> Fit:
    asked = (Asked(f"w-{number}", 1, stated=size) for number, size in enumerate(sizes, 1))
    return Fit(memory, tuple(need_of(it, None) for it in asked))


WELL = Facts(
    now=NOW,
    user_folder=Path("/people/ada"),
    machine=Machine(
        system="Darwin",
        arch="arm64",
        memory=MEMORY,
        descriptors=10240,
        free_bytes=dict.fromkeys(FOLDERS.values(), 500 << 30),
        boot_unit=True,
        mac=MAC,
    ),
    home=Installation(
        config_file=Path("/srv/cluster.toml"),
        config=parse(TEXT),
        version="0.1.0",
        places=(
            Place(Path("/srv"), 0o700, True, True),
            Place(Path("/srv/keys/admin.key"), 0o600, True, False),
        ),
        certificates=(Certificate("gw-1", Path("/srv/cert.pem"), expires=NOW + timedelta(days=60)),),
        model_places=(ModelPlace("w-1", Path("/models/m")),),
        fit=needing(40 << 30),
        supervised=True,
        alive={"gw-1": 4122, "w-1": 4123},
        versions={"gw-1": "0.1.0", "w-1": "0.1.0-92ac11f2"},
        reached=(Reach("gw-1", "tcp://10.0.0.5:5555", OPEN),),
        clocks=(Clock("gw-1", 0.4),),
        models=FOLDERS["models"],
        logs=FOLDERS["logs"],
        prefix_cache=FOLDERS["prefix_cache"],
    ),
)
REFUSED = Reach("gw-1", "tcp://10.0.0.5:5555", "ECONNREFUSED", 61)
NO_ROUTE = Reach("gw-1", "tcp://10.0.0.5:5555", "EHOSTUNREACH", 65)


def at_home(**changes: Any) -> Callable[[], Facts]:
    return lambda: replace(WELL, home=replace(WELL.home, **changes))


def with_text(old: str, new: str) -> Callable[[], Facts]:
    assert old in TEXT
    return at_home(config=parse(TEXT.replace(old, new)))


def at_machine(**changes: Any) -> Callable[[], Facts]:
    return lambda: replace(WELL, machine=replace(WELL.machine, **changes))


def on_mac(**changes: Any) -> Callable[[], Facts]:
    return at_machine(mac=replace(MAC, **changes))


def loaded(**changes: Any) -> Callable[[], Facts]:
    return on_mac(jobs=(replace(JOB, loaded=replace(JOB.loaded, **changes)),))


def little(folder: str, free: int) -> Callable[[], Facts]:
    return at_machine(free_bytes={**WELL.machine.free_bytes, FOLDERS[folder]: free})


FAULTS: list[tuple[str, Callable[[], Facts], str]] = [
    ("config.invalid", at_home(config_error="[gateway]: no id"), "no id"),
    ("home.open", at_home(places=(Place(Path("/srv/keys"), 0o755, True, True),)), "chmod 700"),
    ("keys.open", at_home(places=(Place(Path("/srv/keys/a"), 0o640, True, False),)), "chmod 600"),
    ("keys.open", at_home(places=(Place(Path("/srv/keys/a"), 0o600, False, False),)), "chown"),
    ("tls.pair", at_home(certificates=(Certificate("gw-1", Path("c"), "not its key"),)), "not its key"),
    ("tls.expiry", at_home(certificates=(Certificate("gw-1", Path("c"), "", NOW),)), "is over since"),
    (
        "tls.expiry",
        at_home(certificates=(Certificate("gw-1", Path("c"), "", NOW + timedelta(days=13)),)),
        "is over on",
    ),
    ("model.missing", at_home(model_places=(ModelPlace("w-1", Path("/m"), "no folder"),)), "no folder"),
    ("model.damaged", at_home(model_places=(ModelPlace("w-1", Path("/m"), "", "cut short"),)), "cut short"),
    ("run.leftovers", at_home(leftovers=("w-9",)), "w-9"),
    ("supervisor.down", at_home(supervised=False), "gw-1, w-1"),
    ("supervisor.down", at_home(supervised=False, alive={}), "nothing of this home"),
    ("boot.missing", at_machine(boot_unit=False), "boot install"),
    ("gateway.port", at_home(busy=(("gw-1", "0.0.0.0:8000"),)), "0.0.0.0:8000"),
    ("process.stray", at_home(strays={77: "w-2"}), "kill 77"),
    ("process.parked", at_home(parked={"w-1": "no such model"}), "no such model"),
    ("process.outdated", at_home(outdated=("w-1",)), "restart w-1"),
    ("version.skew", at_home(versions={"w-1": "0.0.9"}), "0.0.9"),
    ("version.skew", at_home(versions={"w-1": ""}), "unknown"),
    ("gateway.unreachable", at_home(reached=(REFUSED,)), "errno 61"),
    ("worker.cut-off", at_home(cut_off={"w-1": (REFUSED,)}), "nothing listens"),
    ("network.privacy", at_home(cut_off={"w-1": (NO_ROUTE,)}), "daemon"),
    ("network.local-name", with_text("0.0.0.0:8000", "studio-1.local:8000"), "studio-1.local"),
    ("network.local-name", with_text("10.0.0.5", "studio-1.local"), "studio-1.local"),
    ("clock.skew", at_home(clocks=(Clock("gw-1", -60.0),)), "60 s behind"),
    ("clock.skew", at_home(clocks=(Clock("gw-1", 60.0),)), "60 s ahead"),
    ("disk.models", little("models", 1 << 30), "1.1 GB"),
    ("disk.logs", little("logs", 200 << 20), "3 processes x 5 files x 16 MiB"),
    ("disk.prefix-cache", little("prefix_cache", 1 << 29), "prefix_cache_disk_mb"),
    ("memory.ceiling", at_home(fit=needing(150 << 30, 60 << 30)), "225 GB (w-1 161 GB + w-2 64.4 GB; "),
    ("limits.descriptors", at_machine(descriptors=1024), "2688"),
    ("macos.version", on_mac(version="13.7.8"), "13.7.8"),
    ("macos.arch", on_mac(translated=True), "arm64"),
    ("power.sleep", on_mac(power={"sleep": "1"}), "pmset -a sleep 0"),
    ("power.autorestart", on_mac(power={"sleep": "0", "autorestart": "0"}), "pmset -a autorestart 1"),
    ("power.filevault", on_mac(filevault=True), "authrestart"),
    ("updates.automatic", on_mac(installs_updates=True), "defaults write"),
    ("firewall.gateway", on_mac(firewall_blocks=True), "socketfilterfw"),
    ("firewall.gateway", on_mac(firewall_blocks=None), "socketfilterfw"),
    ("launchd.process-class", loaded(spawn_type="daemon"), "'daemon'"),
    ("launchd.exit-timeout", loaded(exit_timeout_s=5), "5 s"),
    (
        "launchd.exit-timeout",
        on_mac(jobs=(replace(JOB, exit_timeout_s=None),)),
        "names no ExitTimeOut",
    ),
    ("launchd.minimum-runtime", loaded(throttle_s=30), "30 s"),
    ("launchd.list-gone", on_mac(jobs=(replace(JOB, list_is_there=False),)), "gone"),
    ("launchd.agent", on_mac(jobs=(replace(JOB, domain="gui/501"),)), "agent"),
    (
        "memory.wired-limit",
        at_machine(memory=replace(MEMORY, wired_limit=255_000 << 20)),
        "wired_limit_mb=230686",
    ),
    (
        "memory.wired-leak",
        lambda: replace(
            on_mac(wired_bytes=180 << 30)(), home=replace(WELL.home, alive={}, strays={}, supervised=True)
        ),
        "restart this Mac",
    ),
    ("panic.recent", on_mac(panics=("panic-full-2026-12-01-101010.panic",)), "panic-full"),
    (
        "model.protected-folder",
        at_home(model_places=(ModelPlace("w-1", Path("/Volumes/ssd/m")),)),
        "/Volumes/ssd/m",
    ),
    (
        "model.protected-folder",
        at_home(model_places=(ModelPlace("w-1", Path("/people/ada/Documents/m")),)),
        "internal disk",
    ),
]


def test_a_machine_that_is_well_has_no_findings():
    assert examine(WELL) == []


def test_of_a_machine_of_which_nothing_is_known_nothing_is_claimed():
    assert examine(Facts(now=NOW, user_folder=Path("/"))) == []


@pytest.mark.parametrize(("check_id", "facts", "words"), FAULTS)
def test_a_fault_is_found_by_its_check_alone(check_id: str, facts: Callable[[], Facts], words: str):
    findings = examine(facts())
    assert [finding.id for finding in findings] == [check_id]
    assert words in f"{findings[0].cause} {findings[0].cure}"


def test_every_check_has_a_fault_and_an_id_of_its_own():
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids)) >= 25
    assert {check_id for check_id, _facts, _words in FAULTS} == set(ids)


def test_only_what_says_so_brings_a_fix():
    brought = {finding.id for _id, facts, _words in FAULTS for finding in examine(facts()) if finding.fix}
    assert brought == {check.id for check in CHECKS if check.fixes}


@pytest.mark.parametrize(
    "facts",
    [
        with_text("0.0.0.0:8000", "127.0.0.1:8000"),
        on_mac(firewall=False),
    ],
)
def test_a_firewall_that_nothing_has_to_pass_is_no_fault(facts: Callable[[], Facts]):
    found = facts()
    mac = found.machine.mac
    assert mac is not None
    blocking = replace(found.machine, mac=replace(mac, firewall_blocks=True))
    assert examine(replace(found, machine=blocking)) == []


def test_a_cluster_that_is_down_is_told_once():
    facts = at_home(supervised=False, alive={}, reached=(REFUSED,))()
    assert [finding.id for finding in examine(facts)] == ["supervisor.down"]


@pytest.mark.parametrize(
    "facts",
    [
        lambda: replace(at_home(cut_off={"w-1": (NO_ROUTE,)})(), machine=Machine(system="Linux")),
        at_home(cut_off={"w-1": (NO_ROUTE,)}, reached=()),
    ],
    ids=["on Linux", "nobody reaches it"],
)
def test_only_on_a_mac_that_reaches_the_gateway_otherwise_it_is_privacy(facts: Callable[[], Facts]):
    assert [finding.id for finding in examine(facts())] == ["worker.cut-off"]


def test_the_worst_comes_first_and_only_errors_are_errors():
    facts = at_home(leftovers=("w-9",), outdated=("w-1",), parked={"w-2": "why"})()
    findings = examine(facts)
    assert [finding.level for finding in findings] == [Level.ERROR, Level.WARNING, Level.NOTE]
    assert has_errors(findings)
    assert not has_errors(findings[1:])
    assert [it["fix"] is not None for it in document(findings)] == [False, False, True]
