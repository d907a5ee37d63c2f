"""The batched engine: many requests through one model at once, joining and leaving between steps."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

from protocol.config import EMBEDDED, WorkerConfig
from protocol.models import no_model
from worker.engine.limits import Limits
from worker.engine.loading import LoadedModel, Loader
from worker.engine.sequence import Stepper
from worker.engine.text import TextEngine


class BatchedEngine(TextEngine):
    """Continuous batching. The default."""

    kind = "batched"
    can_score_prompts = True

    def __init__(
        self,
        model: str,
        *,
        models: Path,
        name: str | None = None,
        max_num_seqs: int = 8,
        max_waiting: int | None = None,
        max_model_len: int | None = None,
        kv_tokens: int | None = None,
        prefix_cache_mb: int = 256,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """`model` is a folder, or `embedded`, which is kept beneath `models`. Raises `ValueError`."""
        folder = None if model == EMBEDDED else Path(model).expanduser()
        if folder is not None and (why := no_model(folder)):
            raise ValueError(why)
        super().__init__(
            name or Path(model).name,
            Limits(max_num_seqs, max_waiting, kv_tokens),
            partial(
                Loader,
                folder,
                models,
                max_model_len,
                tool_parser=tool_parser,
                reasoning_parser=reasoning_parser,
            ),
        )
        self._prefix_cache_bytes = prefix_cache_mb << 20

    @classmethod
    def from_config(cls, config: WorkerConfig, models: Path) -> BatchedEngine:
        """Raises `ValueError` for what cannot work."""
        if importlib.util.find_spec("mlx_lm") is None:
            raise ValueError("the engine 'batched' needs MLX, which is not installed; run: scripts/install")
        if config.engine_options:
            raise ValueError(
                f"the engine 'batched' has no engine_options; remove {sorted(config.engine_options)}"
            )
        return cls(
            config.model,
            models=models,
            name=config.name,
            max_num_seqs=config.max_num_seqs,
            max_waiting=config.waiting_room,
            max_model_len=config.max_model_len,
            kv_tokens=config.kv_tokens,
            prefix_cache_mb=config.prefix_cache_mb,
            tool_parser=config.tool_parser,
            reasoning_parser=config.reasoning_parser,
        )

    def make_stepper(self, model: LoadedModel) -> Stepper:
        from worker.engine.batch import Batch  # noqa: PLC0415 (OpenBLAS came first)
        from worker.engine.batch_sampler import BatchSampler  # noqa: PLC0415
        from worker.engine.prefix_cache import PrefixCache  # noqa: PLC0415

        sampler = BatchSampler(model.network, model.special)
        return Batch(sampler, self._limits.max_num_seqs, PrefixCache(self._prefix_cache_bytes))
