"""The page of all checks of doctor, generated from the checks themselves.

`python -P -m clusterctl.doctor_reference FILE` writes it; with `--check` it fails when FILE is not current.
"""

from __future__ import annotations

from clusterctl import checks_launchd, checks_mac
from clusterctl.doctor import CHECKS
from clusterctl.reference import write_or_check

_HEAD = """\
# Checks of `clusterctl doctor`

Written by `scripts/docs` from the checks themselves. What it is for, and how to use it:
[Operations](operations.md#when-something-is-wrong).

Every check is tried by a test that seeds its fault (`tests/clusterctl/test_checks.py`, and on a cluster that
runs `tests/fleet/test_doctor.py`). Those for macOS were tried on doubles of its tools, which are shaped after
manual pages and what others have logged. **Nothing was verified on a Mac by us**; `clusterctl doctor
--report` prints what your Mac's tools say, and such reports are welcome.

| check | level | what it finds | where | `--fix` | verified on a Mac |
|---|---|---|---|---|---|
"""


def page() -> str:
    """As the committed file has it."""
    macs = {check.id for check in (*checks_mac.CHECKS, *checks_launchd.CHECKS)} | {"network.privacy"}
    rows = (
        f"| `{check.id}` | {check.level} | {check.about} | {'macOS' if check.id in macs else 'any'}"
        f" | {'yes' if check.fixes else ''} | no |\n"
        for check in CHECKS
    )
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    write_or_check(page(), __doc__)
