import stat

import pytest

from protocol.addresses import Home
from protocol.keyfiles import KeyFileError
from protocol.wire_keys import (
    allow,
    allowed_path,
    create_wire_secret,
    is_key,
    pin_gateway_key,
    read_allowed,
    read_gateway_key,
    read_wire_secret,
    secret_path,
)

KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
OTHER = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.mark.parametrize("text", ["", KEY[:-1], KEY + "0", "~" + KEY[1:], "#" * 40, KEY + "\n"])
def test_what_is_no_key_is_known_without_zeromq(text):
    assert is_key(KEY)
    assert is_key("0" * 40)
    assert not is_key(text)


def test_a_secret_is_made_once_for_its_owner_alone(home):
    assert create_wire_secret(home, "w-1", KEY)
    assert not create_wire_secret(home, "w-1", OTHER)
    assert read_wire_secret(home, "w-1") == KEY
    assert stat.S_IMODE(secret_path(home, "w-1").stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_path(home, "w-1").parent.stat().st_mode) == 0o700
    assert [path.name for path in secret_path(home, "w-1").parent.iterdir()] == ["w-1.key"]


def test_a_secret_that_is_missing_or_open_or_none_is_told_with_the_cure(home):
    with pytest.raises(KeyFileError, match="clusterctl worker-key show w-1"):
        read_wire_secret(home, "w-1")
    create_wire_secret(home, "w-1", KEY)
    secret_path(home, "w-1").chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_wire_secret(home, "w-1")
    secret_path(home, "w-1").chmod(0o600)
    secret_path(home, "w-1").write_text("nonsense")
    with pytest.raises(KeyFileError, match="no key of 40 characters"):
        read_wire_secret(home, "w-1")


def test_a_gateways_key_is_pinned_and_replaced(home):
    with pytest.raises(KeyFileError, match="clusterctl worker-key pin gw-1 KEY"):
        read_gateway_key(home, "gw-1")
    pin_gateway_key(home, "gw-1", KEY)
    pin_gateway_key(home, "gw-1", OTHER)
    assert read_gateway_key(home, "gw-1") == OTHER


def test_the_list_says_who_may_come_with_which_key(home):
    assert read_allowed(home).keys == {}
    assert not allow(home, "w-1", None)
    assert allow(home, "w-1", KEY)
    assert allow(home, "w-2", KEY)
    assert not allow(home, "w-2", KEY)
    assert read_allowed(home).ids_of(KEY) == ["w-1", "w-2"]
    assert allow(home, "w-1", OTHER)
    assert read_allowed(home).keys == {"w-1": OTHER, "w-2": KEY}
    assert allow(home, "w-2", None)
    assert not read_allowed(home).has(KEY)
    assert stat.S_IMODE(allowed_path(home).stat().st_mode) == 0o600


@pytest.mark.parametrize("line", ["w-1", f"w-1 {KEY[1:]}", f"../w {KEY}", f"w-1  {KEY} more"])
def test_a_list_with_a_fault_is_refused_with_its_line(home, line):
    allow(home, "w-0", KEY)
    with allowed_path(home).open("a") as file:
        file.write(f"\n# by hand\n{line}\n")
    with pytest.raises(KeyFileError, match="line 5"):
        read_allowed(home)
    allowed_path(home).write_text(f"w-1  {KEY}\n")
    assert read_allowed(home).keys == {"w-1": KEY}
