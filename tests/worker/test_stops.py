from hypothesis import given
from hypothesis import strategies as st

from worker.stops import StopMatcher

SHORT = st.text(alphabet="abc", max_size=12)


def run(stops, pieces):
    matcher = StopMatcher(stops)
    visible = "".join([*(matcher.feed(piece) for piece in pieces), matcher.flush()])
    return visible, matcher.matched


def test_without_stop_strings_text_passes_at_once():
    assert StopMatcher([]).feed("anything") == "anything"


def test_text_from_the_stop_string_on_is_dropped():
    assert run(["END"], ["one END two", "three"]) == ("one ", "END")


def test_a_stop_string_across_pieces_is_found():
    assert run(["\n\nHuman:"], ["hi\n", "\nHu", "man", ": more"]) == ("hi", "\n\nHuman:")


def test_a_beginning_that_comes_to_nothing_is_released():
    matcher = StopMatcher(["abc"])
    assert matcher.feed("xab") == "x"
    assert matcher.feed("d") == "abd"
    assert matcher.matched is None


def test_a_held_tail_is_flushed_at_the_end():
    assert run(["abc"], ["xab"]) == ("xab", None)


def test_text_that_cannot_begin_a_stop_is_not_held():
    assert StopMatcher(["abc"]).feed("xyz") == "xyz"


def test_the_first_to_be_complete_wins():
    assert run(["bcd", "c"], ["abcd"]) == ("ab", "c")


def test_of_two_complete_at_once_the_longest_wins():
    assert run(["c", "bc"], ["abcd"]) == ("a", "bc")


def test_empty_stop_strings_are_ignored():
    assert run([""], ["text"]) == ("text", None)


@given(st.lists(SHORT, max_size=4), SHORT, st.data())
def test_any_split_gives_the_same_text(stops, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(stops, pieces) == run(stops, [text])


@given(st.lists(SHORT, max_size=4), st.lists(SHORT, max_size=6))
def test_no_more_is_held_than_a_stop_string_less_one(stops, pieces):
    matcher = StopMatcher(stops)
    shown = 0
    given_text = ""
    for piece in pieces:
        given_text += piece
        shown += len(matcher.feed(piece))
        if matcher.matched is None:
            assert len(given_text) - shown <= max((len(stop) for stop in stops), default=1) - 1 or not any(
                stops
            )


@given(st.lists(SHORT, min_size=1, max_size=4), SHORT)
def test_visible_text_is_a_beginning_and_holds_no_stop_string(stops, text):
    visible, matched = run(stops, [text])
    assert text.startswith(visible)
    assert not any(stop in visible for stop in stops if stop)
    assert matched is None or text.startswith(visible + matched)
