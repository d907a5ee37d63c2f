"""What may be wrong with what runs, and with the ways between it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.diagnosis import Check, Found, Level
from clusterctl.facts import Facts
from protocol.addresses import split_http, tcp_host
from protocol.reachability import OPEN

_CLOCKS_S = 5.0


def _supervisor(facts: Facts) -> Iterator[Found]:
    home = facts.home
    if home.config is None or home.supervised or home.strays:
        return
    if home.alive:
        names = ", ".join(sorted(home.alive))
        yield Found(f"{names}: running without a supervisor; who ends is not started again", "clusterctl up")
    elif home.has_to_run:
        yield Found("nothing of this home runs", "clusterctl up --wait")


def _boot(facts: Facts) -> Iterator[Found]:
    if facts.machine.boot_unit is False and facts.home.has_to_run:
        yield Found(
            "nothing is started at boot: after a reboot the cluster stays down", "clusterctl boot install"
        )


def _ports(facts: Facts) -> Iterator[Found]:
    for gateway, address in facts.home.busy:
        yield Found(
            f"{address} of the gateway {gateway}, which does not run, is in use by another program",
            f"end that program, or give the gateway another address in {facts.home.config_file}",
        )


def _strays(facts: Facts) -> Iterator[Found]:
    for pid, process_id in sorted(facts.home.strays.items()):
        yield Found(
            f"{process_id} runs (pid {pid}) and no supervisor knows of it: its files were removed, or"
            " somebody started it by hand",
            f"let a supervisor take it over: clusterctl up; or end it: kill {pid}",
        )


def _parked(facts: Facts) -> Iterator[Found]:
    for process_id, why in sorted(facts.home.parked.items()):
        yield Found(
            f"{process_id} is parked: {why}",
            f"repair that, then: clusterctl restart {process_id} (its log: clusterctl logs {process_id})",
        )


def _outdated(facts: Facts) -> Iterator[Found]:
    for process_id in facts.home.outdated:
        yield Found(
            f"{process_id} runs with an older configuration than the file's",
            f"clusterctl restart {process_id}",
        )


def _versions(facts: Facts) -> Iterator[Found]:
    for process_id, version in sorted(facts.home.versions.items()):
        if version.partition("-")[0] != facts.home.version:  # nodes tell the build, too
            yield Found(
                f"{process_id} runs version {version or 'unknown'}, installed is {facts.home.version}",
                f"clusterctl restart {process_id}",
            )


def _unreachable(facts: Facts) -> Iterator[Found]:
    home = facts.home
    for reach in home.reached:
        if reach.met == OPEN or (not home.supervised and reach.gateway not in home.alive and _is_down(facts)):
            continue
        number = f" (errno {reach.number})" if reach.number is not None else ""
        yield Found(
            f"gateway {reach.gateway} is not reached from here at {reach.endpoint}: {reach.met}{number}",
            reach.words,
        )


def _is_down(facts: Facts) -> bool:
    """Nothing of the home runs: told once, as that."""
    return not facts.home.alive and not facts.home.strays


def _cut_off(facts: Facts) -> Iterator[Found]:
    for worker, reaches in sorted(facts.home.cut_off.items()):
        for reach in reaches:
            if not _is_privacy(facts, reach.gateway, reach.met):
                yield Found(
                    f"worker {worker}, from inside its job: {reach.line.partition(': ')[0]}"
                    f" ({_met(reach.met, reach.number)})",
                    reach.words,
                )


def _met(met: str, number: int | None) -> str:
    return met if number is None else f"{met}, errno {number}"


def _privacy(facts: Facts) -> Iterator[Found]:
    for worker, reaches in sorted(facts.home.cut_off.items()):
        for reach in reaches:
            if _is_privacy(facts, reach.gateway, reach.met):
                yield Found(
                    f"worker {worker} meets {_met(reach.met, reach.number)} at {reach.endpoint}, which this"
                    " program reaches: the signature of local-network privacy, which refuses agents and what"
                    " is started from a terminal of an application",
                    'run it as a daemon: supervisor = "launchd", or clusterctl boot show --daemon',
                )


def _is_privacy(facts: Facts, gateway: str, met: str) -> bool:
    reached = any(reach.gateway == gateway and reach.met == OPEN for reach in facts.home.reached)
    return facts.on_mac and met == "EHOSTUNREACH" and reached


def _clocks(facts: Facts) -> Iterator[Found]:
    for clock in facts.home.clocks:
        if abs(clock.ahead_s) > _CLOCKS_S:
            than = "ahead of" if clock.ahead_s > 0 else "behind"
            yield Found(
                f"the clock of the gateway {clock.gateway} is {abs(clock.ahead_s):.0f} s {than} this"
                " machine's: certificates and keys are over at other times, and logs cannot be put together",
                "set both by the network: sudo sntp -sS time.apple.com on a Mac, timedatectl set-ntp true"
                " on Linux",
            )


def _local_names(facts: Facts) -> Iterator[Found]:
    config = facts.home.config
    for gateway in config.all_gateways if config else ():
        hosts = {split_http(gateway.http)[0], *(tcp_host(it) for it in gateway.listen if it != "ipc")}
        for host in sorted(hosts):
            if host.rstrip(".").endswith(".local"):
                yield Found(
                    f"gateway {gateway.id} is named {host}: looking up such a name may take 5 s each time,"
                    " or fail",
                    f"write its address, as told by: dscacheutil -q host -a name {host}",
                )


CHECKS = (
    Check("supervisor.down", Level.ERROR, "nothing runs, or nobody starts again what ends", _supervisor),
    Check("boot.missing", Level.WARNING, "nothing is started at boot", _boot),
    Check("gateway.port", Level.ERROR, "another program has a gateway's address", _ports),
    Check("process.stray", Level.ERROR, "processes of ours that no supervisor knows", _strays),
    Check("process.parked", Level.ERROR, "processes that were given up, and why", _parked),
    Check("process.outdated", Level.WARNING, "processes with an older configuration", _outdated),
    Check("version.skew", Level.WARNING, "processes of another version than the installed one", _versions),
    Check(
        "gateway.unreachable",
        Level.ERROR,
        "a gateway that this program does not reach over tcp",
        _unreachable,
    ),
    Check(
        "worker.cut-off",
        Level.ERROR,
        "a gateway that a worker, from inside its job, does not reach",
        _cut_off,
    ),
    Check("network.privacy", Level.ERROR, "local-network privacy keeps a worker from its gateway", _privacy),
    Check("network.local-name", Level.WARNING, "gateways named by a .local name", _local_names),
    Check("clock.skew", Level.WARNING, "a gateway's clock more than 5 s off", _clocks),
)
