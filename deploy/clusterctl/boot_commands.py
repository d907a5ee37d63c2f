"""The commands that have the cluster started at boot: `clusterctl boot …`."""

from __future__ import annotations

import getpass
import os
import sys
import time
from pathlib import Path

import click

from clusterctl import operations, output
from clusterctl.boot import BootManager, Launchd, Systemd, manager_of
from clusterctl.bootunits import (
    BootPlan,
    boot_command,
    boot_environment,
    stop_limit_s,
    unit_name,
)
from clusterctl.control import NAME
from clusterctl.launching import settled_environment
from clusterctl.options import config_option, json_option, places, reported, taught
from protocol.addresses import Home
from protocol.configfile import read_config

_ANSWER_S = 30.0
_MANAGERS = {"systemd": Systemd, "launchd": Launchd}


@click.group(epilog=taught("clusterctl boot install --now", "clusterctl boot status"))
def boot() -> None:
    """Have the cluster started at boot by systemd (Linux) or at login by launchd (macOS).

    It runs `clusterctl up --foreground`; all other commands go on working as before.
    """


@boot.command(
    epilog=taught(
        "clusterctl boot install",
        "clusterctl boot install --now",
        failed="systemd or launchd did not do it",
        refused="there is none for this user, or no configuration",
    )
)
@click.option("--now", is_flag=True, help="Start the cluster by it at once, too.")
@config_option
@reported
def install(now: bool, config_file: Path | None) -> None:
    """Write the unit of this user, and have it heeded from the next boot on."""
    home, plan = _plan(config_file)
    if read_config(places(config_file)[1]).supervisor == "launchd":
        raise operations.RefusedError("what launchd supervises it starts at boot by itself: clusterctl up")
    operations.make_folders(home)
    manager = manager_of(sys.platform)
    manager.check()
    written = manager.write(plan)
    manager.enable(plan.name, output.say)
    path = manager.file(plan.name)
    click.echo(f"{path} is written" if written else f"unchanged: {path} is there already")
    if manager.remark:
        output.say(f"note: {manager.remark}")
    if operations.status_of(home) is not None:
        click.echo("the cluster runs already, and goes on as it was started until the next boot")
    elif now:
        _start(home, manager, plan)
    else:
        click.echo("it takes effect at the next boot; at once: clusterctl boot install --now")


def _start(home: Home, manager: BootManager, plan: BootPlan) -> None:
    manager.start(plan.name)
    deadline = time.monotonic() + _ANSWER_S
    while operations.status_of(home) is None:
        if time.monotonic() > deadline:
            raise operations.OperationError(
                f"{manager.kind} has started {plan.name}, but no supervisor answers; see {plan.log}"
            )
        time.sleep(operations.POLL_S)
    click.echo(f"{manager.kind} has started the cluster; to see how it goes: clusterctl status")


@boot.command(epilog=taught("clusterctl boot remove", refused="no configuration"))
@config_option
@reported
def remove(config_file: Path | None) -> None:
    """Have nothing started at boot any more. What runs goes on."""
    plan = _plan(config_file)[1]
    manager = manager_of(sys.platform)
    path = manager.file(plan.name)
    if not path.exists():
        click.echo(f"unchanged: there is no {path}")
        return
    manager.disable(plan.name)
    path.unlink()
    click.echo(f"{path} is removed; what runs goes on, to end it: clusterctl down")


@boot.command(
    epilog=taught("clusterctl boot status", "clusterctl boot status --json", refused="no configuration")
)
@json_option
@config_option
@reported
def status(as_json: bool, config_file: Path | None) -> None:
    """Tell whether something is started at boot, and whether its unit is current."""
    plan = _plan(config_file)[1]
    manager = manager_of(sys.platform)
    path = manager.file(plan.name)
    try:
        state = manager.state(plan.name)
    except operations.RefusedError as error:
        state = str(error)
    found = {
        "manager": manager.kind,
        "file": str(path),
        "installed": path.exists(),
        "current": manager.is_installed(plan),
        "state": state,
    }
    if as_json:
        output.show_json(found)
        return
    words = "is current" if found["current"] else "differs from what `clusterctl boot install` writes now"
    click.echo(f"{path} {words if found['installed'] else 'is not there: clusterctl boot install'}")
    click.echo(f"{manager.kind}: {state}")


@boot.command(
    epilog=taught(
        "clusterctl boot show",
        "clusterctl boot show --manager launchd --daemon",
        refused="no configuration",
    )
)
@click.option("--daemon", is_flag=True, help="As root installs it: started by the system, whoever logs in.")
@click.option("--manager", "kind", type=click.Choice(list(_MANAGERS)), help="[default: this machine's]")
@json_option
@config_option
@reported
def show(daemon: bool, kind: str | None, as_json: bool, config_file: Path | None) -> None:
    """Print the unit, and write nothing."""
    plan = _plan(config_file, getpass.getuser() if daemon else "")[1]
    manager = _MANAGERS[kind]() if kind else manager_of(sys.platform)
    unit = manager.text(plan).decode()
    note = manager.how_root_installs(plan.name) if daemon else manager.remark and f"note: {manager.remark}"
    if as_json:
        output.show_json({"manager": manager.kind, "name": plan.name, "unit": unit, "note": note or None})
        return
    click.echo(unit, nl=False)
    if note:
        output.say(note)


def _plan(config_file: Path | None, user: str = "") -> tuple[Home, BootPlan]:
    home, path = places(config_file)
    environ = settled_environment(os.environ, Path.cwd(), home)
    plan = BootPlan(
        name=unit_name(home.path, Home.from_environment({}).path),
        command=boot_command(sys.executable, path),
        environ=boot_environment(environ, sys.executable),
        folder=home.path,
        log=home.log(NAME),
        stop_s=stop_limit_s(read_config(path)),
        user=user,
    )
    return home, plan
