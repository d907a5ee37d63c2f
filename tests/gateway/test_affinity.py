"""Requests that begin alike find the same workers, on every gateway."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gateway.affinity import HEAD_BYTES, Beginning, beginning_of, best, is_home, key_of, ranked
from gateway.registry import WorkerView
from protocol.messages import Generate
from protocol.values import ChatMessage, ContentPart, SamplingParams, ToolSpec
from tests.gateway.test_routing import view

LONG = "You answer in the words of a sailor. " * 40


def asked(*texts: str, **fields: Any) -> Generate:
    roles = ("system", "user", "assistant", "user")
    messages = tuple(ChatMessage(role=role, content=text) for role, text in zip(roles, texts, strict=False))
    known: dict[str, Any] = {"request_id": "r", "attempt": 0, "model": "m", "seed": 1, "messages": messages}
    return Generate(sampling=SamplingParams(), **(known | fields))


FLEET = [view(f"w{number}") for number in range(8)]


def order(key: bytes | None, fleet: list[WorkerView] = FLEET) -> list[str]:
    assert key is not None
    return [found.worker_id for found in ranked(key, fleet)]


def test_one_beginning_has_one_key_whatever_follows_and_whoever_asks():
    first = key_of(asked(LONG, "Who are you?"))
    assert first == key_of(asked(LONG, "Where are you?", "At sea.", "Why?", request_id="other", seed=7))
    assert first == key_of(
        asked(
            LONG,
            "Who?",
            messages=(ChatMessage(role="system", content=(ContentPart(type="text", text=LONG),)),),
        )
    )


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"tools": (ToolSpec(name="look"),)},
        {"messages": (ChatMessage(role="user", content=LONG),)},
        {"cache_key": "mine"},
    ],
)
def test_another_beginning_has_another_key(other: dict[str, Any]):
    assert key_of(asked(LONG, **other)) != key_of(asked(LONG))


def test_short_prompts_have_none_but_by_name():
    assert key_of(asked("Hello.", "x" * (HEAD_BYTES - 10))) is not None
    assert key_of(asked("Hello.", "x" * (HEAD_BYTES - 60))) is None
    assert key_of(asked("Hello.", cache_key="mine")) == key_of(asked("Good day.", cache_key="mine"))


def test_plain_prompts_and_token_ids_have_keys():
    text, ids = asked(messages=(), prompt=LONG), asked(messages=(), prompt=tuple(range(600)))
    assert key_of(text) == key_of(asked(messages=(), prompt=LONG + "more"))
    assert key_of(ids) == key_of(asked(messages=(), prompt=(*range(600), 7)))
    assert key_of(asked(messages=(), prompt=(1, 2, 3))) is None
    assert key_of(asked(messages=(), prompt=(0, 2**31, 2**63 - 1))) is None  # whatever a client sends


def test_lone_surrogates_do_no_harm():
    assert key_of(asked("\ud83d" * 2000)) is not None


def test_the_order_does_not_depend_on_the_order_of_joining():
    key = key_of(asked(LONG))
    assert order(key) == order(key, FLEET[::-1])


def test_keys_are_spread_by_slots():
    fleet = [view("small", slots=2), view("large", slots=6)]
    firsts = Counter(order(key_of(asked(cache_key=str(n))), fleet)[0] for n in range(2000))
    assert 0.7 < firsts["large"] / 2000 < 0.8


def test_who_leaves_moves_only_its_own_keys():
    for number in range(100):
        key = key_of(asked(cache_key=str(number)))
        before = order(key)
        gone = FLEET[3].worker_id
        after = order(key, [v for v in FLEET if v.worker_id != gone])
        assert after == [worker_id for worker_id in before if worker_id != gone]


A, B, C, D = FLEET[:4]
WANTED = Beginning(b"k", tokens=1000)


def chosen(free: list[WorkerView], wanted: Beginning = WANTED, **known: float) -> WorkerView | None:
    return best(wanted, FLEET[:4], free, **({"waited_s": 9.0, "gain": 1.0} | known))


def test_of_the_first_two_each_conversation_has_its_own_and_the_rest_follow_one_by_one():
    assert chosen([A, B, C, D]) == A
    assert chosen([A, B, C, D], Beginning(b"k", second=True)) == B
    assert chosen([B, C, D]) == B
    assert chosen([D, C]) == C
    assert chosen([]) is None


@pytest.mark.parametrize(
    ("load", "found"),
    [
        ({"running": 1}, "own"),
        ({"running": 2}, "other"),
        ({"prefill_tokens": 200}, "own"),
        ({"prefill_tokens": 300}, "other"),
    ],
)
def test_a_conversation_keeps_to_its_worker_unless_it_would_wait_there(load: dict[str, int], found: str):
    own = view("own", places=1, load=load, prefill_tokens_per_s=1000.0)
    other = view("other", places=1, prefill_tokens_per_s=1000.0)
    answer = best(WANTED, [own, other], [own, other], waited_s=0.0, gain=1.0)
    assert answer is not None
    assert answer.worker_id == found


@pytest.mark.parametrize(
    ("waited_s", "gain", "rate", "goes"),
    [
        (0.0, 1.0, 1000.0, False),
        (1.9, 1.0, 1000.0, False),
        (2.0, 1.0, 1000.0, True),  # twice what computing takes
        (1.0, 0.5, 1000.0, True),  # half of them are found there, too
        (4.9, 1.0, 10.0, False),
        (5.0, 1.0, 10.0, True),
        (0.0, 1.0, 0.0, True),  # who knows how long computing takes
    ],
)
def test_one_of_the_first_two_is_waited_for_as_long_as_computing_elsewhere_is_worth(
    waited_s: float, gain: float, rate: float, goes: bool
):
    third = view("third", prefill_tokens_per_s=rate)
    assert best(WANTED, [A, B, third], [third], waited_s=waited_s, gain=gain) == (third if goes else None)


def test_all_turns_of_a_conversation_prefer_one_worker_and_conversations_are_spread():
    first = [beginning_of(asked(LONG, f"question {n}"), 400) for n in range(200)]
    later = [beginning_of(asked(LONG, f"question {n}", "An answer.", "And?"), 800) for n in range(200)]
    assert all(one and two and one.second == two.second for one, two in zip(first, later, strict=True))
    assert 70 < sum(one.second for one in first if one) < 130
    assert {one.tokens for one in first if one} == {100}
    assert beginning_of(asked("Hello.", "You."), 10) is None


def test_the_first_two_of_an_order_are_its_own():
    key = key_of(asked(LONG))
    assert key is not None
    ids = order(key)
    assert [v.worker_id for v in FLEET if is_home(key, v, FLEET)] == [
        v.worker_id for v in FLEET if v.worker_id in ids[:2]
    ]
