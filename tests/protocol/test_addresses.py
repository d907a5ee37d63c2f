from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.addresses import (
    MAX_SOCKET_PATH,
    AddressError,
    Home,
    endpoint,
    is_loopback,
    models_folder,
    split_http,
)


def test_the_home_comes_from_the_environment():
    assert Home.from_environment({"STUDIOFLEET_HOME": "/srv/fleet"}).path == Path("/srv/fleet")
    assert Home.from_environment({}).path == Path("~/.studiofleet").expanduser()


def test_the_models_folder_comes_from_the_environment():
    assert models_folder({"STUDIOFLEET_MODELS": "/models"}) == Path("/models")
    assert models_folder({}) == Path("~/.cache/studiofleet/models").expanduser()


def test_socket_paths_stay_short_whatever_the_home():
    for length in (1, 50, 60, 200):
        home = Home(Path("/" + "h" * length))
        path = home.socket("a" * 32)
        assert len(os.fsencode(path)) <= MAX_SOCKET_PATH
    assert Home(Path("/srv/fleet")).socket("gw-1") == Path("/srv/fleet/run/gw-1.sock")


def test_homes_with_long_paths_do_not_share_sockets():
    first, second = (Home(Path("/" + letter * 150)).socket("gw-1") for letter in "ab")
    assert first != second


def test_an_endpoint_is_a_socket_of_the_home_or_tcp():
    home = Home(Path("/srv/fleet"))
    assert endpoint("ipc", "gw-1", home) == "ipc:///srv/fleet/run/gw-1.sock"
    assert endpoint("tcp://127.0.0.1:5555", "gw-1", home) == "tcp://127.0.0.1:5555"


@pytest.mark.parametrize(
    "listen", ["", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:70000", "udp://h:1"]
)
def test_other_endpoints_are_refused(listen: str):
    with pytest.raises(AddressError, match="is no address"):
        endpoint(listen, "gw-1", Home(Path("/srv")))


def test_http_addresses():
    assert split_http("127.0.0.1:8000") == ("127.0.0.1", 8000)
    assert split_http("[::1]:0") == ("::1", 0)
    for wrong in ("8000", ":8000", "host:", "host:port", "host:99999"):
        with pytest.raises(AddressError, match="write HOST:PORT"):
            split_http(wrong)


def test_loopback():
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "10.0.0.1", "::", "127.0.0.1.evil.org"))
