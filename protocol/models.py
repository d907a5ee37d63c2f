"""Which folder is meant by a model's name, and whether it can be a model at all, told by names alone:
what is asked before anything is started."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

from protocol.config import EMBEDDED

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_BYTES = 538_000_000
"""Of its weights in float32, its larger form."""

_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_HUB_ID = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_FOREIGN = (".gguf", ".bin", ".pth", ".pt", ".onnx")
_CONVERT = (
    "convert the model: mlx_lm.convert --hf-path MODEL --mlx-path FOLDER, or take one that is converted"
)


def is_hub_id(model: str) -> bool:
    """Whether it has the form of a model's name on the hub, `ORGANISATION/NAME`."""
    return _HUB_ID.fullmatch(model) is not None


def embedded_folder(models: Path) -> Path:
    """Where the embedded model is, or is going to be."""
    return models / embedded_name(sys.platform, platform.machine())


def embedded_name(system: str, machine: str) -> str:
    """4-bit on Apple silicon; float32 elsewhere, where MLX multiplies quantized matrices slowly."""
    return f"{EMBEDDED_NAME}-4bit" if (system, machine) == ("darwin", "arm64") else f"{EMBEDDED_NAME}-fp32"


def model_path(model: str, models: Path) -> Path:
    """The folder that is meant, there or not: a path, `embedded`, or what was pulled to `models`."""
    folder = Path(model).expanduser()
    if model == EMBEDDED:
        return embedded_folder(models)
    return models / model if is_hub_id(model) and not folder.exists() else folder


def find_model(model: str, models: Path) -> Path:
    """The same, for a folder that is there.

    Raises `ValueError` when there can be no model in MLX format, with the cure.
    """
    folder = model_path(model, models)
    if is_hub_id(model) and not folder.exists():
        raise ValueError(
            f"there is no model folder at {model}, nor at {folder}; if it is a model of the hub, fetch it:"
            f" clusterctl model pull {model}"
        )
    if why := no_model(folder):
        raise ValueError(why)
    return folder


def no_model(path: Path) -> str:
    """Why there is no model in MLX format at `path`, with the cure; empty when there may be one."""
    if path.is_dir():
        return _no_weights(path)
    if path.suffix in _FOREIGN and path.is_file():
        return f"{path} is a file of a format that is not MLX's; {_CONVERT}"
    if path.exists():
        return f"{path} is a file; give the folder in which it lies"
    why = f"there is no model folder at {path}"
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
