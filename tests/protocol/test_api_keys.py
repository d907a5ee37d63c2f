"""API keys: what is kept of them, whose a given one is, and what of a file is refused."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protocol.addresses import Home
from protocol.api_keys import (
    ApiKey,
    KeyFile,
    KeyRing,
    hide_keys,
    new_secret,
    read_api_keys,
    refuse_open_gateways,
)
from protocol.config import GatewayConfig
from protocol.config_errors import ConfigError
from protocol.keyfiles import KeyFileError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, SECRET = new_secret()
ALICE = ApiKey(name="alice", secrets=(SECRET,), created=NOW)


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    home.keys.mkdir()
    return home


def write(home: Home, content: bytes, mode: int = 0o600) -> None:
    home.api_keys.write_bytes(content)
    home.api_keys.chmod(mode)


def test_a_key_is_known_and_not_kept():
    assert KeyRing([ALICE]).owner(KEY, NOW) == ALICE
    kept = msgspec.json.encode(KeyFile(keys=(ALICE,))).decode()
    assert KEY.removeprefix(SECRET.prefix) not in kept
    assert KEY.startswith(SECRET.prefix)


@given(st.one_of(st.text(), st.integers(0, len(KEY) - 1).map(lambda cut: KEY[:cut]), st.just(KEY + "x")))
def test_what_is_no_key_belongs_to_nobody(given_key: str):
    assert KeyRing([ALICE]).owner(given_key, NOW) is None
    assert KeyRing([]).owner(given_key, NOW) is None


def test_a_key_is_good_until_it_expires():
    ring = KeyRing([replace(ALICE, expires=NOW + timedelta(hours=1))])
    assert ring.owner(KEY, NOW) is not None
    assert ring.owner(KEY, NOW + timedelta(hours=1)) is None


def test_a_key_that_was_rotated_out_is_good_for_a_while_and_the_new_one_longer():
    newer, secret = new_secret()
    old = replace(SECRET, expires=NOW + timedelta(hours=1))
    ring = KeyRing([replace(ALICE, secrets=(old, secret))])
    for hours, good in ((0, [True, True]), (1, [False, True])):
        at = NOW + timedelta(hours=hours)
        assert [ring.owner(key, at) is not None for key in (KEY, newer)] == good


@pytest.mark.parametrize(
    ("models", "names", "allowed"),
    [
        ((), ("m",), True),
        (("m",), ("m",), True),
        (("m",), ("n", "m"), True),
        (("m",), ("n",), False),
        (("q*",), ("qwen",), True),
        (("q*",), ("Qwen",), False),
    ],
)
def test_the_models_of_a_key(models, names, allowed):
    assert replace(ALICE, models=models).allows(names) is allowed


def test_a_file_is_read_as_it_was_written(home):
    file = KeyFile(keys=(replace(ALICE, priority="batch", expires=NOW),))
    write(home, msgspec.json.encode(file))
    assert read_api_keys(home) == file


def test_no_file_is_none_and_an_empty_list_is_one(home):
    assert read_api_keys(home) is None
    write(home, b'{"keys": []}')
    assert read_api_keys(home) == KeyFile()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"version": 2}',
        b'{"keys": [{"name": "a"}]}',
        # One of a later version may be a restriction.
        msgspec.json.encode({"keys": [{**msgspec.to_builtins(ALICE), "addresses": ["10.0.0.1"]}]}),
        msgspec.json.encode({"keys": [{**msgspec.to_builtins(ALICE), "name": "a b"}]}),
    ],
)
def test_a_file_that_is_none_of_this_version_is_refused_with_its_path(home, content):
    write(home, content)
    with pytest.raises(KeyFileError, match=str(home.api_keys)):
        read_api_keys(home)


def test_a_file_that_is_away_for_a_while_does_not_open_the_gateway(home):
    home.api_keys.symlink_to(home.path / "not-mounted")
    with pytest.raises(KeyFileError, match="link to nothing"):
        read_api_keys(home)
    home.api_keys.unlink()
    home.keys.rmdir()
    home.keys.write_bytes(b"")
    with pytest.raises(KeyFileError, match="cannot be read"):
        read_api_keys(home)


def test_a_file_that_others_may_read_is_refused(home):
    write(home, b"{}", 0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_api_keys(home)
    assert stat.S_IMODE(home.api_keys.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("http", "told", "keys", "refused"),
    [
        ("127.0.0.1:8000", False, None, False),
        ("0.0.0.0:8000", False, None, True),
        ("10.0.0.5:8000", False, None, True),
        ("0.0.0.0:8000", True, None, False),
        ("0.0.0.0:8000", False, KeyFile(), False),
    ],
)
def test_a_gateway_that_all_could_use_is_refused(http, told, keys, refused):
    gateway = GatewayConfig(id="gw", http=http, open_without_keys=told)
    if not refused:
        refuse_open_gateways([gateway], keys)
        return
    with pytest.raises(ConfigError, match="clusterctl keys create"):
        refuse_open_gateways([gateway], keys)


def test_keys_are_hidden_in_texts():
    assert (
        hide_keys(f"the model '{KEY}' and {KEY}.") == f"the model '{SECRET.prefix}-…' and {SECRET.prefix}-…."
    )
    assert hide_keys("sf-1 is a worker") == "sf-1 is a worker"
