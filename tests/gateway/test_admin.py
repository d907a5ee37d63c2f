import msgspec
import pytest

from gateway.access import AdminKey
from gateway.admin import DrainOrder
from protocol.errors import ClusterError, ErrorCode

KEY = "k" * 43


def refusal(key, *headers):
    with pytest.raises(ClusterError) as raised:
        key.check(list(headers))
    return raised.value.code


@pytest.fixture
def key():
    key = AdminKey()
    key.take(KEY)
    return key


@pytest.mark.parametrize(
    "header",
    [
        (b"authorization", b"Bearer " + KEY.encode()),
        (b"authorization", b"bearer  " + KEY.encode()),
        (b"x-api-key", KEY.encode()),
    ],
)
def test_the_key_opens(key, header):
    key.check([header])


def test_no_key_and_a_wrong_one_are_refused_differently(key):
    assert refusal(key) is ErrorCode.UNAUTHENTICATED
    assert refusal(key, (b"authorization", b"Basic " + KEY.encode())) is ErrorCode.UNAUTHENTICATED
    assert refusal(key, (b"authorization", b"Bearer " + KEY.encode()[:-1])) is ErrorCode.FORBIDDEN
    assert refusal(key, (b"authorization", "Bearer ü".encode())) is ErrorCode.FORBIDDEN


def test_without_a_key_nobody_may_act_and_the_empty_one_is_no_key(key):
    key.lack("there is no file")
    assert refusal(key) is ErrorCode.FORBIDDEN
    assert refusal(key, (b"authorization", b"Bearer ")) is ErrorCode.FORBIDDEN
    assert refusal(AdminKey(), (b"x-api-key", b"")) is ErrorCode.FORBIDDEN


@pytest.mark.parametrize(
    "body",
    ['{"then": "explode"}', '{"timeout_s": -1}', '{"timeout_s": "soon"}', '{"than": "stay"}', "[]", "1e999"],
)
def test_a_drain_that_makes_no_sense_is_refused(body):
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(body, type=DrainOrder)


def test_a_drain_has_defaults():
    assert msgspec.json.decode("{}", type=DrainOrder) == DrainOrder(then="stay", timeout_s=None)
