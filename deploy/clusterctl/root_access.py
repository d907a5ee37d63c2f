"""Having the program that acts for root installed, or not: once by a person, then by itself."""

from __future__ import annotations

import pwd
import re
import sys
from collections.abc import Callable
from pathlib import Path

from clusterctl.bootunits import unit_name
from clusterctl.launchd_verbs import SUDO
from clusterctl.root_helper import RootHelper
from clusterctl.runner import NOT_FOUND, Ended, Runner
from clusterctl.services import ServiceError, ServiceRefusedError, run
from protocol.addresses import Home

_OF_ROOT = re.compile(r"-rwxr-xr-x[@.]? +\d+ 0 +0 ")
"""As `ls -ln` begins. A mark of an ACL (+) is none of ours."""


def name_of(home: Home) -> str:
    """Of the installation: the labels of its services begin with it."""
    return unit_name(home.path, Home.from_environment({}).path)


def owner_of(home: Home) -> str:
    return pwd.getpwuid(home.path.stat().st_uid).pw_name


def local_helper(home: Home) -> RootHelper:
    """Of this machine's launchd, for that home. Raises `ServiceRefusedError` when root owns the home."""
    bin_folder, versions = Path(sys.executable).parent, home.path.parent / "versions"
    return RootHelper(
        name=name_of(home),
        user=owner_of(home),
        home=home.path,
        programs=versions if versions in bin_folder.parents else bin_folder,
    )


def is_there(runner: Runner, helper: RootHelper) -> bool:
    """Whether anything of it is installed."""
    return any(run(runner, "test", "-e", str(path)).code == 0 for path in (helper.path, helper.sudoers))


def is_usable(runner: Runner, helper: RootHelper) -> bool:
    """Whether one is installed that does what this version needs, be it of another.

    An upgrade installs its own before the workers' turn; where it has to be undone, the old version finds it.
    """
    return helper.constants in run(runner, "cat", str(helper.path)).out and _is_safe(runner, helper)


def _is_ready(runner: Runner, helper: RootHelper) -> bool:
    """Whether it is installed as it is to be."""
    return run(runner, "cat", str(helper.path)).out == helper.text and _is_safe(runner, helper)


def _is_safe(runner: Runner, helper: RootHelper) -> bool:
    """Whether nobody but root may write to it, and sudo lets us run it."""
    program = str(helper.path)
    if not _OF_ROOT.match(run(runner, "ls", "-ln", program).out):
        return False
    return run(runner, *SUDO, program, "list").code == 0


def install(runner: Runner, helper: RootHelper, as_root: Callable[[str], Ended]) -> bool:
    """Have it there, and sudo let its user run it; False when that was so. `as_root` runs a text with sh.

    Raises `ServiceError`.
    """
    if _is_ready(runner, helper):
        return False
    if run(runner, "launchctl", "version").code == NOT_FOUND:
        raise ServiceRefusedError('there is no launchd on this machine; write supervisor = "process"')
    ended = as_root(helper.installer)
    if _is_ready(runner, helper):
        return True
    if ended.code in (0, NOT_FOUND):
        raise ServiceError(f"sudo does not let {helper.user} run {helper.path}; see {helper.sudoers}")
    raise ServiceRefusedError(
        f"{helper.path} was not installed: {ended.words}. It takes a person whom sudo lets act as root, once,"
        " at a terminal: clusterctl up; for a node: clusterctl node add … --ask-sudo"
    )


def uninstall(runner: Runner, helper: RootHelper) -> bool:
    """Have nothing left of it, nor of its services; False when there was nothing. Raises `ServiceError`."""
    if not is_there(runner, helper):
        return False
    ended = run(runner, *SUDO, str(helper.path), "uninstall")
    if is_there(runner, helper):
        raise ServiceError(
            f"{helper.path} is not removed: {ended.words}; as root, run: {helper.path} uninstall; rm -f"
            f" {helper.sudoers}"
        )
    return True
