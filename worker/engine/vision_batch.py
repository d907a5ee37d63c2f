"""Many sequences, some with pictures, through one model that sees. Engine thread only."""

from __future__ import annotations

from typing import Any

from worker.engine.batch import Batch
from worker.engine.sequence import Events, Sequence
from worker.engine.vision_network import VisionNetwork


class VisionBatch(Batch):
    """A batch that shows its model the pictures of what is read."""

    def __init__(self, network: VisionNetwork, *batch: Any, **options: Any) -> None:
        """`batch` and `options` as `Batch` has them."""
        super().__init__(*batch, **options)
        self._seeing = network

    def step(self) -> Events:
        events = super().step()
        reading = [row.sequence for row in self._rows.reading]
        self._seeing.keep(picture.place.first for each in reading for picture in each.pictures)
        return events

    @property
    def prefix_stats(self) -> dict[str, int]:
        return super().prefix_stats | self._seeing.encoder.stats()

    def clear_prefixes(self) -> None:
        super().clear_prefixes()
        self._seeing.encoder.clear()

    def close(self) -> None:
        super().close()
        self._seeing.encoder.clear()
        self._seeing.keep(())

    def _show(self, sequence: Sequence, known: int) -> None:
        unread = set(sequence.prompt[known:])
        for picture in sequence.pictures:
            if picture.last in unread:
                self._seeing.show(picture.place, self._seeing.encoder.encoded(picture))
