"""A service as systemd reads it: a unit file. Pure.

Keys and forms are those of systemd.unit(5), systemd.service(5), systemd.exec(5) and systemd.kill(5);
what is in none of these tables is not written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath

from clusterctl.services import ServiceRefusedError, ServiceSpec

_WORDS, _NUMBER, _PATH = r"[A-Za-z0-9-]+(?: [A-Za-z0-9-]+)*", r"[0-9]+", r"/.*"
KEY_FORMS: dict[str, dict[str, str]] = {
    "Unit": {"Description": r".+", "StartLimitIntervalSec": _NUMBER},
    "Service": {
        "Type": r"exec",
        "User": r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        "Group": r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        "ExecStart": r".+",
        "WorkingDirectory": _PATH,
        "Environment": r".+",
        "UMask": r"0[0-7]{3}",
        "StandardOutput": rf"append:{_PATH}",
        "StandardError": rf"append:{_PATH}",
        "RemainAfterExit": r"yes",
        "Restart": r"on-failure",
        "RestartSec": _NUMBER,
        "RestartPreventExitStatus": _WORDS,
        "KillMode": r"process|mixed",
        "TimeoutStopSec": _NUMBER,
        "OOMPolicy": r"continue",
    },
    "Install": {"WantedBy": r"multi-user\.target|default\.target"},
}
"""All that is ever written, by section; only Environment may stand there more than once."""
OF_A_SERVICE = {
    "RemainAfterExit": "yes",  # or systemd forgets how it ended, and whether it was told to
    "KillMode": "mixed",  # the process is told to end; what it leaves behind is killed
}


def systemd_unit(spec: ServiceSpec, others: Mapping[str, str] = OF_A_SERVICE) -> str:
    """A unit of the system when the spec names a user, else one of a user's own manager.

    StartLimitIntervalSec=0: it keeps on trying what may mend itself. OOMPolicy: a child that takes too
    much memory is the affair of its parent. Raises `ServiceRefusedError` for what cannot be written.
    """
    written = {"Description": _plain(spec.label), **others}
    sections = [
        "\n".join([f"[{section}]", *_lines(forms, [*_keys(spec), *written.items()])])
        for section, forms in KEY_FORMS.items()
    ]
    return "\n\n".join(sections) + "\n"


def _keys(spec: ServiceSpec) -> Iterator[tuple[str, str]]:
    yield "StartLimitIntervalSec", "0"
    yield "Type", "exec"
    if spec.user:
        yield "User", spec.user
    if spec.group:
        yield "Group", spec.group
    yield "ExecStart", " ".join(_quoted(word.replace("$", "$$")) for word in spec.argv)
    yield "WorkingDirectory", _plain(spec.folder)
    for key, value in spec.environ.items():
        yield "Environment", _quoted(f"{key}={value}")
    yield "UMask", f"{spec.umask:04o}"
    yield "StandardOutput", f"append:{_plain(spec.log)}"
    yield "StandardError", f"append:{_plain(spec.log)}"
    yield "Restart", "on-failure"
    yield "RestartSec", str(spec.throttle_s)
    yield "TimeoutStopSec", str(spec.stop_s)
    yield "OOMPolicy", "continue"
    yield "WantedBy", "multi-user.target" if spec.user else "default.target"


def _lines(forms: Mapping[str, str], pairs: list[tuple[str, str]]) -> Iterator[str]:
    """Those of a section, in the order of the table."""
    for key, form in forms.items():
        for value in (value for name, value in pairs if name == key):
            if not re.fullmatch(form, value) or not value.isprintable():
                raise ServiceRefusedError(f"{key}={value!r} cannot be written to a unit of systemd")
            yield f"{key}={value}"


def _plain(text: str | PurePath) -> str:
    return str(text).replace("%", "%%")


def _quoted(word: str) -> str:
    """As systemd.syntax(7) has it; words of harmless characters stay as they are."""
    word = word.replace("%", "%%")
    if re.fullmatch(r"[A-Za-z0-9_./:=@%$+,-]+", word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
