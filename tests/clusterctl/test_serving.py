import logging
from dataclasses import replace

import pytest

from clusterctl import supervision
from clusterctl.serving import Announcement, is_settled, serving_line
from clusterctl.supervision import Kind, Phase, Process, Spec
from protocol.addresses import Home
from protocol.config import parse

CONFIG = parse("""
version = 1
[gateway]
id = "gw"
http = "127.0.0.1:8000"
[[workers]]
id = "a"
model = "m"
engine = "fake"
aliases = ["default"]
[[workers]]
id = "b"
model = "m"
engine = "fake"
""")


def process(process_id, *, ready=False, **fields):
    kind = Kind.GATEWAY if process_id == "gw" else Kind.WORKER
    spec = Spec(process_id, kind, 1.0, "d")
    running = Process(spec=spec, phase=Phase.RUNNING, pid=7, ready_at=1.0 if ready else None)
    return replace(running, **fields)


def all_of(*processes):
    return {one.spec.id: one for one in processes}


@pytest.mark.parametrize(
    ("worker", "settled"),
    [
        ({"ready": True}, True),
        ({}, False),
        ({"phase": Phase.PARKED, "pid": None}, True),
        ({"phase": Phase.WAITING, "pid": None}, False),
        ({"wanted": False}, True),
    ],
)
def test_settled_is_what_awaits_nothing(worker, settled):
    assert is_settled(all_of(process("gw", ready=True), process("a", **worker))) is settled


def test_without_a_gateway_nothing_serves():
    assert not is_settled({})
    assert not is_settled(all_of(process("gw"), process("a", ready=True)))


def test_it_is_said_once_and_again_after_a_restart(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    home = Home(tmp_path)
    home.run.mkdir()
    home.http_url("gw").write_text("http://127.0.0.1:8000\n")
    announcement = Announcement(home)
    serving = all_of(process("gw", ready=True), process("a", ready=True), process("b", ready=True))
    for _ in range(3):
        announcement.look(serving, CONFIG)
    assert caplog.messages == ["http://127.0.0.1:8000 serves m, default"]
    announcement.look(serving | all_of(process("a")), CONFIG)
    announcement.look(serving, CONFIG)
    assert len(caplog.messages) == 2


def test_who_does_not_run_is_named(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    parked = supervision.exited(process("a"), 78, "no folder", 1.0)
    Announcement(Home(tmp_path)).look(all_of(process("gw", ready=True), parked), CONFIG)
    assert caplog.messages[-1].startswith("gw serves no model yet")
    assert "a does not run" in caplog.messages[-1]


def test_models_and_addresses_stand_in_one_line():
    assert serving_line(["http://a", "http://b"], ["m", "n"], []) == "http://a, http://b serves m, n"
