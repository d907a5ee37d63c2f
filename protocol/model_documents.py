"""The small files of a model folder: configuration, tokenizer, template, and what a copy left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DESCRIBING = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("preprocessor_config.json", "processor_config.json"),
)
TEMPLATES = ("chat_template.jinja", "chat_template.json")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "*.tiktoken")
_LEFTOVERS = ("*.incomplete", "*.part", "*.partial", "*.crdownload", "*.aria2")
_DOWNLOADS = ".cache/huggingface/download"
"""Where the hub's client keeps what it has not finished."""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises `ValueError` that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{path} is missing; copy the whole model there") from error
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; let its owner read it: chmod u+r"
        ) from error
    except (ValueError, RecursionError) as error:
        what = "it is empty" if not path.stat().st_size else f"it is no JSON ({error})"
        raise ValueError(f"{path} is damaged: {what}; copy the file again") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object; copy the file again")
    return value


def check_leftovers(folder: Path) -> None:
    """Raises `ValueError` when a copy or download into the folder was not finished."""
    for place in (folder, folder / _DOWNLOADS):
        for kind in _LEFTOVERS:
            for path in place.glob(kind):
                raise ValueError(
                    f"{path} is what an interrupted download left; finish the download, or remove the file"
                    " if the model is whole without it"
                )


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says, when it can be what a model is built from. Raises `ValueError`."""
    config = read_json(folder / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ValueError(
            f"{folder / 'config.json'} names no model_type; give the folder of a language model in MLX format"
        )
    return config


def check_tokenizer(folder: Path) -> None:
    """Raises `ValueError` for files that are missing or no JSON; the rest is its library's to find."""
    if not any(True for kind in _TOKENIZERS for _path in folder.glob(kind)):
        raise ValueError(f"{folder / 'tokenizer.json'} is missing; copy the whole model there")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (folder / name).exists():
            read_json(folder / name)


def older_template(folder: Path) -> dict[str, str]:
    """The chat template of a file in which models that see had it for a while, as an option of their
    tokenizer; empty where there is none, or a newer place has one. Raises `ValueError`."""
    places = (folder / "chat_template.json", folder / "tokenizer_config.json")
    older, newer = (read_json(path).get("chat_template") if path.exists() else None for path in places)
    if not isinstance(older, str) or newer is not None or (folder / "chat_template.jinja").exists():
        return {}
    return {"chat_template": older}


def template_file(folder: Path) -> Path:
    """The file that holds the chat template, as far as there is one."""
    return next(
        (folder / name for name in TEMPLATES if (folder / name).exists()), folder / "tokenizer_config.json"
    )
