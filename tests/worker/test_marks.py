from worker.marks import Found, MarkFinder


def test_the_first_complete_mark_is_cut_out_and_what_follows_is_left():
    finder = MarkFinder(["<a>", "<b>"])
    assert finder.feed("x<") == Found("x", None, "")
    assert finder.feed("b>y<a>z") == Found("", "<b>", "y<a>z")
    assert finder.flush() == ""


def test_only_a_tail_that_may_begin_a_mark_is_held():
    finder = MarkFinder(["<<a>"])
    assert finder.feed("<<<").before == "<"
    assert finder.feed("b").before == "<<b"
    assert finder.feed("<<a").before == ""
    assert finder.flush() == "<<a"
