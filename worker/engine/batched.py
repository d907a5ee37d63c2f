"""The batched engine: many requests through one model at once, joining and leaving between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker.engine.loading import LoadedModel
from worker.engine.sequence import Stepper
from worker.engine.text import TextEngine


class BatchedEngine(TextEngine):
    """Continuous batching. The default."""

    kind = "batched"
    can_score_prompts = True

    def __init__(self, model: str, *, engine_options: Mapping[str, Any] | None = None, **common: Any) -> None:
        """`common` as `TextEngine` has it. Raises `ValueError`."""
        if engine_options:
            raise ValueError(
                f"the engine 'batched' has no engine_options; remove {', '.join(sorted(engine_options))}, or"
                ' take engine = "serial" for a draft model or a quantized cache'
            )
        super().__init__(model, **common)

    def make_stepper(self, model: LoadedModel) -> Stepper:
        from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415 (OpenBLAS came first)

        from worker.engine.batch import Batch  # noqa: PLC0415
        from worker.engine.batch_sampler import BatchSampler  # noqa: PLC0415
        from worker.engine.prefix_cache import open_prefix_cache  # noqa: PLC0415

        prefixes = open_prefix_cache(make_prompt_cache(model.network), model.version, self._prefixes)
        limits, sampler = self._limits, BatchSampler(model.network, model.special)
        return Batch(sampler, limits.max_num_seqs, prefixes, kv_tokens=limits.kv_tokens)
