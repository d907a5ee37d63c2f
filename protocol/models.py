"""Whether a path can be a model at all, told by names alone: what is asked before anything is started."""

from __future__ import annotations

import re
from pathlib import Path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_FOREIGN = (".gguf", ".bin", ".pth", ".pt", ".onnx")
_CONVERT = (
    "convert the model: mlx_lm.convert --hf-path MODEL --mlx-path FOLDER, or take one that is converted"
)


def no_model(path: Path) -> str:
    """Why there is no model in MLX format at `path`, with the cure; empty when there may be one."""
    if path.is_dir():
        return _no_weights(path)
    if path.suffix in _FOREIGN and path.is_file():
        return f"{path} is a file of a format that is not MLX's; {_CONVERT}"
    if path.exists():
        return f"{path} is a file; give the folder in which it lies"
    why = f"there is no model folder at {path}"
    if _HUB_ID.fullmatch(str(path)):
        return f"{why}, and none is fetched; run: hf download {path} --local-dir FOLDER, and give FOLDER"
    if not path.is_absolute():
        why += f", seen from {Path.cwd()}"
    return f"{why}; give a folder in MLX format, or 'embedded'"


def _no_weights(folder: Path) -> str:
    names = sorted(file.name for file in folder.iterdir())
    if any(name.startswith("model") and ".safetensors" in name for name in names):
        return ""
    foreign = next((name for name in names if name.endswith(_FOREIGN)), None)
    if foreign is not None:
        return f"{folder} holds no model*.safetensors, and {foreign} is no format of MLX; {_CONVERT}"
    return f"{folder} holds no model*.safetensors; copy the whole model there"
