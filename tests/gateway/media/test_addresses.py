import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.media.addresses import is_public, plain

PRIVATE = [
    *(
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
    ),
    *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1"),
    *(
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
    ),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1", "fe80::1"),
    *("fe80::1%lo", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "100::1", "2001::1", "2001:db8::1"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2002:7f00:1::", "2002:c0a8:101::1", "3fff::1", "5f00::1"),
    *("64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "4000::1"),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.1.1"),
    *("223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700:4700::1111", "2a00:1450::1"),
]


@pytest.mark.parametrize("address", PRIVATE)
def test_these_are_not_of_the_public_internet(address):
    assert not is_public(plain(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_these_are(address):
    assert is_public(plain(address))


def test_a_mapped_address_is_the_one_that_it_maps():
    assert plain("::ffff:192.0.2.7") == ipaddress.ip_address("192.0.2.7")


@given(st.ip_addresses(v=4))
def test_what_the_standard_library_does_not_take_for_global_is_not_public(address):
    assert not is_public(address) or (address.is_global and not address.is_multicast)


@given(st.ip_addresses(v=6, network="2000::/3"))
def test_nor_of_the_longer_addresses(address):
    assert not is_public(address) or address.is_global


@given(st.ip_addresses(v=4))
def test_no_form_of_a_private_address_is_public(address):
    if not is_public(address):
        for form in (f"::{address}", f"::ffff:{address}", f"64:ff9b::{address}"):
            assert not is_public(plain(form))
        assert not is_public(ipaddress.IPv6Address((0x2002 << 112) | int(address) << 80))
