"""Places, KV tokens, context."""

import pytest

from worker.engine.base import EngineBusy
from worker.engine.limits import AHEAD, Limits
from worker.engine.output import PromptError


@pytest.mark.parametrize(
    ("limits", "places"), [(Limits(8), 9), (Limits(1), 1), (Limits(4, 3), 7), (Limits(16, 0), 16)]
)
def test_places_are_slots_and_waiting_room(limits, places):
    limits.check_places(places - 1)
    with pytest.raises(EngineBusy, match=str(places)):
        limits.check_places(places)


def test_the_kv_budget_counts_the_others():
    limits = Limits(8, kv_tokens=100)
    limits.check_kv(60, 40)
    with pytest.raises(EngineBusy, match="40 tokens left, 61"):
        limits.check_kv(61, 60)


def test_alone_anything_is_taken():
    Limits(8, kv_tokens=100).check_kv(1000, 0)
    Limits(8).check_kv(10**9, 10**9)


def test_an_estimate_never_exceeds_the_whole_budget():
    assert Limits(8).estimate(400, 50) == 150
    assert Limits(8, kv_tokens=100).estimate(400, 50) == 100


def test_the_answer_is_cut_to_the_room_that_is_left():
    assert Limits(8).fit(10, 500, None) == 500
    assert Limits(8).fit(10, 500, 100) == 90
    assert Limits(8, kv_tokens=50).fit(10, 500, 100) == 40
    assert Limits(8).fit(10, 20, 100) == 20


@pytest.mark.parametrize("prompt", [100, 101])
def test_a_prompt_that_can_never_fit_is_no_matter_of_being_busy(prompt):
    with pytest.raises(PromptError, match=f"{prompt} tokens > 100 maximum") as caught:
        Limits(8).fit(prompt, 1, 100)
    assert caught.value.reason == "context_length_exceeded"


@pytest.mark.parametrize(
    ("max_tokens", "said", "promised"),
    [(50, 0, 60), (AHEAD, 0, 10 + AHEAD), (10**6, 0, 10 + AHEAD), (10**6, 40, 50 + AHEAD), (50, 40, 60)],
)
def test_of_an_answer_a_part_is_promised_ahead(max_tokens, said, promised):
    assert Limits(8).promise(10, max_tokens, said) == promised
    assert Limits(8, kv_tokens=55).promise(10, max_tokens, said) == min(promised, 55)
