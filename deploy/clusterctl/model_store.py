"""The models of this machine: a folder each beneath STUDIOFLEET_MODELS, or anywhere else by its path."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.model_manifest import NAME, model_files, read_manifest, wrong_sizes
from clusterctl.operations import RefusedError
from protocol.addresses import LOCAL, models_folder
from protocol.config import EMBEDDED, WorkerConfig
from protocol.locks import locked
from protocol.model_folder import open_folder
from protocol.models import embedded_folder, find_model, model_path

PARTIAL = ".partial"


@dataclass(frozen=True)
class StoredModel:
    """One model folder."""

    name: str
    """As commands take it."""
    path: Path
    bytes: int
    state: str
    """`verified`, `unverified`, `changed`, `damaged` or `partial`."""
    why: str
    """What is damaged."""
    workers: tuple[str, ...]
    """Configured workers of this machine that use it."""


def models_here() -> Path:
    return models_folder(os.environ)


def found_folder(model: str) -> Path:
    """The folder of a model that is there. Raises `RefusedError` with the cure."""
    try:
        return find_model(model, models_here())
    except ValueError as error:
        raise RefusedError(str(error)) from error


def partial_of(folder: Path) -> Path:
    """Where a model grows that is not whole yet."""
    return folder.with_name(f".{folder.name}{PARTIAL}")


def lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def stored_models(workers: Iterable[WorkerConfig]) -> list[StoredModel]:
    """Those beneath the models folder, and those elsewhere that workers use."""
    models, users = models_here(), users_of(workers)
    folders = {path.resolve(): path for path in _folders(models)}
    for path in users:
        if path not in folders and path.is_dir():
            folders[path] = path
    return [
        _stored(path, models, users.get(resolved, ()))
        for resolved, path in sorted(folders.items(), key=lambda item: str(item[1]))
    ]


def users_of(workers: Iterable[WorkerConfig]) -> dict[Path, tuple[str, ...]]:
    """Which workers of this machine use which folder, as their model or as its draft."""
    found: dict[Path, tuple[str, ...]] = {}
    for worker in workers:
        if worker.node != LOCAL:
            continue
        for model in (worker.model, worker.engine_options.get("draft_model")):
            if isinstance(model, str) and model:
                path = model_path(model, models_here()).resolve()
                found[path] = (*found.get(path, ()), worker.id)
    return found


def remove_model(model: str, workers: Iterable[WorkerConfig]) -> int | None:
    """Remove its folder, and what of it was not whole yet; bytes that were freed, None when there was none.

    Raises `RefusedError` when a worker uses it, or it is no folder of ours, and `LockHeldError`.
    """
    folder = model_path(model, models_here())
    if used := users_of(workers).get(folder.resolve()):
        first = used[0]
        raise RefusedError(f"{model} is used by {', '.join(used)}; first: clusterctl remove-worker {first}")
    place = folder.parent.resolve()  # the folder itself may be a link to another disk
    if not place.is_relative_to(models_here().resolve()) or folder.name == "..":
        raise RefusedError(f"{folder} is not in {models_here()}; remove it by hand")
    if not folder.parent.is_dir():
        return None
    with locked(lock_of(folder)):
        there = [path for path in (folder, partial_of(folder)) if path.is_symlink() or path.is_dir()]
        freed = sum(_removed(path) for path in there)
    if folder.parent != models_here() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    return freed if there else None


def _removed(path: Path) -> int:
    """Bytes that this freed."""
    if path.is_symlink():
        path.unlink()
        return 0
    _refuse_what_is_no_model(path)
    size = _size(path)
    shutil.rmtree(path)
    return size


def _refuse_what_is_no_model(path: Path) -> None:
    """A folder of folders, or the one of kept prompts, is none."""
    if not (path / "config.json").exists() and not (path / NAME).exists() and not path.name.startswith("."):
        raise RefusedError(f"{path} is no model folder (it has no config.json); remove it by hand")


def _folders(models: Path) -> list[Path]:
    """Folders with a configuration, at most two deep, and those that are not whole yet."""
    found: list[Path] = []
    for path in _inside(models):
        if _is_model(path):
            found.append(path)
        else:
            found += [each for each in _inside(path) if _is_model(each)]
    return found


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _is_model(path: Path) -> bool:
    return (path / "config.json").exists() or (path / NAME).exists() or path.name.endswith(PARTIAL)


def _stored(path: Path, models: Path, used: tuple[str, ...]) -> StoredModel:
    partial = path.name.startswith(".") and path.name.endswith(PARTIAL)
    shown = path.with_name(path.name[1 : -len(PARTIAL)]) if partial else path
    name = str(shown.relative_to(models)) if shown.is_relative_to(models) else str(shown)
    if path == embedded_folder(models):
        name = EMBEDDED
    state, why = ("partial", "") if partial else folder_state(path)
    return StoredModel(name, path, _size(path), state, why, used)


def folder_state(path: Path) -> tuple[str, str]:
    """`verified`, `unverified`, `changed` since, or `damaged` and why. Reads headers and sizes only."""
    try:
        open_folder(path)
    except (ValueError, OSError) as error:
        return "damaged", str(error)
    manifest = read_manifest(path)
    if manifest is None:
        return "unverified", ""
    wrong = wrong_sizes(path, manifest) | dict.fromkeys(manifest.damaged, "was found damaged")
    if wrong:
        return "damaged", "; ".join(f"{path / name} {why}" for name, why in wrong.items())
    seen = (path / NAME).stat().st_mtime_ns
    newer = [name for name in model_files(path) if (path / name).stat().st_mtime_ns > seen]
    if newer or set(model_files(path)) != set(manifest.files):
        return "changed", ""
    return "verified", ""


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
