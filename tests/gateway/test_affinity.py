"""Requests that begin alike find the same workers, on every gateway."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gateway.affinity import HEAD_BYTES, best, key_of, ranked
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


def test_the_first_two_are_chosen_from_and_the_rest_one_by_one():
    ranking = FLEET[:4]
    assert best(ranking, FLEET[:4]) == FLEET[:2]
    assert best(ranking, FLEET[1:4]) == FLEET[1:2]
    assert best(ranking, FLEET[2:4]) == FLEET[2:3]
    assert best(ranking, []) == []
