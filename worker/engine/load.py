"""From a worker's configuration to its engine. MLX is imported only by the engine that needs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protocol.config import EMBEDDED, WorkerConfig
from protocol.config_errors import ConfigError
from protocol.model_documents import read_config
from protocol.models import find_model
from worker.engine.base import BaseEngine
from worker.engine.fake import FakeEngine
from worker.engine.syntax import configured
from worker.engine.text import TextEngine
from worker.engine.vision_loading import SEEING
from worker.parsers.base import Syntax


def make_engine(config: WorkerConfig, models: Path) -> BaseEngine:
    """The engine of that worker, not yet loaded. Raises `ConfigError`."""
    if config.engine == "fake":
        return _fake(config)
    if config.engine in ("batched", "serial", "vision"):
        return _of_mlx(config, models)
    if config.engine == "embeddings":
        return _for_vectors(config, models)
    return _foreign(config)


def _for_vectors(config: WorkerConfig, models: Path) -> BaseEngine:
    from worker.engine.embeddings import EmbeddingsEngine  # noqa: PLC0415 (only when chosen)

    try:
        return EmbeddingsEngine.from_config(config, models)
    except ValueError as error:
        raise ConfigError(f"worker {config.id!r}: {error}") from error


def _fake(config: WorkerConfig) -> BaseEngine:
    options = {
        "max_num_seqs": config.slots,
        "max_waiting": config.waiting_room,
        "max_model_len": config.max_model_len,
        "tool_parser": config.tool_parser,
        "reasoning_parser": config.reasoning_parser,
        **config.engine_options,
    }
    try:
        return FakeEngine(config.name, **options)
    except ValueError as error:
        raise ConfigError(f"worker {config.id!r}: {error}") from error


def _of_mlx(config: WorkerConfig, models: Path) -> BaseEngine:
    from worker.engine.batched import BatchedEngine  # noqa: PLC0415 (only when chosen)
    from worker.engine.serial import SerialEngine  # noqa: PLC0415
    from worker.engine.vision import VisionEngine  # noqa: PLC0415

    chosen: type[TextEngine] = SerialEngine if config.engine == "serial" else BatchedEngine
    if config.engine == "vision" or (config.engine == "batched" and _sees(config, models)):
        chosen = VisionEngine
    try:
        return chosen.from_config(config, models)
    except ValueError as error:
        raise ConfigError(f"worker {config.id!r}: {error}") from error


def _sees(config: WorkerConfig, models: Path) -> bool:
    """Whether its model is of a kind that is known to see in a batch. An adapter is one of text."""
    if config.model == EMBEDDED or config.adapter is not None:
        return False
    try:
        found = read_config(find_model(config.model, models))
    except ValueError:
        return False  # the engine says it in its own words
    return found["model_type"] in SEEING and isinstance(found.get("vision_config"), dict)


def _foreign(config: WorkerConfig) -> BaseEngine:
    """An instance of `package.module:Class`, made with the model as written and the options."""
    where = f"worker {config.id!r}: engine {config.engine!r}"
    try:
        configured(Syntax(), config.tool_parser, config.reasoning_parser)
    except ValueError as error:
        raise ConfigError(f"worker {config.id!r}: {error}") from error
    module_name, _, class_name = config.engine.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{where}: the module cannot be imported: {what}; install its package here,"
            " or put its folder on PYTHONPATH"
        ) from error
    found: Any = getattr(module, class_name, None)
    if not isinstance(found, type) or not issubclass(found, BaseEngine):
        raise ConfigError(f"{where}: {class_name} is not a class derived from worker.engine.base.BaseEngine")
    make: Callable[..., BaseEngine] = found
    try:
        return make(config.model, **config.engine_options)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: cannot be made with these engine_options: {what}") from error
