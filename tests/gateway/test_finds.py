"""What is found in caches of workers that a key does not belong to."""

from __future__ import annotations

from gateway.finds import Finds


def test_where_nothing_is_known_nothing_is_found_elsewhere():
    assert Finds().elsewhere(b"k") == 0.0
    assert not Finds().any_of("m")


def test_what_is_found_elsewhere_again_and_again_is_known_everywhere():
    finds = Finds()
    for _ in range(2):
        finds.learn("m", b"k", home=False, found=True)
    assert 0.5 < finds.elsewhere(b"k") < 0.6
    for _ in range(20):
        finds.learn("m", b"k", home=False, found=True)
    assert finds.elsewhere(b"k") > 0.99
    assert finds.elsewhere(b"other") == 0.0
    for _ in range(20):
        finds.learn("m", b"k", home=False, found=False)
    assert finds.elsewhere(b"k") < 0.01


def test_what_own_workers_find_says_nothing_of_others_but_that_there_are_caches():
    finds = Finds()
    finds.learn("m", b"k", home=True, found=False)
    assert not finds.any_of("m")
    finds.learn("m", b"k", home=True, found=True)
    assert finds.elsewhere(b"k") == 0.0
    assert finds.any_of("m")
    assert not finds.any_of("n")


def test_the_longest_unheard_keys_are_forgotten():
    finds = Finds()
    for number in range(5000):
        finds.learn("m", str(number).encode(), home=False, found=True)
    assert finds.elsewhere(b"0") == 0.0
    assert finds.elsewhere(b"4999") > 0.0
