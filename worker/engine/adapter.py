"""A LoRA adapter, as `mlx_lm.lora` writes it: its files checked, and laid over a model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.model_documents import read_json
from protocol.model_shards import open_shard

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapters.safetensors"
_PARAMETERS = ("rank", "scale", "dropout")
_PIECES = ("lora_a", "lora_b")


@dataclass(frozen=True)
class Adapter:
    """A folder whose files were found whole."""

    path: Path
    tensors: frozenset[str]
    size: int
    """Of its weights, in bytes."""

    def fingerprint(self, model: str) -> str:
        """That of the model of the fingerprint `model` with this adapter over it."""
        digest = hashlib.sha256(model.encode())
        for name in (_CONFIG, _WEIGHTS):
            with (self.path / name).open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def apply(self, model: Any) -> None:
        """Lay it over a model whose weights may not be read yet, on the thread that will use both.

        Raises `ValueError` when it was made for another one.
        """
        from mlx.utils import tree_flatten  # noqa: PLC0415 (OpenBLAS comes first)
        from mlx_lm.tuner.utils import load_adapters  # noqa: PLC0415

        before = {name for name, _array in tree_flatten(model.parameters())}
        try:
            load_adapters(model, str(self.path))
        except Exception as error:  # whatever its library makes of files that do not fit
            what = "; ".join(line.strip() for line in str(error).splitlines()[:3])
            raise ValueError(self._does_not_fit(what)) from error
        added = {name for name, _array in tree_flatten(model.parameters())} - before
        missing = sorted(name for name in added if name.endswith(_PIECES) and name not in self.tensors)
        if missing:
            raise ValueError(self._does_not_fit(f"it lacks {missing[0]}, and {len(missing) - 1} more"))
        model.eval()  # the layers that were added would leave some of themselves out, as for training

    def _does_not_fit(self, what: str) -> str:
        return (
            f"{self.path / _WEIGHTS} does not fit the model: {what};"
            " give the adapter that was trained on this model"
        )


def open_adapter(path: Path) -> Adapter:
    """The adapter in the folder at `path`. Raises `ValueError` that names what is missing or damaged."""
    if not path.is_dir():
        raise ValueError(f"there is no adapter at {path}; give the folder that mlx_lm.lora wrote")
    config, weights = path / _CONFIG, path / _WEIGHTS
    found = read_json(config)
    if "peft_type" in found:
        raise ValueError(f"{config} is of PEFT's format; train with mlx_lm.lora, or convert the adapter")
    if found.get("fine_tune_type") != "full":
        parameters = found.get("lora_parameters")
        missing = [name for name in _PARAMETERS if not isinstance(parameters, dict) or name not in parameters]
        missing += [] if isinstance(found.get("num_layers"), int) else ["num_layers"]
        if missing:
            raise ValueError(f"{config} is damaged: it lacks {', '.join(missing)}; copy the adapter again")
    if not weights.is_file():
        raise ValueError(f"{weights} is missing; copy the whole adapter there")
    shard = open_shard(weights)
    return Adapter(path, frozenset(shard.tensors), shard.size)
