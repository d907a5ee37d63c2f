"""Reading a whole model folder, to find what is not as it arrived."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from clusterctl.model_manifest import damages, model_bytes, read_manifest, taken, write_manifest
from clusterctl.model_store import folder_state, lock_of
from clusterctl.operations import OperationError
from clusterctl.transfers import Counter, shown
from protocol.locks import locked
from protocol.model_folder import open_folder

RECORDED, VERIFIED, WHOLE = "recorded", "verified", "whole"
"""Verdicts: nobody knew how it arrived, it is as it arrived, its sizes and headers are right."""


class DamagedError(OperationError):
    """The model is not what had arrived, or not whole: what to do, and why of each file that is known."""

    def __init__(self, message: str, files: Mapping[str, str]) -> None:
        super().__init__(message)
        self.files = files


def verify(folder: Path) -> str:
    """`VERIFIED`, or `RECORDED` where nobody knew how it arrived. Raises `DamagedError`."""
    with locked(lock_of(folder)):
        manifest, counter = read_manifest(folder), Counter()
        total = model_bytes(folder)
        try:
            open_folder(folder)
        except ValueError as error:
            whole = str(error)
        else:
            whole = ""
        if manifest is None and whole:
            raise DamagedError(whole, {})
        with shown(f"reading {folder.name}", total, lambda: counter.done):
            if manifest is None:
                write_manifest(folder, taken(folder, counter))
                return RECORDED
            found = damages(folder, manifest, counter)
        write_manifest(folder, msgspec.structs.replace(manifest, damaged=tuple(found)))
    if found or whole:
        cure = (
            f"to fetch what is damaged: clusterctl model pull {manifest.source.removeprefix('hub ')}"
            if manifest.revision
            else "copy those files again"
        )
        lines = [f"{folder / name} {why}" for name, why in found.items()] or [whole]
        raise DamagedError("\n".join([f"{folder.name} is damaged; {cure}", *lines]), found)
    return VERIFIED


def look(folder: Path) -> str:
    """`WHOLE`, in a moment. Raises `DamagedError`."""
    state, why = folder_state(folder)
    if state == "damaged":
        raise DamagedError(f"{folder.name} is damaged: {why}", {})
    return WHOLE
