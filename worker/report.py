"""What a worker says of itself: its hello and its heartbeat."""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec.structs import replace

from protocol.config import WorkerConfig
from protocol.installation import VERSION
from protocol.messages import PROTOCOL_VERSION, Heartbeat, Hello
from protocol.states import WorkerState
from protocol.values import Capacity, ModelCard
from worker.core import Core
from worker.engine.base import BaseEngine
from worker.engine.output import EngineFacts, EngineLoad, FleetEngine
from worker.engine.syntax import configured
from worker.parsers.base import Syntax
from worker.residence import Residence


class Report:
    """Reads the engine, the requests and the state; changes nothing."""

    def __init__(self, worker: WorkerConfig, engine: BaseEngine, core: Core, residence: Residence) -> None:
        self._worker = worker
        self._engine = engine
        self._fleet = engine if isinstance(engine, FleetEngine) else None
        self._syntax = configured(Syntax(), worker.tool_parser, worker.reasoning_parser)
        self._core = core
        self._residence = residence
        self._life = residence.life
        # The folder itself: what a link in its path names may be another one tomorrow.
        model = Path(worker.model)
        self._model_path = str(model.resolve()) if model.is_dir() else worker.model
        self.incarnation = f"{time.time_ns():020d}-{os.getpid()}"

    def facts(self) -> EngineFacts:
        """What is known of the model now; of a foreign engine's, what the configuration says."""
        if self._fleet is not None:
            return self._fleet.facts()
        return EngineFacts(max_model_len=self._worker.max_model_len, syntax=self._syntax)

    def hello(self, gateways: int) -> Hello:
        facts = self.facts()
        return Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self._worker.id,
            incarnation=self.incarnation,
            node=self._worker.node,
            pid=os.getpid(),
            card=ModelCard(
                name=self._worker.name,
                aliases=self._worker.aliases,
                modalities=("text", "image") if self._engine.is_mllm else ("text",),
                max_model_len=facts.max_model_len,
                tools=facts.syntax.has_tools,
                reasoning=facts.syntax.has_reasoning,
                engine=self._worker.engine,
                fingerprint=facts.fingerprint,
                can_resume=bool(getattr(type(self._engine), "can_resume", False)),
                model_path=self._model_path,
                task=facts.task,
            ),
            capacity=replace(
                capacity_of(self._worker),
                on_demand=self._residence.on_demand,
                memory_mb=self._residence.memory_mb,
                memory_budget_mb=self._residence.budget_mb,
            ),
            state=self._life.state,
            gateways=gateways,
            version=VERSION,
        )

    def heartbeat(self, cache_epoch: int, step_age_s: float) -> Heartbeat:
        rates = EngineLoad() if self._fleet is None else self._fleet.load()
        progress, detail = None, self._life.detail or self._life.note
        if self._life.state is WorkerState.LOADING and self._fleet is not None:
            progress, detail = self._fleet.load_progress()
        return Heartbeat(
            state=self._life.state,
            load=self._core.load(),
            progress=progress,
            detail=detail,
            decode_tokens_per_s=rates.decode_tokens_per_s,
            prefill_tokens_per_s=rates.prefill_tokens_per_s,
            step_age_s=step_age_s,
            cache_epoch=cache_epoch,
            resident_mb=self._residence.held_mb,
            makes_room=self._residence.makes_room,
            idle_s=self._residence.idle_s,
            load_s=self._residence.load_s,
        )


def capacity_of(worker: WorkerConfig) -> Capacity:
    return Capacity(max_num_seqs=worker.slots, max_waiting=worker.waiting_room, kv_tokens=worker.kv_tokens)
