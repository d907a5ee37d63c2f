"""The serial engine: one request at a time, for what cannot be batched.

That is speculative decoding with a draft model, and a quantized or bounded key-value cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from worker.engine.loading import LoadedModel
from worker.engine.sequence import Stepper
from worker.engine.text import TextEngine


class SerialOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_options`. All but the first two are mlx-lm's words."""

    draft_model: str | None = None
    """A folder with a smaller model of the same tokens, which proposes what the model checks."""
    num_draft_tokens: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    kv_bits: Literal[2, 4, 8] | None = None
    """The key-value cache is kept in so many bits a number."""
    kv_group_size: Literal[32, 64, 128] = 64
    quantized_kv_start: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Shorter caches are left as they are."""
    max_kv_size: Annotated[int, msgspec.Meta(ge=16)] | None = None
    """The model sees its last so many tokens only."""


class SerialEngine(TextEngine):
    """One request at a time; a second is refused, or waits where there is a waiting room."""

    kind = "serial"

    def __init__(self, model: str, *, engine_options: Mapping[str, Any] | None = None, **common: Any) -> None:
        """`common` as `TextEngine` has it, with one slot. Raises `ValueError`."""
        self._options = _checked(engine_options or {})
        super().__init__(model, **{"max_num_seqs": 1, **common, "draft_model": self._options.draft_model})

    def make_stepper(self, model: LoadedModel) -> Stepper:
        from worker.engine.caches import CacheOptions, Caches  # noqa: PLC0415 (OpenBLAS came first)
        from worker.engine.prefix_cache import open_prefix_cache  # noqa: PLC0415
        from worker.engine.solo import Networks, Solo  # noqa: PLC0415

        options = self._options
        networks = Networks(
            model.network, model.draft, options.num_draft_tokens, model.vocabulary, model.special
        )
        how = CacheOptions(
            options.kv_bits, options.kv_group_size, options.quantized_kv_start, options.max_kv_size
        )
        caches = Caches(networks.all, how)
        empty = [layer for cache in caches.new() for layer in cache]
        return Solo(networks, caches, open_prefix_cache(empty, f"{model.version} {how}", self._prefixes))


def _checked(options: Mapping[str, Any]) -> SerialOptions:
    try:
        known = msgspec.convert(dict(options), SerialOptions)
    except msgspec.ValidationError as error:
        raise ValueError(f"engine_options of the engine 'serial': {error}") from error
    if known.max_kv_size is not None:
        for other in ("draft_model", "kv_bits"):
            if getattr(known, other) is not None:
                raise ValueError(
                    f"engine_options: max_kv_size and {other} exclude one another; remove one of them"
                )
    return known
