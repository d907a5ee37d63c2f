import pytest
import zmq

from clusterctl.wire_keys import ensure_pairs, public_key
from protocol.addresses import Home
from protocol.config import parse
from protocol.keyfiles import KeyFileError
from protocol.wire_keys import public_path
from worker.dialing import dials, why_refused

GATEWAY = 'version = 1\n[gateway]\nid = "gw-1"\nhttp = "127.0.0.1:0"\n'
WORKER = '[[workers]]\nid = "w-1"\nmodel = "m"\n'
TCP = GATEWAY + 'listen = ["tcp://10.0.0.5:5555"]\n'


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path / "home")
    ensure_pairs(home, parse(TCP + WORKER))
    return home


def test_a_socket_of_this_machine_needs_no_keys(tmp_path):
    (dial,) = dials(parse(GATEWAY + WORKER), "w-1", Home(tmp_path))
    assert dial.curve is None
    (dial,) = dials(parse(TCP + "insecure_tcp = true\n" + WORKER), "w-1", Home(tmp_path))
    assert dial.curve is None


def test_over_tcp_a_worker_comes_with_its_pair_and_expects_the_gateways_key(home):
    (dial,) = dials(parse(TCP + WORKER), "w-1", home)
    assert dial.curve is not None
    assert dial.curve.public == public_key(home, "w-1")
    assert dial.curve.gateway == public_key(home, "gw-1")


def test_a_gateway_whose_key_is_not_known_is_told_with_the_cure(home):
    public_path(home, "gw-1").unlink()
    with pytest.raises(KeyFileError, match="worker-key pin gw-1"):
        dials(parse(TCP + WORKER), "w-1", home)


@pytest.mark.parametrize(
    ("insecure", "event", "value", "words"),
    [
        (False, zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400, "clusterctl worker-key allow ID '"),
        (
            False,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH,
            "it does not encrypt",
        ),
        (
            True,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH,
            "it encrypts",
        ),
        (False, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32, "clusterctl worker-key pin gw-1 KEY"),
        (True, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x10000000, "another program may have tcp://10.0.0.5"),
    ],
)
def test_a_handshake_that_failed_is_told_with_its_cause_and_cure(home, insecure, event, value, words):
    config = parse(TCP + ("insecure_tcp = true\n" if insecure else "") + WORKER)
    (dial,) = dials(config, "w-1", home)
    why = why_refused(dial, event, value)
    assert words in why
    assert dial.curve is None or dial.curve.secret not in why
