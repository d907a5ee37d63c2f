"""`clusterctl worker-key`, and the pairs that other commands make."""

import json

import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from clusterctl.wire_keys import ensure_pairs, public_key
from protocol.addresses import Home
from protocol.configfile import read_config
from protocol.wire_keys import allowed_path, read_allowed, read_gateway_key, read_wire_secret, secret_path

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture
def run(home, monkeypatch):
    monkeypatch.setenv("STUDIOFLEET_HOME", str(home.path))

    def invoke(*arguments, code=0):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return result.output

    return invoke


def test_init_makes_pairs_for_the_gateway_and_the_workers_and_allows_these(run, home):
    run("init", "--workers", "2")
    assert {path.name for path in secret_path(home, "x").parent.iterdir()} == {
        "gw-1.key",
        "gw-1.pub",
        "smol-1.key",
        "smol-2.key",
    }
    assert read_allowed(home).keys == {name: public_key(home, name) for name in ("smol-1", "smol-2")}
    assert read_gateway_key(home, "gw-1") == public_key(home, "gw-1")
    for path in (*secret_path(home, "x").parent.iterdir(), allowed_path(home)):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_worker_that_was_revoked_is_not_allowed_again_by_the_next_start(run, home):
    run("init")
    run("worker-key", "revoke", "smol-1")
    ensure_pairs(home, read_config(home.config))
    assert read_allowed(home).keys == {}
    assert "unchanged" in run("worker-key", "revoke", "smol-1")


def test_a_worker_that_is_removed_takes_its_key_along(run, home):
    run("init")
    run("remove-worker", "smol-1")
    assert read_allowed(home).keys == {}
    assert not secret_path(home, "smol-1").exists()


def test_keys_of_other_machines_are_shown_allowed_and_pinned(run, home):
    run("init", "--workers", "0")
    shown = run("worker-key", "show", "studio-2").strip()
    assert shown == public_key(home, "studio-2")
    told = json.loads(run("worker-key", "show", "studio-2", "--json"))
    assert told == {"id": "studio-2", "key": shown}
    assert shown != read_wire_secret(home, "studio-2")
    assert "studio-2 may come" in run("worker-key", "allow", "studio-2", shown)
    assert "unchanged" in run("worker-key", "allow", "studio-2", shown)
    run("worker-key", "pin", "gw-1", KEY)
    assert json.loads(run("worker-key", "list", "--json")) == [
        {"id": "gw-1", "kind": "gateway", "key": KEY},
        {"id": "studio-2", "kind": "worker", "key": shown},
    ]
    assert f"worker studio-2 {shown}" in run("worker-key", "list")


def test_what_is_no_id_or_no_key_is_refused(run):
    assert "is no id" in run("worker-key", "show", "../x", code=3)
    assert "is no public key" in run("worker-key", "allow", "w-1", KEY[1:], code=3)
    assert "is no public key" in run("worker-key", "pin", "gw-1", "x", code=3)


def test_a_list_with_a_fault_is_told_with_its_line(run, home):
    run("init")
    allowed_path(home).write_text("nonsense\n")
    assert "line 1" in run("worker-key", "list", code=3)
