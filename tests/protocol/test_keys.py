import stat

import pytest

from protocol.addresses import Home
from protocol.keyfiles import KeyFileError
from protocol.keys import ensure_admin_key, read_admin_key


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def test_a_key_is_made_once_for_its_owner_alone(home):
    assert ensure_admin_key(home)
    key = read_admin_key(home)
    assert len(key) >= 43
    assert stat.S_IMODE(home.admin_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.keys.stat().st_mode) == 0o700
    assert not ensure_admin_key(home)
    assert read_admin_key(home) == key
    assert [path.name for path in home.keys.iterdir()] == ["admin.key"]


def test_two_homes_have_different_keys(home, tmp_path):
    other = Home(tmp_path / "other")
    ensure_admin_key(home)
    ensure_admin_key(other)
    assert read_admin_key(home) != read_admin_key(other)


def test_no_key_is_told_with_the_cure(home):
    with pytest.raises(KeyFileError, match="clusterctl up"):
        read_admin_key(home)


def test_a_key_that_others_may_read_is_not_used(home):
    ensure_admin_key(home)
    home.admin_key.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_admin_key(home)


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe" * 40])
def test_what_is_no_key_is_not_used(home, content):
    ensure_admin_key(home)
    home.admin_key.write_bytes(content)
    with pytest.raises(KeyFileError):
        read_admin_key(home)
