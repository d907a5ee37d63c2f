"""Which addresses belong to the public internet. Pure.

The tables are IANA's registries of special-purpose addresses (RFC 6890 and its updates, looked up in 2026),
written out because what `ipaddress` says differs between Python's versions.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

Address = IPv4Address | IPv6Address

_NOT_PUBLIC = tuple(
    ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; some clouds have their metadata there
        "127.0.0.0/8",
        "168.63.129.16/32",  # one cloud's host, from within its machines
        "169.254.0.0/16",  # link-local, and most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments, Teredo among them, which holds an IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds an IPv4 address
        "3fff::/20",  # documentation
    )
)
_GLOBAL_UNICAST = ip_network("2000::/3")
_NAT64 = ip_network("64:ff9b::/96")


def plain(address: str) -> Address:
    """The address that is meant: of one that maps an IPv4 address, that one. Raises `ValueError`."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def meanings(address: Address) -> tuple[Address, ...]:
    """An address, and the IPv4 address that a translator (NAT64) or a 6to4 relay makes of it."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return address, IPv4Address(address.packed[-4:])
        if address.sixtofour is not None:
            return address, address.sixtofour
    return (address,)


def is_public(address: Address) -> bool:
    """Whether everybody on the internet means the same by it."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if address in _NAT64:
            return is_public(IPv4Address(address.packed[-4:]))
        if address not in _GLOBAL_UNICAST:
            return False
    return not any(address in network for network in _NOT_PUBLIC)
