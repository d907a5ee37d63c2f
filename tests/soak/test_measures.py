"""When measures count as flat."""

import pytest

from tests.soak.measures import MIB, judge, table


def verdict(name, values, **limits):
    (row,) = judge([{name: value} for value in values], limits)
    return row.ok


@pytest.mark.parametrize(
    ("name", "values", "ok"),
    [
        ("gw-1 memory", [9 * MIB, 40 * MIB, *[50 * MIB] * 6], True),
        ("gw-1 memory", [50 * MIB + 2 * i * MIB for i in range(8)], False),
        ("gw-1 memory", [1000 * MIB + i * MIB for i in range(8)], True),
        ("gw-1 descriptors", [9, 12, 20, 20, 20, 90, 20, 20], True),
        ("gw-1 descriptors", [20, 20, 20, 20, 20, 20, 21, 21], False),
        ("gw-1 threads", [4, 4, 4, 4, 4, 4, 4, 4], True),
        ("w-3 young-threads", [5, 5, 5, 5, 5, 6, 6, 6], True),
        ("w-3 young-threads", [5, 5, 5, 5, 6, 6, 7, 7], False),
        ("gw-1 series", [10, 20, 30, 30, 31, 35, 35, 35], True),
        ("gw-1 series", [10, 20, 30, 40, 50, 60, 70, 80], False),
    ],
)
def test_growth_after_the_warm_up_is_found(name, values, ok):
    assert verdict(name, values) is ok


def test_what_has_a_limit_may_not_pass_it_once():
    assert verdict("w-1 bytes", [1, 2, 3, 9, 1, 2, 3, 4], bytes=9)
    assert not verdict("w-1 bytes", [1, 2, 10, 3, 4, 1, 2, 3], bytes=9)
    assert not verdict("gw-1 open", [0, 0, 0, 1, 0, 0, 0, 0], open=0)


def test_too_few_samples_are_no_verdict():
    with pytest.raises(ValueError, match="at least 8"):
        judge([{"gw-1 memory": 1}] * 7, {})


def test_the_table_names_what_grows():
    lines = table(judge([{"w-1 threads": i, "w-2 threads": 1} for i in range(8)], {}))
    assert "GROWS" in lines[1]
    assert "GROWS" not in lines[2]
