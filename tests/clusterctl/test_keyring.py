"""API keys made, revoked and rotated: keys in, keys out; and the commands over a home."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from clusterctl.cli import cli
from clusterctl.edits import EditError
from clusterctl.keyring import (
    Keys,
    change_keys,
    expiry,
    span,
    unknown_models,
    with_key,
    with_new_secret,
    without_key,
)
from protocol.addresses import Home
from protocol.api_keys import KeyRing, new_secret, read_api_keys
from protocol.api_keys import now as time_now
from protocol.config import parse

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def keys(*names: str):
    found: Keys = ()
    for name in names:
        found = with_key(found, {"name": name}, new_secret()[1], NOW)
    return found


def test_a_name_stands_for_one_key():
    with pytest.raises(EditError, match="rotate alice"):
        with_key(keys("alice"), {"name": "alice"}, new_secret()[1], NOW)


@pytest.mark.parametrize(
    "wanted", [{"name": ""}, {"name": "a b"}, {"name": "a\n"}, {"name": "a", "max_concurrent": 0}]
)
def test_a_value_that_is_none_is_refused(wanted):
    with pytest.raises(EditError, match="the key: "):
        with_key((), wanted, new_secret()[1], NOW)


def test_one_is_revoked_and_the_others_stay():
    assert [key.name for key in without_key(keys("a", "b", "c"), "b")] == ["a", "c"]
    with pytest.raises(EditError, match="known are: a"):
        without_key(keys("a"), "b")


def test_a_rotated_key_has_an_end_and_those_that_ended_go():
    first, secret = new_secret()
    found = with_key((), {"name": "a", "max_concurrent": 3}, secret, NOW)
    second, secret = new_secret()
    found = with_new_secret(found, "a", secret, NOW + HOUR, NOW)
    assert [KeyRing(found).owner(key, NOW) for key in (first, second)] == [found[0], found[0]]
    assert KeyRing(found).owner(first, NOW + HOUR) is None
    third, secret = new_secret()
    found = with_new_secret(found, "a", secret, NOW + 2 * HOUR, NOW + 2 * HOUR)
    ring = KeyRing(found)
    assert [ring.owner(key, NOW + 2 * HOUR) is None for key in (first, second, third)] == [True, True, False]
    assert (len(found[0].secrets), found[0].max_concurrent) == (1, 3)


def test_a_longer_overlap_does_not_bring_back_what_was_to_end_sooner():
    first, secret = new_secret()
    found = with_key((), {"name": "a"}, secret, NOW)
    found = with_new_secret(found, "a", new_secret()[1], NOW + HOUR, NOW)
    found = with_new_secret(found, "a", new_secret()[1], NOW + 9 * HOUR, NOW)
    assert KeyRing(found).owner(first, NOW + HOUR) is None


def test_spans_and_dates():
    assert span("1.5h") == timedelta(minutes=90)
    assert expiry("4w", NOW) == NOW + timedelta(days=28)
    assert expiry("2027-01-31T18:00+01:00", NOW) == datetime(2027, 1, 31, 17, tzinfo=UTC)
    for text in ("soon", "-1d", "2025-01-01T00:00+00:00"):
        with pytest.raises(EditError, match=r"is no time|is past"):
            expiry(text, NOW)
    with pytest.raises(EditError, match="is no span"):
        span("2027-01-31")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("STUDIOFLEET_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(cli, ("keys", *arguments))
    assert result.exit_code == code, result.output
    return result


def test_a_key_is_made_shown_once_listed_rotated_and_revoked(home):
    made = run(
        "create", "alice", "--model", "q*", "--model", "m", "--tokens-per-minute", "9", "--expires", "1d"
    )
    key = made.stdout.strip()
    assert len(key.splitlines()) == 1
    assert "the first" in made.stderr
    assert home.api_keys.stat().st_mode & 0o777 == 0o600
    assert key not in home.api_keys.read_text()
    assert "the first" not in run("create", "bob", "--priority", "batch").stderr

    listed = json.loads(run("list", "--json").stdout)
    assert listed["required"] is True
    alice, bob = listed["keys"]
    assert (alice["models"], alice["tokens_per_minute"], alice["valid"]) == (["q*", "m"], 9, True)
    assert (bob["priority"], bob["expires"], bob["requests_per_minute"]) == ("batch", None, None)
    shown = run("list").stdout
    for word in ("alice", "bob", key[:11], "q*, m", "batch", "never"):
        assert word in shown
    assert "sha256" not in json.dumps(listed)

    newer = run("rotate", "alice", "--overlap", "1h").stdout.strip()
    file = read_api_keys(home)
    assert file is not None
    owners = [KeyRing(file.keys).owner(k, time_now()) for k in (key, newer)]
    assert [owner.name for owner in owners if owner] == ["alice", "alice"]

    run("revoke", "bob")
    assert "no key is left" in run("revoke", "alice").stderr
    assert json.loads(run("list", "--json").stdout) == {"required": True, "keys": []}


def test_without_any_key_the_list_says_so(home):
    assert "none is asked for" in run("list").stdout
    assert json.loads(run("list", "--json").stdout) == {"required": False, "keys": []}


def test_what_is_wrong_is_refused_and_changes_nothing(home):
    run("create", "alice")
    before = home.api_keys.read_text()
    run("create", "alice", code=3)
    assert "a name has 1 to 64 letters" in run("create", "a b", code=3).output
    run("create", "bob", "--expires", "soon", code=3)
    run("revoke", "bob", code=3)
    run("rotate", "bob", code=3)
    run("create", "bob", "--max-concurrent", "0", code=2)
    assert home.api_keys.read_text() == before
    home.api_keys.write_text("{")
    assert "put an older copy" in run("create", "bob", code=3).output


def test_a_file_of_keys_that_is_a_link_stays_one(tmp_path):
    home = Home(tmp_path / "home")
    home.keys.mkdir(parents=True, mode=0o700)
    home.path.chmod(0o700)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text('{"version": 1, "keys": []}')
    elsewhere.chmod(0o600)
    home.api_keys.symlink_to(elsewhere)
    change_keys(home, lambda _keys: keys("alice"))
    assert home.api_keys.is_symlink()
    assert '"alice"' in elsewhere.read_text()


def test_models_that_nobody_serves_are_told():
    config = parse(
        'version = 1\n[gateway]\nid = "g"\nhttp = "127.0.0.1:0"\n'
        '[[workers]]\nid = "w"\nmodel = "qwen3"\nengine = "fake"\naliases = ["default"]\n'
        '[[models]]\nname = "qwen3"\naliases = ["mine"]\npatterns = ["claude-*"]\n'
    )
    known = ["qwen3", "default", "mine", "claude-*", "claude-x", "qwen*"]
    assert unknown_models([*known, "nosuch", "gpt-*"], config) == ["nosuch", "gpt-*"]


def test_a_key_for_a_model_that_is_not_configured_is_made_with_a_note(tmp_path):
    environ = {"STUDIOFLEET_HOME": str(tmp_path / "home")}
    run = CliRunner()
    assert run.invoke(cli, ["init", "--workers", "0"], env=environ).exit_code == 0
    made = run.invoke(cli, ["keys", "create", "alice", "--model", "nosuch"], env=environ)
    assert made.exit_code == 0
    assert "no configured model has the name nosuch" in made.stderr
    pinned = run.invoke(cli, ["worker-key", "pin", "nosuch", "a" * 40], env=environ)
    assert pinned.exit_code == 0
    assert "no configured gateway has the id nosuch" in pinned.stderr
