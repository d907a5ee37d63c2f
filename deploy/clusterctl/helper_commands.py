"""The commands about the program that acts for root under launchd: `clusterctl helper install|remove`."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl import operations
from clusterctl.launchd_cluster import LaunchdCluster
from clusterctl.options import config_option, places, reported, taught
from protocol.config import ClusterConfig


@click.group(epilog=taught("clusterctl helper install", "clusterctl helper remove"))
def helper() -> None:
    """Have a small program of root's tell launchd what to run, or have it gone.

    It makes, starts and ends services of this home and does nothing else. `up` installs it where
    `supervisor = "launchd"`, and `node add --supervisor launchd` on a node.
    """


@helper.command(
    epilog=taught(
        "clusterctl helper install",
        refused="sudo does not let this user act as root, or there is no launchd",
    )
)
@config_option
@reported
def install(config_file: Path | None) -> None:
    """Install it, and the line that lets the owner of the home run it; sudo asks for a password."""
    home, path = places(config_file)
    operations.make_folders(home)
    changed = LaunchdCluster(home, path, ClusterConfig(version=1)).install_helper()
    click.echo("the helper is installed" if changed else "unchanged: the helper is there already")


@helper.command(epilog=taught("clusterctl helper remove", refused="services of this home are there"))
@config_option
@reported
def remove(config_file: Path | None) -> None:
    """Remove it, and the line that lets the owner of the home run it."""
    home, path = places(config_file)
    jobs = LaunchdCluster(home, path, ClusterConfig(version=1))
    if jobs.is_installed:
        raise operations.RefusedError("launchd runs services of this home by it; first: clusterctl down")
    click.echo("the helper is removed" if jobs.remove_helper() else "unchanged: there is no helper")
