"""The program that runs as root on a Mac for one installation, and the line that lets its user run it. Pure.

The program is `root_helper.sh` with a few constants; it is written in sh because a Mac has no Python of
its own, and root must run none that others may write to.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from clusterctl.services import ServiceRefusedError

DAEMONS = PurePath("/Library/LaunchDaemons")
HELPERS = PurePath("/Library/PrivilegedHelperTools")
"""Apple's folder for such programs. Not /usr/local: others than root often may write there."""
SUDOERS = PurePath("/etc/sudoers.d")
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
REFUSALS = (64, 65, 77)
"""Exit codes by which the program says that it will not."""
FORM = 1
"""Of what the program takes and what it refuses. With another number it has to be installed anew."""
_SOURCE = Path(__file__).with_suffix(".sh")
_USER = re.compile(r"[a-z_][A-Za-z0-9_.-]{0,63}")
"""In a file of sudo, other names may be aliases, groups or numbers."""
_NAME = re.compile(r"studiofleet(-[0-9a-f]{8})?")
_PLACE = re.compile(r"(/[A-Za-z0-9._@+ -]+)+")

_INSTALLER = r"""
set -eu
umask 022
PATH=@PATH@
export PATH
helper=@HELPER@ sudoers=@SUDOERS@
[ "$(id -u)" = 0 ] || { echo 'this has to be run as root' >&2; exit 77; }
only_roots() {
    place=$1
    while :; do
        case $(ls -ldn "$place" | awk '{ print $1, $3 }') in
            d????????[tT]*' 0') ;;  # others may write there, and yet touch nothing of root's
            d????w*|d???????w*) echo "others than root may write to $place" >&2; exit 1 ;;
            d*' 0') ;;
            *) echo "$place is not a folder of root's" >&2; exit 1 ;;
        esac
        [ "$place" != / ] || break
        place=${place%/*}
        place=${place:-/}
    done
}
for folder in "${helper%/*}" "${sudoers%/*}"; do
    mkdir -p "$folder"
    only_roots "$(cd -P "$folder" && pwd -P)"
done
trap 'rm -f "$helper.new" "$sudoers.new"' EXIT
printf '%s' @HELPER_TEXT@ >"$helper.new"
printf '%s' @SUDOERS_TEXT@ >"$sudoers.new"
chown 0:0 "$helper.new" "$sudoers.new"
chmod 0755 "$helper.new"
chmod 0440 "$sudoers.new"
visudo -cf "$sudoers.new" >/dev/null
mv -f "$helper.new" "$helper"
mv -f "$sudoers.new" "$sudoers"
"""


@dataclass(frozen=True)
class RootHelper:
    """Of one installation on one machine. Its paths are of that machine."""

    name: str
    """Of the installation: labels begin with it."""
    user: str
    """The only one who may run it, and as whom services run."""
    home: PurePath
    """The folder in which services work and log."""
    programs: PurePath
    """The folder in which the programs of services are."""
    daemons: PurePath = field(default_factory=lambda: DAEMONS)
    helpers: PurePath = field(default_factory=lambda: HELPERS)
    sudoers_folder: PurePath = field(default_factory=lambda: SUDOERS)
    search: str = field(default_factory=lambda: PATH)
    """Where root looks for programs."""

    def __post_init__(self) -> None:
        """Raises `ServiceRefusedError` for what must not be put into a program of root's."""
        if not _NAME.fullmatch(self.name):
            raise ServiceRefusedError(f"{self.name!r} is no name of an installation")
        if self.user == "root" or not _USER.fullmatch(self.user):
            raise ServiceRefusedError(
                f"services are not run as {self.user!r}; log in as a user of their own, with a name in"
                " small letters, digits and dashes"
            )
        for place in (self.home, self.programs, self.daemons, self.helpers, self.sudoers_folder):
            if not _PLACE.fullmatch(str(place)) or ".." in place.parts:
                raise ServiceRefusedError(
                    f"{place} cannot be a folder of services: use letters, digits, spaces and . _ @ + - only"
                )

    @property
    def path(self) -> PurePath:
        """Where it is installed."""
        return self.helpers / self.name

    @property
    def sudoers(self) -> PurePath:
        return self.sudoers_folder / self.name

    @property
    def constants(self) -> str:
        """A part of the program: what it is for, and in which form it takes that."""
        constants = {
            "form_of_lists": FORM,
            "PATH": self.search,
            "name": self.name,
            "user": self.user,
            "home": str(self.home),
            "programs": str(self.programs),
            "daemons": str(self.daemons),
            "helper": str(self.path),
            "sudoers": str(self.sudoers),
        }
        return "".join(f"{key}={shlex.quote(str(value))}\n" for key, value in constants.items())

    @property
    def text(self) -> str:
        """The program."""
        return _SOURCE.read_text().replace("#CONSTANTS#\n", self.constants)

    @property
    def sudoers_text(self) -> str:
        """The file for sudo: this user, that program and none else, as root, without a password."""
        program = str(self.path).replace(" ", "\\ ")
        return (
            "# Written by clusterctl of Studiofleet; the program itself checks what it is told.\n"
            f"Defaults!{program} env_reset, !setenv\n"
            f"{self.user} ALL=(root) NOPASSWD: NOSETENV: {program}\n"
        )

    @property
    def installer(self) -> str:
        """For `sh -c` as root: puts both in place, or neither; sudo's file only if `visudo` takes it."""
        filled = {
            "@PATH@": self.search,
            "@HELPER@": str(self.path),
            "@SUDOERS@": str(self.sudoers),
            "@SUDOERS_TEXT@": self.sudoers_text,
            "@HELPER_TEXT@": self.text,
        }
        text = _INSTALLER
        for mark, value in filled.items():
            text = text.replace(mark, shlex.quote(value))
        return text
