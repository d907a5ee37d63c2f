from protocol.messages import Generate
from protocol.values import SamplingParams
from worker.answer import Answer
from worker.engine.base import GenerationOutput
from worker.engine.output import EngineOutput


def request(stop=(), resumed=()):
    return Generate(
        request_id="r",
        attempt=2,
        model="m",
        sampling=SamplingParams(stop=stop),
        seed=1,
        prompt="hi",
        resume_token_ids=resumed,
    )


def items(*pieces, finish="stop", before=""):
    """A stream of one token a piece, as one of our engines gives it."""
    text = before
    yield EngineOutput("", prompt_tokens=7, cached_tokens=3, finish_reason=None, finished=False)
    for count, piece in enumerate(pieces, 1):
        text += piece
        last = count == len(pieces)
        yield EngineOutput(
            text, [count], 7, count, finish if last else None, new_text=piece, finished=last, cached_tokens=3
        )


def run(answer, outputs):
    deltas = []
    for now, output in enumerate(outputs):
        if not answer.started:
            answer.start(output, float(now))
        delta = answer.feed(output, float(now))
        deltas += [] if delta is None else [delta]
        if answer.finished is not None:
            break
    return deltas


def test_started_tells_what_the_first_item_knows():
    answer = Answer(request(), 0.0)
    started = answer.start(next(items("a")), 1.0)
    assert (started.request_id, started.attempt, started.prompt_tokens, started.cached_tokens) == (
        "r",
        2,
        7,
        3,
    )


def test_each_item_with_something_new_is_a_delta():
    answer = Answer(request(), 0.0)
    deltas = run(answer, items("He", "llo", "", finish="length"))
    assert [(d.text, d.token_ids, d.completion_tokens) for d in deltas] == [
        ("He", (1,), 1),
        ("llo", (2,), 2),
        ("", (3,), 3),
    ]
    assert answer.finished is not None
    assert answer.finished.finish_reason == "length"
    assert answer.finished.usage.completion_tokens == 3
    assert (answer.finished.usage.prompt_tokens, answer.finished.usage.cached_tokens) == (7, 3)
    assert answer.finished.matched_stop is None


def test_a_stop_string_across_items_ends_the_answer_and_keeps_all_ids():
    answer = Answer(request(stop=("END",)), 0.0)
    deltas = run(answer, items("one", "EN", "D two", "three"))
    assert "".join(d.text for d in deltas) == "one"
    assert [d.token_ids for d in deltas] == [(1,), (2,), (3,)]
    assert answer.finished is not None
    assert (answer.finished.finish_reason, answer.finished.matched_stop) == ("stop", "END")
    assert answer.finished.usage.completion_tokens == 3


def test_a_stop_string_in_the_last_item_wins_over_its_reason():
    answer = Answer(request(stop=("!",)), 0.0)
    run(answer, items("hi", "!", finish="length"))
    assert answer.finished is not None
    assert answer.finished.finish_reason == "stop"


def test_what_was_held_back_comes_with_the_end():
    answer = Answer(request(stop=("END",)), 0.0)
    assert "".join(d.text for d in run(answer, items("x", "EN"))) == "xEN"


def test_the_engines_own_stop_is_passed_on():
    answer = Answer(request(), 0.0)
    run(answer, [EngineOutput("a", [5], 1, 1, "stop", new_text="a", matched_stop=5)])
    assert answer.finished is not None
    assert answer.finished.matched_stop == 5


def test_times_are_told_phase_by_phase():
    answer = Answer(request(), -2.0)
    run(answer, items("a", "b", "c"))
    assert answer.finished is not None
    timings = answer.finished.timings
    assert (timings.queued_s, timings.prefill_s, timings.decode_s) == (2.0, 1.0, 2.0)


def test_an_engine_that_gives_text_so_far_only_is_understood():
    answer = Answer(request(), 0.0)
    outputs = [
        GenerationOutput("He", finish_reason=None, finished=False),
        GenerationOutput("Hello", finish_reason=None, finished=False),
        GenerationOutput("Hello"),
    ]
    deltas = run(answer, outputs)
    assert [(d.text, d.completion_tokens) for d in deltas] == [("He", 1), ("llo", 2)]
    assert answer.finished is not None
    assert answer.finished.usage.completion_tokens == 2


def test_what_was_emitted_elsewhere_is_not_shown_again_but_counts_for_stop_strings():
    answer = Answer(request(stop=("END",), resumed=(1, 2)), 0.0)
    deltas = run(answer, items("D", "more", before="oneEN"))
    assert "".join(d.text for d in deltas) == ""
    assert answer.finished is not None
    assert answer.finished.matched_stop == "END"


def test_a_resumed_answer_goes_on_where_it_was():
    answer = Answer(request(resumed=(1, 2)), 0.0)
    assert "".join(d.text for d in run(answer, items(" two", " three", before="one"))) == " two three"
