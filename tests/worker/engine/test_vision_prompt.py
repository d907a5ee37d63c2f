"""Numbers of pictures: never two pictures under one number, and bounded what is kept of them."""

import pytest

from worker.engine import vision_prompt
from worker.engine.vision_prompt import Places

VOCABULARY = 100
MARK = 7


@pytest.fixture
def forgotten():
    return []


@pytest.fixture
def places(forgotten):
    return Places(VOCABULARY, lambda: forgotten.append(True))


def add(places, key, tokens):
    return places.add(key, [1, *[MARK] * tokens, 2], MARK)


def test_each_picture_has_numbers_of_its_own_and_keeps_them(places):
    one, two = add(places, b"one", 3), add(places, b"two", 2)
    assert one.ids == (1, 100, 101, 102, 2)
    assert two.ids == (1, 103, 104, 2)
    assert places.of(b"one") is one
    assert places.of(b"three") is None


def test_what_was_not_seen_for_long_is_forgotten(places, monkeypatch):
    monkeypatch.setattr(vision_prompt, "_KNOWN", 2)
    add(places, b"one", 1)
    add(places, b"two", 1)
    assert places.of(b"one")
    add(places, b"three", 1)
    assert [key for key in (b"one", b"two", b"three") if places.of(key)] == [b"one", b"three"]


def test_large_pictures_are_forgotten_sooner(places):
    for number in range(300):
        add(places, b"%d" % number, 1 << 14)
    known = [place for number in range(300) if (place := places.of(b"%d" % number))]
    assert 60 <= len(known) == (1 << 20) // ((1 << 14) + 2)
    assert places.of(b"299") in known


def test_one_that_is_larger_than_all_that_is_kept_has_its_numbers(places, monkeypatch):
    monkeypatch.setattr(vision_prompt, "_KNOWN_IDS", 4)
    assert add(places, b"one", 9).tokens == 9
    assert places.of(b"one") is None


def test_numbers_fit_into_32_bits_and_none_comes_again_before_all_was_forgotten_twice(
    places, forgotten, monkeypatch
):
    monkeypatch.setattr(vision_prompt, "_HALVES", (130, 160))
    given: dict[int, int] = {}
    for picture in range(40):
        place = add(places, b"%d" % picture, 7)
        assert place.first >= VOCABULARY
        assert place.first + place.tokens <= 160
        for number in range(place.first, place.first + place.tokens):
            assert len(forgotten) - given.get(number, -2) >= 2
            given[number] = len(forgotten)
    assert len(forgotten) > 4


def test_a_picture_that_comes_again_after_all_was_forgotten_has_others(places, forgotten, monkeypatch):
    monkeypatch.setattr(vision_prompt, "_HALVES", (130, 160))
    first = add(places, b"one", 20)
    add(places, b"two", 20)
    assert forgotten == [True]
    assert places.of(b"one") is None
    assert first.first == VOCABULARY
