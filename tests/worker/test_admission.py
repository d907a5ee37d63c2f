import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.values import Capacity, Load
from worker.admission import MOST_RETRY_S, Admission, NoPlace
from worker.engine.base import EngineBusy
from worker.engine.output import EngineLoad, PromptError

IDLE = EngineLoad()


def taken(admission, key, prompt=10, answer=10, engine=IDLE, now=0.0):
    """Whether the request got a place."""
    try:
        admission.admit(key, prompt, answer, engine, now)
    except NoPlace:
        return False
    return True


def test_slots_and_waiting_places_are_given_out_and_no_more():
    admission = Admission(Capacity(max_num_seqs=2, max_waiting=1))
    assert [taken(admission, key) for key in "abcd"] == [True, True, True, False]
    assert (admission.load(None).running, admission.load(None).waiting) == (2, 1)


def test_no_place_is_the_contracts_busy_and_says_when():
    admission = Admission(Capacity(max_num_seqs=1))
    admission.admit("a", 1, 1, IDLE, 0.0)
    assert issubclass(NoPlace, EngineBusy)
    with pytest.raises(NoPlace) as busy:
        admission.admit("b", 1, 1, IDLE, 0.0)
    assert 0 < busy.value.retry_after_s <= MOST_RETRY_S


def test_a_released_place_can_be_taken_again():
    admission = Admission(Capacity(max_num_seqs=1))
    admission.admit("a", 1, 1, IDLE, 0.0)
    assert admission.release("a", 1.0)
    assert not admission.release("a", 1.0)
    assert taken(admission, "a")


def test_one_key_has_one_place():
    admission = Admission(Capacity(max_num_seqs=2))
    admission.admit("a", 1, 1, IDLE, 0.0)
    with pytest.raises(ValueError, match="already"):
        admission.admit("a", 1, 1, IDLE, 0.0)


def test_the_budget_holds_prompts_and_answers():
    admission = Admission(Capacity(max_num_seqs=8, kv_tokens=100))
    assert taken(admission, "a", 30, 30)
    assert not taken(admission, "b", 30, 30)
    assert taken(admission, "c", 20, 20)


def test_an_empty_worker_takes_whatever_is_asked():
    admission = Admission(Capacity(max_num_seqs=8, kv_tokens=100))
    assert taken(admission, "a", 50, 5000)
    assert not taken(admission, "b", 1, 1)
    assert admission.load(None).kv_tokens == 100


def test_an_estimate_that_was_too_low_is_busy_after_all():
    admission = Admission(Capacity(max_num_seqs=8, kv_tokens=100))
    admission.admit("a", 10, 30, IDLE, 0.0)
    admission.admit("b", 10, 30, IDLE, 0.0)
    with pytest.raises(NoPlace):
        admission.started("b", 50)
    admission.release("b", 0.0)
    admission.started("a", 70)


def test_a_prompt_that_never_fits_is_too_long_and_not_busy():
    admission = Admission(Capacity(max_num_seqs=8, kv_tokens=100))
    admission.admit("a", 10, 30, IDLE, 0.0)
    with pytest.raises(PromptError, match=r"120 tokens.*100 tokens") as error:
        admission.started("a", 120)
    assert error.value.reason == "context_length_exceeded"


def test_an_idle_engine_takes_any_prompt():
    admission = Admission(Capacity(max_num_seqs=8))
    assert taken(admission, "a", 1_000_000, engine=EngineLoad(prefill_tokens_per_s=10))


def test_a_decoding_engine_without_pending_prefill_takes_any_prompt():
    admission = Admission(Capacity(max_num_seqs=8))
    admission.admit("a", 10, 10, IDLE, 0.0)
    admission.started("a", 10)
    assert taken(admission, "b", 1_000_000, engine=EngineLoad(prefill_tokens_per_s=10))


def test_pending_prefill_is_kept_within_five_seconds():
    admission = Admission(Capacity(max_num_seqs=8))
    busy = EngineLoad(prefill_tokens=300, prefill_tokens_per_s=100)
    admission.admit("a", 10, 10, IDLE, 0.0)
    admission.started("a", 10)
    assert not taken(admission, "b", 250, engine=busy)
    assert taken(admission, "c", 150, engine=busy)
    assert not taken(admission, "d", 100, engine=busy)


def test_an_unmeasured_rate_forbids_nothing():
    admission = Admission(Capacity(max_num_seqs=8))
    admission.admit("a", 10**6, 10, IDLE, 0.0)
    assert taken(admission, "b", 10**6)


def test_the_load_of_our_engines_is_theirs_but_for_what_they_do_not_know_yet():
    admission = Admission(Capacity(max_num_seqs=8))
    admission.admit("a", 40, 10, IDLE, 0.0)
    admission.admit("b", 10, 10, IDLE, 0.0)
    admission.started("b", 12)
    load = admission.load(EngineLoad(running=1, prefill_tokens=7, kv_tokens=99))
    assert load == Load(running=2, prefill_tokens=47, kv_tokens=99)


KEYS = st.integers(0, 5)
MOVES = st.one_of(
    st.tuples(st.just("admit"), KEYS, st.integers(1, 60), st.integers(1, 60)),
    st.tuples(st.just("started"), KEYS, st.integers(0, 120)),
    st.tuples(st.just("release"), KEYS),
)


@given(st.lists(MOVES, max_size=40), st.one_of(st.none(), st.integers(50, 200)))
def test_counters_are_never_negative_and_end_at_zero(moves, budget):
    capacity = Capacity(max_num_seqs=2, max_waiting=2, kv_tokens=budget)
    admission = Admission(capacity)
    held = set()
    for move, key, *numbers in moves:
        if move == "admit" and key not in held:
            if taken(admission, key, *numbers):
                held.add(key)
        elif move == "started" and key in held:
            try:
                admission.started(key, *numbers)
            except (NoPlace, PromptError):
                assert admission.release(key, 1.0)
                held.discard(key)
        elif move == "release":
            assert admission.release(key, 1.0) == (key in held)
            held.discard(key)
        load = admission.load(None)
        assert load.running + load.waiting == len(held) <= 4
        assert min(load.running, load.waiting, load.prefill_tokens, load.kv_tokens) >= 0
        assert budget is None or load.kv_tokens <= budget
    for key in held:
        admission.release(key, 2.0)
    assert admission.load(None) == Load()


def test_a_correction_that_does_not_fit_changes_nothing():
    admission = Admission(Capacity(max_num_seqs=8, kv_tokens=100))
    admission.admit("a", 40, 10, IDLE, 0.0)
    admission.admit("b", 40, 10, IDLE, 0.0)
    with pytest.raises(NoPlace):
        admission.started("b", 45)
    assert admission.load(None).kv_tokens == 100
