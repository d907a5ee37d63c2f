import errno

import pytest

from protocol.reachability import OPEN, UNKNOWN_NAME, Reach, last_reaches, name_of


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (60, "ETIMEDOUT"),
        (61, "ECONNREFUSED"),
        (65, "EHOSTUNREACH"),
        (51, "ENETUNREACH"),
        (64, "EHOSTDOWN"),
        (errno.ETIMEDOUT, "ETIMEDOUT"),
        (errno.ECONNREFUSED, "ECONNREFUSED"),
        (errno.EHOSTUNREACH, "EHOSTUNREACH"),
        (errno.ENETUNREACH, "ENETUNREACH"),
        (errno.ENOENT, "ENOENT"),
        (9999, "ERRNO_9999"),
        (None, "UNKNOWN"),
    ],
)
def test_a_number_has_the_same_name_here_and_on_a_mac(number, name):
    assert name_of(number) == name


@pytest.mark.parametrize(
    ("met", "words"),
    [
        ("ETIMEDOUT", "off or asleep"),
        ("ECONNREFUSED", "nothing listens"),
        ("EHOSTUNREACH", "LaunchDaemon"),
        (UNKNOWN_NAME, "no address"),
        (OPEN, "handshake"),
        ("ESTRANGE", "fails"),
    ],
)
def test_what_was_met_is_explained(met, words):
    assert words in Reach("gw-1", "tcp://10.0.0.5:5555", met).words


def test_a_log_tells_what_was_met_last_of_those_that_are_still_out_of_reach():
    first = Reach("gw-1", "tcp://10.0.0.5:5555", "ETIMEDOUT")
    later = Reach("gw-1", "tcp://10.0.0.5:5555", "EHOSTUNREACH", 65)
    other = Reach("gw-2", "tcp://[::1]:5556", "ECONNREFUSED", 61)
    lines = [first.line, "something else", other.line, later.line]
    assert last_reaches(lines) == {"gw-1": later, "gw-2": other}
    assert last_reaches([*lines, "connected to gateway gw-1"]) == {"gw-2": other}
    assert last_reaches([*lines, "worker w-1 starts, incarnation 1"]) == {}
