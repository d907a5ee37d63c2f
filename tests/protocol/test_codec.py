from __future__ import annotations

import random
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_MESSAGE_BYTES, FrameError, decode, encode
from protocol.messages import Abort, AnyMessage, Generate, Message, Unknown
from protocol.values import SamplingParams
from tests.protocol.samples import SAMPLES

GOLDEN = Path(__file__).parent.parent / "golden" / "frames-1.0.txt"


@pytest.mark.parametrize("message", SAMPLES, ids=lambda m: type(m).__name__)
def test_every_message_round_trips(message: Message):
    assert decode(encode(message)) == (message, [])


def test_there_is_a_sample_of_every_message():
    assert {type(sample) for sample in SAMPLES} == set(get_args(AnyMessage))


def test_binary_parts_travel_beside_the_message():
    frames = encode(Abort(request_id="r"), [b"\x00image", b""])
    assert decode(frames) == (Abort(request_id="r"), [b"\x00image", b""])


@given(st.lists(st.binary(max_size=200), max_size=3))
def test_any_bytes_give_a_message_or_frame_error(frames: list[bytes]):
    _decode_or_frame_error(frames)


_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=12), _trees, max_size=5),
    st.sampled_from([type(s).__name__ for s in SAMPLES]),
)
def test_any_map_with_a_known_tag_gives_a_message_or_frame_error(fields: dict[str, object], tag: str):
    _decode_or_frame_error([msgspec.msgpack.encode({**fields, "type": tag})])


@given(st.sampled_from(SAMPLES), st.randoms(use_true_random=False))
def test_damaged_messages_give_a_message_or_frame_error(sample: Message, rng: random.Random):
    frame = bytearray(encode(sample)[0])
    for _ in range(rng.randint(1, 4)):
        frame[rng.randrange(len(frame))] = rng.randrange(256)
    _decode_or_frame_error([bytes(frame[: rng.randint(0, len(frame))])])


def _decode_or_frame_error(frames: list[bytes]) -> None:
    try:
        message, parts = decode(frames)
    except FrameError:
        return
    assert isinstance(message, Message | Unknown)
    assert list(parts) == frames[1:]


@pytest.mark.parametrize(
    "frame",
    [b"\x91" * 5000, b"\x81\xa4type" + b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xc1", b""],
    ids=["nested", "nested-in-tag", "huge-array", "never-used", "empty"],
)
def test_hostile_frames_give_frame_error(frame: bytes):
    with pytest.raises(FrameError):
        decode([frame])


def test_no_frames_at_all_give_frame_error():
    with pytest.raises(FrameError, match="without frames"):
        decode([])


def test_a_message_of_a_later_version_is_unknown():
    frame = msgspec.msgpack.encode({"type": "Teleport", "to": "mars"})
    assert decode([frame])[0] == Unknown(tag="Teleport")


def test_a_field_of_a_later_version_is_skipped():
    frame = msgspec.msgpack.encode({"type": "Abort", "request_id": "r", "why": "later"})
    assert decode([frame])[0] == Abort(request_id="r")


def test_a_frame_over_the_limit_is_refused_before_it_is_sent():
    with pytest.raises(FrameError, match="exceeds the limit"):
        encode(Abort(request_id="r"), [bytes(MAX_MESSAGE_BYTES + 1)])


def test_golden_frames_decode_and_encode_as_released():
    golden = dict(line.split(" ", 1) for line in GOLDEN.read_text().splitlines())
    assert len(golden) == len(SAMPLES)
    for index, sample in enumerate(SAMPLES):
        frame = bytes.fromhex(golden[f"{index}:{type(sample).__name__}"])
        assert decode([frame])[0] == sample
        assert _is_grown(msgspec.msgpack.decode(encode(sample)[0]), msgspec.msgpack.decode(frame))


def _is_grown(now: Any, before: Any) -> bool:
    """Whether they are the same, but for what arrays have more at their ends."""
    if isinstance(before, dict):
        return now.keys() == before.keys() and all(_is_grown(now[key], before[key]) for key in before)
    if isinstance(before, list):
        return len(now) >= len(before) and all(map(_is_grown, now, before))
    return bool(now == before)


def test_a_prompt_is_text_or_token_ids():
    for prompt in ("text", (1, 2, 3)):
        message = Generate(
            request_id="r",
            attempt=0,
            model="m",
            sampling=SamplingParams(),
            seed=1,
            prompt=prompt,
        )
        assert decode(encode(message))[0] == message


_NOT_A_NUMBER, _ENDLESS = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Hello", {"capacity": {"max_num_seqs": 0}}),
        ("Hello", {"capacity": {"max_waiting": -1}}),
        ("Hello", {"capacity": {"kv_tokens": 0}}),
        ("Hello", {"worker_id": "w-1\r\nx-evil: 1"}),
        ("Hello", {"worker_id": "w-1\n"}),
        ("Hello", {"card": {"name": "m\n"}}),
        ("Hello", {"card": {"name": ""}}),
        ("Hello", {"gateways": 0}),
        ("Heartbeat", {"load": {"running": -1}}),
        ("Heartbeat", {"progress": _NOT_A_NUMBER}),
        ("Heartbeat", {"prefill_tokens_per_s": -1.0}),
        ("Heartbeat", {"step_age_s": _ENDLESS}),
        ("Finished", {"usage": {"completion_tokens": -5}}),
        ("Rejected", {"retry_after_s": _NOT_A_NUMBER}),
        ("Generate", {"sampling": {"max_tokens": -1}}),
        ("Generate", {"sampling": {"temperature": _NOT_A_NUMBER}}),
        ("Generate", {"time_left_s": _NOT_A_NUMBER}),
        ("Generate", {"seed": -1}),
        ("Drain", {"timeout_s": -1.0}),
    ],
)
def test_values_that_no_reader_could_reckon_with_are_refused(kind: str, changes: dict[str, object]):
    sample = next(message for message in SAMPLES if type(message).__name__ == kind)
    with pytest.raises(FrameError, match=r"Expected"):
        decode([msgspec.msgpack.encode(msgspec.to_builtins(sample) | changes)])
