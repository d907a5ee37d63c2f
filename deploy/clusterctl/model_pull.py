"""Fetching a model of the hub: aside, checked against what the hub says of it, then in its place at once."""

from __future__ import annotations

import shutil
from pathlib import Path

from clusterctl import hub, output
from clusterctl.hub import HubFile, HubModel
from clusterctl.memory_fit import size
from clusterctl.model_manifest import (
    NAME,
    FileEntry,
    Manifest,
    entry_of,
    git_hash,
    model_files,
    read_manifest,
    write_manifest,
)
from clusterctl.model_store import folder_state, lock_of, models_here, partial_of
from clusterctl.operations import OperationError, RefusedError
from clusterctl.transfers import Counter, shown
from protocol.locks import locked
from protocol.model_folder import open_folder
from protocol.models import is_hub_id

_SPARE = 1 << 30
"""Bytes that are left free on the disk."""


def pull(model_id: str, revision: str | None) -> tuple[bool, Path]:
    """Have the model in the models folder; whether anything had to be done.

    Raises `RefusedError`, `OperationError`, `LockHeldError`. What was fetched until then is kept.
    """
    if not is_hub_id(model_id):
        raise RefusedError(f"{model_id!r} is no name of a model of the hub: write ORGANISATION/NAME")
    folder = models_here() / model_id
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(lock_of(folder)):
        model = hub.look_up(model_id, revision)
        if folder.exists() and not _to_be_repaired(folder, model):
            return False, folder
        partial = partial_of(folder)
        if folder.exists():
            _take_up(folder, partial, model)
        _refuse_without_room(partial, model)
        _fetch_all(model, partial)
        _finish(model, partial, folder)
    return True, folder


def _to_be_repaired(folder: Path, model: HubModel) -> bool:
    """Whether the folder lacks something of that revision. Raises `RefusedError` for another one."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.revision != model.revision:
        raise RefusedError(
            f"{folder} is there already, and not from the revision {model.revision[:12]} of the hub; to have"
            f" that: clusterctl model rm {model.model_id}, then pull it"
        )
    state, why = folder_state(folder)
    if state == "damaged":
        output.say(f"to be repaired: {why}")
    return state == "damaged"


def _take_up(folder: Path, partial: Path, model: HubModel) -> None:
    """Go on from a damaged folder, without the files that are damaged."""
    manifest = read_manifest(folder)
    shutil.rmtree(partial, ignore_errors=True)
    folder.rename(partial)
    for file in model.files:
        path = partial / file.name
        damaged = manifest is not None and file.name in manifest.damaged
        if path.is_file() and (damaged or path.stat().st_size != file.size):
            path.unlink()


def _refuse_without_room(partial: Path, model: HubModel) -> None:
    wanted = max(0, model.bytes - _bytes_in(partial))
    free = shutil.disk_usage(partial.parent).free
    if wanted + _SPARE > free:
        raise RefusedError(
            f"{model.model_id} needs {size(wanted)} more, and the disk of {partial.parent} has {size(free)}"
            " left; make room, or point STUDIOFLEET_MODELS at another folder"
        )


def _fetch_all(model: HubModel, partial: Path) -> None:
    partial.mkdir(exist_ok=True)
    wanted = {file.name for file in model.files}
    for name in model_files(partial):
        if name not in wanted:  # of another revision
            (partial / name).unlink()
    with shown(f"{model.model_id}", model.bytes, lambda: _bytes_in(partial)):
        for file in model.files:
            hub.fetch(model, file, partial)


def _finish(model: HubModel, partial: Path, folder: Path) -> None:
    """Raises `OperationError` naming the file that is not what the hub says; it is fetched anew next time."""
    counter = Counter()
    files: dict[str, FileEntry] = {}
    with shown(f"{model.model_id}: checking", model.bytes, lambda: counter.done):
        for file in model.files:
            entry = entry_of(partial / file.name, counter)
            if why := _difference(file, entry, partial / file.name):
                (partial / file.name).unlink()
                raise OperationError(
                    f"{file.name} of {model.model_id} arrived damaged ({why}); run the same command again:"
                    " only that file is fetched anew"
                )
            files[file.name] = entry
    for path in partial.glob(f".*{hub.PART}"):  # of files that changed meanwhile
        path.unlink()
    try:
        open_folder(partial)
    except ValueError as error:
        raise RefusedError(
            f"{model.model_id} was fetched as the hub has it, and is no model that can be served: {error}"
        ) from error
    write_manifest(partial, Manifest(files=files, source=f"hub {model.model_id}", revision=model.revision))
    partial.rename(folder)


def _difference(file: HubFile, entry: FileEntry, path: Path) -> str:
    if entry.size != file.size:
        return f"{entry.size} bytes instead of {file.size}"
    if file.sha256 is not None:
        return "" if entry.sha256 == file.sha256 else f"its SHA-256 is {entry.sha256}, not {file.sha256}"
    if file.git is not None and git_hash(path) != file.git:
        return "its content is not what the hub names"
    return ""


def _bytes_in(folder: Path) -> int:
    """Of the model's files, and of those that are being fetched."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file() and path.name != NAME:
                total += path.stat().st_size
        except FileNotFoundError:  # it was moved meanwhile
            continue
    return total
