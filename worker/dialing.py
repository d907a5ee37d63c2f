"""Where the gateways of a worker are, and with which keys it comes to them."""

from __future__ import annotations

from dataclasses import dataclass

import zmq

from protocol.addresses import Home, endpoint, is_tcp
from protocol.config import ClusterConfig
from protocol.wire_keys import read_gateway_key, read_wire_secret


@dataclass(frozen=True)
class Curve:
    """The keys of one encrypted connection, in Z85."""

    secret: str
    public: str
    gateway: str
    """The public key that the gateway has to have."""


@dataclass(frozen=True)
class Dial:
    """One gateway to connect to."""

    gateway: str
    endpoint: str
    curve: Curve | None = None
    """None: not encrypted."""


def dials(config: ClusterConfig, worker_id: str, home: Home) -> list[Dial]:
    """One for each gateway. Raises `AddressError` and `KeyFileError`."""
    return [
        Dial(
            gateway.id,
            endpoint(gateway.listen[0], gateway.id, home),
            _curve(gateway.id, worker_id, home)
            if is_tcp(gateway.listen[0]) and not gateway.insecure_tcp
            else None,
        )
        for gateway in config.all_gateways
    ]


def _curve(gateway_id: str, worker_id: str, home: Home) -> Curve:
    secret = read_wire_secret(home, worker_id)
    public = zmq.curve_public(secret.encode()).decode()
    return Curve(secret, public, read_gateway_key(home, gateway_id))


def why_refused(dial: Dial, event: int, value: int) -> str:
    """What an event of ZeroMQ about a failed handshake means, with the cure. `value` is the event's."""
    curve = dial.curve
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH and curve is not None:
        return (
            "it does not allow this worker's key; on the gateway's machine:"
            f" clusterctl worker-key allow ID '{curve.public}'"
        )
    if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
        if curve is not None:
            return "it does not encrypt; remove insecure_tcp there, or set it here too"
        return "it encrypts, and insecure_tcp is set here; remove that, and give this worker keys"
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and curve is not None:
        return (
            "the handshake did not come to its end, again and again: the network or the gateway is stuck, or"
            f" its key is another than '{curve.gateway}', which is expected here:"
            f" compare with clusterctl worker-key show {dial.gateway} on its machine, and take that with"
            f" clusterctl worker-key pin {dial.gateway} KEY"
        )
    return f"it does not speak as a gateway does (fault {value:#x}); another program may have {dial.endpoint}"
