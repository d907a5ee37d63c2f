"""The engine for models that see: text and pictures in one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from worker.engine.loading import LoadedModel
from worker.engine.sequence import Stepper
from worker.engine.text import TextEngine
from worker.engine.vision_loading import VisionLoader

ENCODER_CACHE_MB = 64


class VisionOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`engine_options`."""

    encoder_cache_mb: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """So much of what the encoder made of pictures is kept. None: 64, and 0 where no prefixes are kept."""


class VisionEngine(TextEngine):
    """Continuous batching, for models of mlx-vlm that take pictures as embeddings among those of words."""

    kind = "vision"
    packages = ("mlx_lm", "mlx_vlm", "PIL")
    can_score_prompts = True

    def __init__(
        self,
        model: str,
        *,
        engine_options: Mapping[str, Any] | None = None,
        prefix_cache_mb: int = 256,
        **common: Any,
    ) -> None:
        """`common` as `TextEngine` has it, without an adapter. Raises `ValueError`."""
        try:
            options = msgspec.convert(dict(engine_options or {}), VisionOptions)
        except msgspec.ValidationError as error:
            raise ValueError(f"engine_options of the engine 'vision': {error}") from error
        if common.get("prefix_cache_disk_mb"):
            raise ValueError("the engine 'vision' keeps no prefixes on disk; remove prefix_cache_disk_mb")
        kept = options.encoder_cache_mb
        if kept is None:
            kept = ENCODER_CACHE_MB if prefix_cache_mb else 0
        self._encoder_bytes = kept << 20
        super().__init__(model, prefix_cache_mb=prefix_cache_mb, **common)

    @property
    def is_mllm(self) -> bool:
        return True

    def inspect(self) -> int:
        """With what is kept of pictures."""
        return super().inspect() + (self._encoder_bytes >> 20)

    def make_loader(self, *arguments: Any, **options: Any) -> VisionLoader:
        return VisionLoader(
            *arguments, encoder_bytes=self._encoder_bytes, forget=self.clear_runtime_caches, **options
        )

    def make_stepper(self, model: LoadedModel) -> Stepper:
        from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415 (OpenBLAS came first)

        from worker.engine.batch_sampler import BatchSampler  # noqa: PLC0415
        from worker.engine.prefix_cache import open_prefix_cache  # noqa: PLC0415
        from worker.engine.vision_batch import VisionBatch  # noqa: PLC0415

        network, limits = model.network, self._limits
        prefixes = open_prefix_cache(make_prompt_cache(network), model.version, self._prefixes)
        sampler = BatchSampler(network, model.special)
        return VisionBatch(network, sampler, limits.max_num_seqs, prefixes, kv_tokens=limits.kv_tokens)
