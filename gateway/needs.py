"""What a request needs of its worker, beside the model. Pure."""

from __future__ import annotations

from typing import NamedTuple

from gateway.registry import WorkerView
from protocol.values import Task


class Needs(NamedTuple):
    """What only some workers have, or are."""

    only: str = ""
    """The one worker that may have it; empty: any."""
    resumes: bool = False
    """It goes on with an answer that was begun elsewhere."""
    sees: bool = False
    task: str = Task.GENERATE
    trial: str = ""
    """It goes only where others of the same client's request are, while that is on trial."""

    @property
    def alone(self) -> Needs:
        """Without regard to others."""
        return self._replace(trial="")

    def met_by(self, worker: WorkerView) -> bool:
        return (
            (not self.only or worker.worker_id == self.only)
            and (not self.resumes or worker.card.can_resume)
            and (not self.sees or "image" in worker.card.modalities)
            and self.task == worker.card.task
        )

    def imply(self, other: Needs) -> bool:
        """Whether every worker that meets these meets the other ones, too."""
        return (
            other.only in ("", self.only)
            and other.trial in ("", self.trial)
            and self.resumes >= other.resumes
            and self.sees >= other.sees
            and self.task == other.task
        )


ANY = Needs()
