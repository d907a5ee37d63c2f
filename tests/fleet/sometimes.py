"""An engine that fails as long as files with certain names are in the folder that is its model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from worker.engine.fake import FakeEngine
from worker.engine.output import EngineOutput

CANNOT_LOAD, CANNOT_ANSWER = "cannot-load", "cannot-answer"
ENGINE = f"{__name__}:Sometimes"


class Sometimes(FakeEngine):
    """Runs on nodes on which this checkout is installed."""

    def prepare_for_start(self) -> None:
        self._fail_if(CANNOT_LOAD)
        super().prepare_for_start()

    def stream_chat(self, *arguments: Any, **more: Any) -> AsyncIterator[EngineOutput]:
        self._fail_if(CANNOT_ANSWER)
        return super().stream_chat(*arguments, **more)

    def _fail_if(self, name: str) -> None:
        if (Path(self._model) / name).exists():
            raise RuntimeError("the disk is on fire")
