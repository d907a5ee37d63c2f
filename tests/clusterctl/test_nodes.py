"""What is asked of a machine, what is sent there, and what it is told."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl import node_side
from clusterctl.edits import EditError
from clusterctl.node_edits import add_node, remove_node
from clusterctl.node_facts import FactsError, NodeFacts, read_facts, refusal
from clusterctl.node_workers import node_config, refuse_unreachable
from clusterctl.operations import RefusedError
from clusterctl.wheelhouse import read_wheelhouse
from protocol.config import parse

MAC = """\
system=Darwin
machine=arm64
user=fleet
release=26.5.1 (25F80)
chip=Apple M3 Ultra
memory=274877906944
writable=yes
ours=yes
occupied=yes
free_kb=943718400
current=versions/0.1.0-92ac11f2
version=0.1.0-92ac11f2
version=0.0.9-00000000
python=3.13 /opt/homebrew/opt/python@3.13/bin/python3.13
python=3.12 /usr/local/bin/python3.12
end=yes
"""
"""Synthetic: what the script would print on a Mac Studio."""
LEAST = """\
version = 1  # a comment

[gateway]
id = "gw-1"
http = "127.0.0.1:8000"
listen = ["ipc", "tcp://10.0.0.5:5555"]
"""
NODE = {"name": "studio-2", "host": "studio-2.local", "memory_budget_mb": 9000}


def facts(**changed: object) -> NodeFacts:
    return replace(read_facts(MAC), **changed)  # type: ignore[arg-type]


def test_the_facts_of_a_machine_are_read():
    mac = facts()
    assert mac.words == "Apple M3 Ultra, 256 GiB, macOS 26.5.1 (25F80) arm64"
    assert (mac.current, mac.versions) == ("0.1.0-92ac11f2", ("0.1.0-92ac11f2", "0.0.9-00000000"))
    assert (mac.free_gib, mac.user) == (900.0, "fleet")
    assert mac.python_for("3.12") == "/usr/local/bin/python3.12"
    assert mac.python_for(None) == "/opt/homebrew/opt/python@3.13/bin/python3.13"
    assert mac.python_for("3.11") is None


def test_what_a_machine_does_not_tell_is_unknown_and_no_reason_to_refuse_it():
    mac = read_facts(MAC.replace("memory=274877906944\n", "").replace("free_kb=943718400", "free_kb=n/a"))
    assert mac.words == "Apple M3 Ultra, memory unknown, macOS 26.5.1 (25F80) arm64"
    assert (mac.memory_gib, mac.free_gib) == (None, None)
    assert refusal(mac, "/opt/x", "3.13") == ""
    assert [caution.partition(";")[0] for caution in mac.cautions] == [
        "it does not tell how much room its disk has",
        "it does not tell how much memory it has",
    ]


@pytest.mark.parametrize("text", ["", "This account is not available.\n", MAC.replace("end=yes\n", "")])
def test_an_answer_that_is_no_answer_is_told(text: str):
    with pytest.raises(FactsError, match="does not answer as a machine does"):
        read_facts(text)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"machine": "x86_64"}, "needs Apple silicon"),
        ({"release": "13.6 (22G120)"}, "needs macOS 14 or later"),
        ({"system": "Linux", "machine": "x86_64", "release": "6.1"}, ""),
        ({"ours": False}, "has other things in it"),
        ({"ours": False, "occupied": False}, ""),
        ({"writable": False}, "sudo install -d -o fleet /opt/x"),
        ({"free_gib": 1.5}, "has 1.5 GiB free"),
        ({"pythons": (("3.11", "/usr/bin/python3.11"),)}, r"no Python 3.13 (found: /usr/bin/python3.11)"),
    ],
)
def test_a_machine_that_is_not_fit_is_refused_in_words(changed: dict[str, object], words: str):
    said = refusal(facts(**changed), "/opt/x", "3.13")
    assert words in said
    assert bool(said) == bool(words)


def test_a_node_is_added_and_removed_and_comments_stay():
    added = add_node(LEAST, NODE)
    assert parse(added).node_named("studio-2").memory_budget_mb == 9000
    assert add_node(added, NODE) == added
    with pytest.raises(EditError, match="a node 'studio-2' already, and it differs"):
        add_node(added, {**NODE, "host": "10.0.0.9"})
    assert remove_node(added, "studio-2").rstrip() == LEAST.rstrip()
    assert remove_node(LEAST, "studio-2") == LEAST


def test_a_node_is_told_no_more_than_it_needs():
    text = add_node(LEAST, NODE) + "".join(
        f'[[workers]]\nid = "w-{n}"\nmodel = "/m/a"\nnode = "{node}"\nmax_num_seqs = 4\n'
        for n, node in enumerate(("local", "studio-2"))
    )
    text += '[traces]\nendpoint = "http://10.0.0.5:4318/v1/traces"\nratio = 0.5\n'
    told = parse(node_config(parse(text), "studio-2"))
    assert told.traces == parse(text).traces
    assert [(w.id, w.node, w.max_num_seqs) for w in told.workers] == [("w-1", "local", 4)]
    assert [(g.id, g.node, g.listen) for g in told.all_gateways] == [
        ("gw-1", "elsewhere", ("tcp://10.0.0.5:5555",))
    ]
    assert told.residency.memory_budget_mb == 9000
    assert (told.nodes, told.local_gateways) == ((), ())


@pytest.mark.parametrize(
    ("listen", "words"),
    [('"ipc"', "takes no workers of other machines"), ('"tcp://0.0.0.0:5555"', "names no machine")],
)
def test_a_gateway_that_nodes_could_not_reach_is_named(listen: str, words: str):
    with pytest.raises(RefusedError, match=words):
        refuse_unreachable(parse(LEAST.replace('"ipc", "tcp://10.0.0.5:5555"', listen)))


def wheels(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        (folder / f"{name}.whl").write_text(name)
    return folder


def test_a_wheelhouse_says_its_version_and_its_python(tmp_path: Path):
    ours = "studiofleet-1.2.3-py3-none-any"
    house = read_wheelhouse(
        wheels(tmp_path / "a", ours, "x-1-cp313-cp313-macosx_14_0_arm64", "y-1-cp39-abi3-any")
    )
    assert (house.version[:-8], house.python) == ("1.2.3-", "3.13")
    other = read_wheelhouse(wheels(tmp_path / "b", ours))
    assert other.version != house.version
    assert other.python is None


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "has no wheel of Studiofleet"),
        (("studiofleet-1-py3-none-any", "studiofleet-2-py3-none-any"), "has 2 wheels of Studiofleet"),
        (
            ("studiofleet-1-py3-none-any", "x-1-cp312-cp312-any", "x-1-cp313-cp313-any"),
            "Python 3.12 and 3.13",
        ),
    ],
)
def test_a_folder_that_is_no_wheelhouse_is_refused(tmp_path: Path, names: tuple[str, ...], words: str):
    with pytest.raises(RefusedError, match=words):
        read_wheelhouse(wheels(tmp_path / "w", *names))


def test_wheels_that_were_damaged_on_their_way_leave_nothing(tmp_path: Path):
    house = read_wheelhouse(wheels(tmp_path / "w", "studiofleet-1-py3-none-any"))
    (tmp_path / "w" / "studiofleet-1-py3-none-any.whl").write_text("changed")
    for packed, digest, words in [
        (house.packed(), house.digest, "whl is not as it was sent"),
        (house.packed(), "0" * 64, "is not the one that was sent"),
    ]:
        with pytest.raises(ValueError, match=words):
            node_side.install(tmp_path / "prefix", house.version, digest, io.BytesIO(packed))
    assert list((tmp_path / "prefix" / "versions").iterdir()) == []
    assert not (tmp_path / "prefix" / "current").exists()
