"""Rows that follow a grammar, in the batch of a tiny random model whose tokens are bytes."""

import json
import random
from collections import deque

import pytest

from tests.mlx.random_model import random_model
from tests.mlx.test_batch import make, run, sampling
from worker.engine.output import PromptError
from worker.engine.sequence import Sequence
from worker.engine.shape import Form, Shape
from worker.parsers.base import Syntax
from worker.parsers.constrained import constrained

pytest.importorskip("mlx.core", reason="mlx is not installed")

from worker.engine.structured import END_OF_BYTES, for_bytes

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "^[a-z]{4,9}$"},
        "b": {"type": "integer", "maximum": 99},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
GRAMMARS = for_bytes()
KINDS = (
    sampling(),
    sampling(1.0, 5),
    sampling(1.0, 6, top_p=0.9, repetition_penalty=1.2),
    sampling(1.0, 7, top_k=9),
)


@pytest.fixture(scope="module", params=[262, 320], ids=["all tokens are known", "some logits mean nothing"])
def network(request):
    return random_model(request.param)


def sequence(name, settings, *, guided=True, max_tokens=60, length=5):
    guide = None
    if guided:
        guide = GRAMMARS.guide(Shape(Form("json", SCHEMA)), constrained(Syntax(), calls=False))
    prompt = [(ord(name) * 7 + 3 * i) % 200 for i in range(length)]
    return Sequence(
        name, prompt, max_tokens, settings, frozenset({END_OF_BYTES}), lambda _event: None, guide=guide
    )


def four(length=5):
    """Three with a grammar, and one without."""
    return [
        sequence(name, kind, guided=name != "b", length=length)
        for name, kind in zip("abcd", KINDS, strict=True)
    ]


@pytest.fixture(scope="module")
def alone(network):
    found: dict[str, list[int]] = {}
    for each in four():
        found |= run(make(network), each)[0]
    return found


def check(answers, alone):
    assert answers == alone
    for name in "acd":
        text = bytes(answers[name][:-1]).decode()
        assert answers[name][-1] == END_OF_BYTES
        assert json.loads(text).keys() == {"a", "b"}


def test_together_they_say_what_they_say_alone(network, alone):
    answers, errors = run(make(network), *four())
    check(answers, alone)
    assert not errors


@pytest.mark.parametrize("fault", [2, 3, 7])
def test_after_a_step_that_raised_they_go_on_where_they_were(network, alone, fault):
    check(run(make(network, faults=[fault]), *four())[0], alone)


@pytest.mark.parametrize("moments", [{1}, {4}, {1, 2, 9}, set(range(30))])
def test_who_gave_up_its_cache_goes_on_where_it_was(network, alone, moments):
    batch, requests = make(network), four()
    for each in requests:
        batch.add(each)
    for step in range(400):
        batch.step()
        if step in moments:
            batch.make_room()
    assert not batch.has_work
    assert batch.preemptions
    check({each.request_id: each.emitted for each in requests}, alone)


@pytest.mark.parametrize("known", [1, 5, 12])
def test_one_that_was_begun_elsewhere_goes_on(network, alone, known):
    requests = four()
    for each in requests:
        each.emitted += alone[each.request_id][:-1][:known]
    check(run(make(network), *requests)[0], alone)


def test_one_whose_answer_so_far_is_of_another_form_is_ended_alone(network, alone):
    requests = four()
    requests[2].emitted += b"x"
    answers, errors = run(make(network), *requests)
    assert isinstance(errors["c"], PromptError)
    assert {name: answers[name] for name in "abd"} == {name: alone[name] for name in "abd"}


def test_early_ends_are_put_off_as_far_as_the_form_goes(network):
    eager = sequence("a", sampling(1.0, 5, min_tokens=60, logit_bias=((END_OF_BYTES, 100.0),)))
    answers, errors = run(make(network), eager)
    assert not errors
    assert answers["a"][-1] == END_OF_BYTES
    assert json.loads(bytes(answers["a"][:-1])).keys() == {"a", "b"}


def test_rows_come_and_go(network, alone):
    batch, waiting = make(network, slots=2), deque(four())
    requests = list(waiting)
    for step in range(400):
        if waiting and step % 3 == 0:
            batch.add(waiting.popleft())
        batch.step()
    check({each.request_id: each.emitted for each in requests}, alone)


@pytest.mark.parametrize("seed", range(2))
def test_neighbours_that_leave_and_prefixes_that_are_known_change_nothing(network, seed):
    """As clients that were killed in the middle of a forced call leave the batch."""
    luck = random.Random(seed)
    alone: dict[str, list[int]] = {}
    for each in four(length=40):
        alone |= run(make(network), each)[0]
    batch = make(network, slots=6, prefix_bytes=300_000)
    for _cold_and_warm in range(2):
        requests = four(length=40)
        neighbours = [
            sequence(luck.choice("abcdefgh"), luck.choice(KINDS), guided=luck.random() < 0.7, length=40)
            for _ in range(6)
        ]
        comes = {each: luck.randrange(20) for each in [*requests, *neighbours]}
        goes = {each: comes[each] + luck.randrange(15) for each in neighbours}
        for step in range(400):
            for each, first in comes.items():
                if first == step:
                    batch.add(each)
                if goes.get(each) == step:
                    batch.remove(each)
            batch.step()
        assert not batch.has_work
        check({each.request_id: each.emitted for each in requests}, alone)
    assert batch.prefix_stats["prefix_cache_hits"] > 0
