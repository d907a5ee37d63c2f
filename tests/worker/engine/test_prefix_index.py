"""Which beginnings serve which prompts, and which one goes first: tables, and properties over random use."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.prefix_index import PrefixIndex, chained, common, worth

BLOCK = 4
A, B = tuple(range(100, 130)), tuple(range(200, 230))
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=14).map(tuple)


def new(max_bytes, block) -> PrefixIndex[Any]:
    return PrefixIndex(max_bytes, block)


def keep(index, ids, *, exact=False, size=1):
    """Store a prompt as the cache does; each token of a payload is worth `size` bytes."""
    node, missing = index.missing(ids)
    for tokens in missing:
        if not index.make_room(size * len(tokens), node):
            return
        node = index.add(node, tokens, ids[: node.end + len(tokens)], size * len(tokens), exact=exact)


def held(index):
    return sorted(node.payload for node in index.nodes())


def consistent(index):
    nodes = list(index.nodes())
    assert index.entries == len(nodes)
    assert index.bytes == sum(node.nbytes for node in nodes) <= index.max_bytes
    for node in nodes:
        assert node.end == len(node.payload) == node.parent.end + len(node.tokens)
        assert node.order == sorted(node.children)
        assert not node.children or len(node.tokens) == index.block


@pytest.mark.parametrize(
    ("stored", "asked", "found"),
    [
        (A[:10], A[:10], 10),
        (A[:10], A[:3], 3),
        (A[:10], A[:6] + B[:6], 6),
        (A[:10], A[:20], 10),
        (A[:8], A[:8] + B[:1], 8),
        (A[:10], B[:10], 0),
        (A[:10], (), 0),
    ],
)
def test_in_blocks_a_common_beginning_is_found_to_the_token(stored, asked, found):
    index = new(1000, BLOCK)
    keep(index, stored)
    match = index.match(asked)
    assert match.tokens == found
    assert all(node.payload == stored[: node.end] for node in match.path)


@pytest.mark.parametrize(("asked", "found"), [(A[:9], 0), (A[:10], 10), (A[:12], 10), (A[:10] + B[:3], 10)])
def test_an_exact_beginning_serves_only_what_goes_on_where_it_ends(asked, found):
    index = new(1000, None)
    keep(index, A[:10], exact=True)
    keep(index, A[:10] + A[:3], exact=True)
    assert index.match(asked).tokens == found


def test_of_two_exact_beginnings_the_longer_one_serves_and_the_shorter_one_stays():
    index = new(1000, None)
    keep(index, A[:10], exact=True)
    keep(index, A[:20], exact=True)
    keep(index, A[:20], exact=True)
    assert (index.match(A).tokens, index.match(A[:15]).tokens, index.entries) == (20, 10, 2)


def test_a_whole_beginning_that_can_be_cut_covers_shorter_ones():
    index = new(1000, None)
    keep(index, A[:10])
    keep(index, A[:20])
    keep(index, A[:5])
    assert held(index) == [A[:20]]
    assert index.match(A[:7] + B).tokens == 7


def test_what_prompts_share_is_kept_once():
    index = new(1000, BLOCK)
    keep(index, A[:12] + B[:3])
    keep(index, A[:12] + A[:3])
    assert held(index) == sorted([A[:4], A[:8], A[:12], A[:12] + A[:3], A[:12] + B[:3]])


def test_the_last_part_of_a_block_gives_way_to_more_of_it_and_hands_on_its_use():
    index = new(1000, BLOCK)
    keep(index, A[:6])
    index.use(index.match(A[:6]))
    keep(index, A[:7])
    keep(index, A[:6])
    keep(index, A[:10])
    assert held(index) == [A[:4], A[:8], A[:10]]
    assert [node.hits for node in index.match(A[:8]).path] == [1, 1]


def test_where_prompts_part_is_told_also_of_what_cannot_be_cut():
    index = new(1000, None)
    keep(index, A[:20], exact=True)
    keep(index, B[:20], exact=True)
    assert index.branch(A[:12] + B) == 12
    assert index.match(A[:12] + B).tokens == 0
    assert index.branch((1, 2, 3)) == 0


def test_a_leaf_goes_before_what_it_follows():
    index = new(12, BLOCK)
    keep(index, A[:12])
    keep(index, B[:4])
    assert held(index) == [A[:4], A[:8], B[:4]]
    assert index.evictions == 1


def test_a_prompt_never_drops_its_own_beginning_nor_grows_beyond_the_bytes():
    index = new(10, BLOCK)
    keep(index, B[:4])
    keep(index, A[:20])
    assert held(index) == [A[:4], A[:8]]
    keep(index, A[:20])
    assert held(index) == [A[:4], A[:8]]


def test_what_is_larger_than_all_is_not_kept_and_drops_nothing_that_it_need_not():
    index = new(10, None)
    keep(index, A[:20])
    assert (index.entries, index.bytes) == (0, 0)


def test_worth_weighs_reuse_length_age_and_bytes():
    index = new(10_000, None)
    for ids, size in ((A[:20], 1), (B[:5], 1), (B[5:25], 4)):
        keep(index, ids, size=size)
    long, short, heavy = (index.match(ids).path[0] for ids in (A, B, B[5:]))
    assert worth(long, 0) > worth(short, 0)
    assert worth(long, 0) > worth(heavy, 0)
    assert worth(long, 0) > worth(long, 5)
    before = worth(short, 3)
    index.use(index.match(B[:5]))
    assert worth(short, 3) > before


def test_fc_20_small_requests_do_not_drop_a_long_session():
    """FC-20: title and summary calls between the turns of a session of 3,000 tokens, in room for 4,500."""
    index = new(4500, 64)
    session = tuple(range(10_000, 13_000))
    keep(index, session)
    for turn in range(5):
        index.use(index.match(session))
        for number in range(40):
            ids = tuple(range(turn * 10_000 + number * 50, turn * 10_000 + number * 50 + 50))
            index.use(index.match(ids))
            keep(index, (1_000_000 + turn, *ids))
        assert index.match(session).tokens == 3000
        consistent(index)
    assert index.evictions > 0


def test_what_was_in_demand_once_goes_at_last():
    index = new(40, BLOCK)
    keep(index, A[:20])
    for _ in range(1000):
        index.use(index.match(A[:20]))
    for number in range(400):
        ids = tuple(range(1000 * number, 1000 * number + 20))
        keep(index, ids)
        index.use(index.match(ids))
    assert index.match(A).tokens < 20


def test_only_a_leaf_can_be_dropped():
    index = new(100, BLOCK)
    keep(index, A[:8])
    with pytest.raises(ValueError, match="leaf"):
        index.drop(index.match(A[:4]).path[0])


def test_nothing_is_left_after_clear():
    index = new(100, BLOCK)
    keep(index, A[:8])
    index.clear()
    assert (index.entries, index.bytes, index.match(A).tokens, held(index)) == (0, 0, 0, [])


def test_a_key_names_all_tokens_up_to_there():
    index = new(100, BLOCK)
    keep(index, A[:8])
    keep(index, B[:4] + A[4:8])
    keys = {node.key for node in index.nodes()}
    assert len(keys) == 4
    assert chained(chained(b"", A[:4]), A[4:8]) in keys


def test_common_counts_the_equal_tokens_at_the_beginning():
    assert [common(*pair) for pair in (((), ()), ((1, 2), (1,)), ((1, 2), (1, 3)), ((2,), (1,)))] == [
        0,
        1,
        1,
        0,
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(PROMPTS, st.booleans()), max_size=25), st.integers(1, 40))
def test_whatever_is_stored_in_blocks_the_longest_that_is_held_is_found(steps, room):
    index = new(room, BLOCK)
    for ids, store in steps:
        if store:
            keep(index, ids)
            consistent(index)
        match = index.match(ids)
        index.use(match)
        assert match.tokens == max((common(ids, kept) for kept in held(index)), default=0)
        assert all(node.payload is not None for node in match.path)
        assert not match.path or (match.path[-1].payload or ())[: match.tokens] == ids[: match.tokens]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(PROMPTS, st.booleans()), max_size=25), st.integers(1, 40))
def test_whatever_is_stored_exactly_the_longest_whole_one_is_found(steps, room):
    index = new(room, None)
    for ids, store in steps:
        if store:
            keep(index, ids, exact=True)
            consistent(index)
        match = index.match(ids)
        index.use(match)
        assert match.tokens == max((len(kept) for kept in held(index) if ids[: len(kept)] == kept), default=0)
        assert index.branch(ids) == max((common(ids, kept) for kept in held(index)), default=0)
