"""So many a minute, as a sliding window counts it: what is left, and how long to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.windows import MINUTE_S, Window, duration


@pytest.mark.parametrize(
    ("window", "remaining", "wait_s", "reset_s"),
    [
        (Window(10, 0, 0.0, 0, 0.0), 10, 0, 0),
        (Window(10, 0, 0.0, 4, 100.0), 6, 0, 100),
        (Window(10, 0, 0.0, 9, 100.0), 1, 0, 100),
        # Full by this minute alone: its end, 40 s away, and then until a part of it is past.
        (Window(10, 0, 0.0, 10, 100.0), 0, 40, 100),
        (Window(10, 0, 0.0, 20, 100.0), 0, 40 + 30, 100),
        # Half of the minute before counts: 10 of 20, and 5 of them have to be past.
        (Window(10, 20, 30.0, 5, 90.0), 0, 15, 90),
        (Window(10, 20, 15.0, 4, 75.0), 1, 0, 75),
        (Window(10, 20, 15.0, 0, 0.0), 5, 0, 15),
    ],
)
def test_what_is_left_and_how_long_to_wait(window, remaining, wait_s, reset_s):
    assert window.remaining == remaining
    assert window.wait_s == pytest.approx(wait_s, abs=0.01)
    assert window.reset_s == reset_s


@given(
    st.integers(1, 1000),
    st.integers(0, 5000),
    st.floats(0, MINUTE_S),
    st.integers(0, 5000),
    st.floats(0, MINUTE_S),
)
def test_after_the_wait_there_is_room_and_not_long_before(
    limit, previous, previous_ends_s, current, to_turn_s
):
    def later(seconds: float) -> Window:
        """The window after so many seconds without another request."""
        if seconds < to_turn_s:
            return Window(
                limit,
                previous,
                max(0.0, previous_ends_s - seconds),
                current,
                to_turn_s + MINUTE_S - seconds,
            )
        return Window(limit, current, max(0.0, to_turn_s + MINUTE_S - seconds), 0, 0.0)

    # As in the library, the minute before counts until the present one turns into it.
    previous_ends_s = min(previous_ends_s, to_turn_s)
    wait_s = later(0).wait_s
    assert later(wait_s + 0.01).wait_s == 0
    if wait_s > 0.1:
        assert later(wait_s - 0.1).wait_s > 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.12, "120ms"),
        (0, "0ms"),
        (1, "1s"),
        (59.2, "1m0s"),
        (60, "1m0s"),
        (90.5, "1m31s"),
        (0.9999, "1000ms"),
    ],
)
def test_a_duration_as_openai_writes_it(seconds, text):
    assert duration(seconds) == text
