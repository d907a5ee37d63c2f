from hypothesis import given
from hypothesis import strategies as st

from worker.parsers.visible import VisibleText

SHORT = st.text(alphabet="ab \n", max_size=5)


def test_white_space_before_a_call_is_not_shown():
    visible = VisibleText([], calls=True)
    assert (visible.feed("Look.\n"), visible.call(), visible.feed("\n"), visible.call()) == (
        "Look.",
        "",
        "",
        "",
    )
    assert visible.flush() == ""


def test_white_space_at_the_end_behind_a_call_is_not_shown():
    visible = VisibleText([], calls=True)
    assert visible.feed("a") + visible.call() + visible.feed("\n") + visible.flush() == "a"


def test_white_space_before_more_text_or_the_end_is():
    visible = VisibleText([], calls=True)
    assert visible.feed("a\n") + visible.feed("b \n") == "a\nb"
    assert visible.flush() == " \n"


def test_text_behind_a_call_keeps_its_distance():
    visible = VisibleText([], calls=True)
    assert visible.feed("a") + visible.call() + visible.feed("\n") + visible.feed("b") == "a\nb"


def test_where_no_call_can_come_nothing_is_held():
    assert VisibleText([], calls=False).feed(" \n") == " \n"


def test_a_stop_string_of_white_space_ends_at_once():
    visible = VisibleText(["\n\n"], calls=True)
    assert visible.feed("a ") + visible.feed("\n\nb") == "a "
    assert visible.matched == "\n\n"
    assert visible.feed("c") + visible.flush() == ""


def test_what_might_have_been_a_stop_string_is_shown_before_a_call():
    visible = VisibleText(["abc"], calls=True)
    assert (visible.feed("xab"), visible.call(), visible.feed("c")) == ("x", "ab", "c")


@given(st.lists(SHORT, max_size=2), st.lists(st.none() | SHORT, max_size=6), st.booleans())
def test_any_cut_shows_the_same(stops, pieces, calls):
    """None stands for a call."""

    def shown(parts):
        visible = VisibleText(stops, calls=calls)
        found = "".join(visible.call() + "|" if part is None else visible.feed(part) for part in parts)
        return found + visible.flush()

    letters = [letter for part in pieces for letter in ([None] if part is None else part)]
    assert shown(pieces) == shown(letters)
