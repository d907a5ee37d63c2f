"""What a worker would take, from its entry in the configuration and the headers of its model's files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterctl.kv_sizes import Quantization, kv_shape
from clusterctl.memory_fit import Asked, Fit, Machine, ModelSizes, Need, need_of
from protocol.config import EMBEDDED, WorkerConfig
from protocol.model_folder import ModelFolder, open_folder
from protocol.model_shards import Shard, open_shard
from protocol.models import EMBEDDED_BYTES, model_path

ENGINES = ("batched", "serial", "vision", "embeddings")
"""Those whose memory can be told."""
_MIB = 1 << 20
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMED = {"float32": 4, "float16": 2, "bfloat16": 2}


def fit(machine: Machine, workers: Iterable[WorkerConfig], models: Path) -> Fit:
    """Those workers on that machine, with their models beneath `models`. Reads headers of files."""
    return Fit(machine, tuple(worker_need(worker, models) for worker in workers))


def worker_need(worker: WorkerConfig, models: Path) -> Need:
    """Never raises: what cannot be told is named."""
    asked = Asked(
        worker_id=worker.id,
        max_num_seqs=worker.slots,
        max_model_len=worker.max_model_len,
        kv_tokens=worker.kv_tokens,
        prefix_cache=worker.prefix_cache_mb * _MIB,
        batched=worker.engine != "serial",
        on_demand=worker.residency == "on_demand",
        stated=None if worker.memory_mb is None else worker.memory_mb * _MIB,
    )
    if worker.engine not in ENGINES:
        return need_of(asked, None, f"what the engine {worker.engine!r} takes is not known; set memory_mb")
    folder = model_path(worker.model, models)
    if worker.model == EMBEDDED and not folder.is_dir():
        return need_of(asked, ModelSizes(EMBEDDED_BYTES, None))
    try:
        sizes = _sizes(worker, folder, models)
        if worker.engine == "embeddings":  # it keeps nothing of what it has read
            sizes, asked = replace(sizes, shape=None, logits_bytes=0), replace(asked, prefix_cache=0)
            return replace(need_of(asked, sizes), unknown="")
        return need_of(asked, sizes)
    except (ValueError, OSError) as error:
        return need_of(asked, None, str(error))


def _sizes(worker: WorkerConfig, folder: Path, models: Path) -> ModelSizes:
    options = worker.engine_options
    bits = options.get("kv_bits")
    quantized = None
    if isinstance(bits, int) and not options.get("quantized_kv_start"):
        quantized = Quantization(bits, int(options.get("kv_group_size", 64)))
    found = model_sizes(open_folder(folder), quantized)
    if worker.adapter is not None:
        adapter = open_shard(Path(worker.adapter).expanduser() / "adapters.safetensors")
        found = replace(found, weights=found.weights + adapter.size)
    if isinstance(draft := options.get("draft_model"), str):
        found = replace(found, draft=model_sizes(open_folder(model_path(draft, models)), quantized))
    return found


def model_sizes(folder: ModelFolder, quantized: Quantization | None = None) -> ModelSizes:
    """Of a folder whose files are whole."""
    config = {**folder.config, **(folder.config.get("text_config") or {})}
    element = element_bytes(folder.weights, config)
    try:
        shape = kv_shape(config, element, quantized)
    except (ValueError, TypeError, ZeroDivisionError):
        shape = None
    width = 4 * _count(config, "hidden_size") + 3 * _count(config, "intermediate_size")
    experts = _count(config, "num_experts_per_tok") * _count(config, "moe_intermediate_size")
    return ModelSizes(
        weights=sum(shard.size for shard in folder.weights),
        shape=shape,
        context=folder.context,
        step_bytes=element * (width + 3 * experts),
        logits_bytes=4 * (folder.vocabulary or 0),
    )


def element_bytes(shards: Iterable[Shard], config: Mapping[str, Any]) -> int:
    """Of one number of what the model computes: of its keys' weights, or of their scales if quantized."""
    types = {name: kind for shard in shards for name, kind in shard.tensors.items()}
    for ending in (".scales", ".weight"):
        for part in ("k_proj", "kv_a_proj", "qkv", "norm", ""):
            for name, kind in types.items():
                if name.endswith(ending) and part in name and kind in _BYTES:
                    return _BYTES[kind]
    return _NAMED.get(str(config.get("torch_dtype") or config.get("dtype")), 2)


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0
