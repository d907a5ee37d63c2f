"""The key pairs of a home's gateways and workers, for tcp: made where there is none, shown, forgotten."""

from __future__ import annotations

from protocol.addresses import Home
from protocol.config import ClusterConfig
from protocol.wire_keys import (
    allow,
    create_wire_secret,
    pin_gateway_key,
    public_path,
    read_allowed,
    read_gateway_key,
    read_wire_secret,
    secret_path,
)


def ensure_pairs(home: Home, config: ClusterConfig) -> None:
    """Each gateway and worker of this machine has a pair, and a worker with a new one may come with it.

    Raises `AddressError`, `KeyFileError` and `OSError`.
    """
    for gateway in config.local_gateways:
        if not public_path(home, gateway.id).exists() and _create(home, gateway.id):
            pin_gateway_key(home, gateway.id, public_key(home, gateway.id))
    for worker in config.local_workers:
        if _create(home, worker.id):
            allow(home, worker.id, public_key(home, worker.id))


def public_key(home: Home, process_id: str) -> str:
    """What the others know of the process's pair, which is made where there is none.

    Raises `AddressError`, `KeyFileError` and `OSError`.
    """
    import zmq  # noqa: PLC0415 (most commands need none of it)

    _create(home, process_id)
    return zmq.curve_public(read_wire_secret(home, process_id).encode()).decode()


def forget_worker(home: Home, worker_id: str) -> None:
    """It may not come any more, and another worker of that id gets another pair.

    Raises `AddressError`, `KeyFileError` and `OSError`.
    """
    allow(home, worker_id, None)
    secret_path(home, worker_id).unlink(missing_ok=True)


def _create(home: Home, process_id: str) -> bool:
    if secret_path(home, process_id).exists():
        return False
    import zmq  # noqa: PLC0415 (most commands need none of it)

    public, secret = zmq.curve_keypair()
    while public.startswith(b"-"):  # a command would take it for an option
        public, secret = zmq.curve_keypair()
    return create_wire_secret(home, process_id, secret.decode())


def known_keys(home: Home, config: ClusterConfig) -> list[dict[str, str]]:
    """The workers that may come, with their keys, and the gateways' keys that are expected.

    Raises `KeyFileError`.
    """
    pinned = [g.id for g in config.all_gateways if public_path(home, g.id).exists()]
    gateways = [{"id": name, "kind": "gateway", "key": read_gateway_key(home, name)} for name in pinned]
    allowed = read_allowed(home).keys.items()
    return gateways + [{"id": name, "kind": "worker", "key": key} for name, key in allowed]
