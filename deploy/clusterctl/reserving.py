"""The id of a worker that is being added: nobody else takes it until it stands in the configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clusterctl import edits
from clusterctl.journal import operations_folder
from protocol.addresses import Home
from protocol.configfile import read_text
from protocol.locks import LockHeldError, locked

_PATIENCE_S = 60.0


@contextlib.contextmanager
def reserved(home: Home, path: Path, entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Gives the entry with its id, a free one where it has none.

    Raises `LockHeldError` when another command has been adding a worker of that very id for a minute,
    and what `edits.add_worker` does.
    """
    taken: set[str] = set()
    with contextlib.ExitStack() as stack:
        while True:
            _text, worker = edits.add_worker(read_text(path), entry, taken)
            lock = operations_folder(home) / f"adding-{worker.id}.lock"
            try:
                stack.enter_context(locked(lock, _PATIENCE_S if "id" in entry else 0.0))
            except LockHeldError:
                if "id" in entry:
                    raise
                taken.add(worker.id)
                continue
            if "id" in entry or edits.add_worker(read_text(path), entry, taken)[1].id == worker.id:
                break
            stack.pop_all().close()  # it was just written there
        yield {"id": worker.id, **entry}
