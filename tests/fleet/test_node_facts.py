"""What a Mac-shaped machine tells of itself when it becomes a node. Not verified on a Mac."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.node_facts import ASK, NodeFacts, read_facts
from clusterctl.runner import LocalRunner
from tests.fleet.mac_shaped import TOOLS

pytestmark = pytest.mark.integration


def told(folder: Path, **state: str) -> NodeFacts:
    """`state` are the variables MAC_… of the doubles, without MAC_."""
    given = [f"MAC_{name}={value}" for name, value in {"FOLDER": str(folder), **state}.items()]
    words = ["env", f"PATH={TOOLS}:/usr/bin:/bin:/usr/sbin:/sbin", *given, "/bin/sh", "-s", "--", str(folder)]
    return read_facts(LocalRunner().run(words, stdin=ASK.encode()).out)


def test_a_mac_that_is_set_up_for_it(tmp_path: Path):
    facts = told(tmp_path, UPDATES="0")
    assert facts.words == "Apple M3 Ultra, 256 GiB, macOS 26.5.2 (25F84) arm64"
    assert facts.power_words == "sleep 0, autorestart 1, FileVault off, automatic updates off"
    assert facts.cautions == ()


def test_a_mac_that_is_as_it_was_bought(tmp_path: Path):
    facts = told(tmp_path, SLEEP="10", AUTORESTART="0", FILEVAULT="On", UPDATES="1")
    assert facts.power_words == "sleep 10, autorestart 0, FileVault on, automatic updates on"
    assert len(facts.cautions) == 4


def test_a_mac_on_which_nobody_chose_about_updates(tmp_path: Path):
    assert told(tmp_path).power_words == "sleep 0, autorestart 1, FileVault off"
