"""Which texts are computed together: those of about one length, as shorter ones are padded. Pure."""

from __future__ import annotations

from collections.abc import Sequence

MOST_TOKENS = 8192
"""Of one batch, padding included; a longer text is a batch of its own."""
FEW_TOKENS = 512
"""A batch of less is filled up with shorter texts: a step has a price of its own."""
_STEP = 16


def bucket(length: int) -> int:
    """The class of a length: by 16 up to 64, then four classes to each doubling."""
    step = max(_STEP, 1 << max(0, (length - 1).bit_length() - 3))
    return -(-length // step) * step


def next_batch(lengths: Sequence[int]) -> list[int]:
    """Of texts that wait, the oldest first: the places of those to compute now.

    The oldest is among them, with others of its class; where that is little, with the next shorter ones.
    """
    longest = bucket(lengths[0])
    order = sorted(
        (place for place, length in enumerate(lengths) if length <= longest),
        key=lambda place: (longest - bucket(lengths[place]), place),
    )
    padded = max(lengths[place] for place in order if bucket(lengths[place]) == longest)
    chosen: list[int] = []
    for place in order:
        tokens = padded * (len(chosen) + 1)
        if chosen and tokens > (MOST_TOKENS if bucket(lengths[place]) == longest else FEW_TOKENS):
            break
        chosen.append(place)
    return chosen
