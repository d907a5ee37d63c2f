from worker.stall import StallWatch


def test_a_load_that_moves_may_take_for_ever():
    watch = StallWatch(10.0, 0.0)
    assert [watch.look((n / 1000, "reading"), 9.0 * n) for n in range(1000)] == [""] * 1000


def test_another_step_is_progress_too():
    watch = StallWatch(10.0, 0.0)
    assert watch.look((0.5, "reading"), 0.0) == ""
    assert watch.look((0.5, "trying"), 9.0) == ""
    assert watch.look((0.5, "trying"), 18.9) == ""
    assert watch.look((0.5, "trying"), 19.0)


def test_a_load_that_stands_still_is_told_with_the_cure():
    watch = StallWatch(120.0, 0.0)
    assert watch.look((0.25, "reading the weights"), 1.0) == ""
    words = watch.look((0.25, "reading the weights"), 121.0)
    assert words.startswith("the load made no progress for 120 s (25% done, reading the weights); check")
    assert "load_stall_s" in words


def test_a_load_that_never_began_stands_still():
    assert StallWatch(5.0, 100.0).look((0.0, ""), 104.9) == ""
    watch = StallWatch(5.0, 100.0)
    watch.look((0.0, ""), 100.0)
    assert "(0% done)" in watch.look((0.0, ""), 105.0)
