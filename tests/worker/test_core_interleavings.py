"""The core against an engine that does anything at any moment, in random order."""

import asyncio
import random
from collections import Counter

import pytest

from protocol.messages import Accepted, Deltas, Failed, Finished, Rejected, Started
from protocol.values import Capacity, Load
from tests.worker.test_core import Foreign, Wire, generate
from worker.core import Core
from worker.engine.base import EngineBusy, GenerationOutput

SLOTS, WAITING, BUDGET = 3, 2, 120


class Puppet(Foreign):
    """Each stream waits for what it is to do next: yield an item, raise, or end."""

    def __init__(self):
        super().__init__(())
        self.strings = {}

    def stream_chat(self, *args, **kwargs):
        string = self.strings[kwargs["request_id"]] = asyncio.Queue()
        return self._pulled(string)

    async def _pulled(self, string):
        while (what := await string.get()) is not None:
            if isinstance(what, BaseException):
                raise what
            yield what


def token(finished=False):
    reason = "stop" if finished else None
    return GenerationOutput("", [1], 5, 0, reason, new_text="x", finished=finished)


def moves(rng, core, puppet, asked):
    """One thing that happens."""
    string = rng.choice(list(puppet.strings.values())) if puppet.strings else None
    what = rng.randrange(9)
    if what <= 2 or string is None:
        key = (f"gw-{rng.randrange(2)}", f"r{len(asked)}")
        asked.append(key)
        core.generate(key[0], generate("x" * rng.randrange(80), key[1], max_tokens=rng.randrange(1, 60)))
    elif what == 3 and asked:
        core.abort(*rng.choice(asked))
    elif what == 4 and rng.random() < 0.1:
        core.abandon("its gateway is gone", f"gw-{rng.randrange(2)}")
    elif what == 5:
        string.put_nowait(
            rng.choice([EngineBusy(), ValueError("x"), asyncio.CancelledError(), SystemExit(1)])
        )
    elif what == 6:
        string.put_nowait(rng.choice([token(finished=True), None]))
    else:
        string.put_nowait(rng.choice([token(), token(), GenerationOutput("", [-1], finished=False)]))


def check_conversation(said):
    """What one request was told, in order: at most one end, and nothing after it."""
    ends = [m for m in said if isinstance(m, Finished | Failed | Rejected)]
    assert len(ends) <= 1
    assert not ends or said[-1] is ends[0]
    kinds = [type(message) for message in said]
    assert kinds.count(Accepted) <= 1
    assert kinds.count(Started) <= 1
    if ends and isinstance(ends[0], Rejected):
        assert Started not in kinds


@pytest.mark.parametrize("seed", range(40))
def test_no_order_of_events_loses_doubles_or_leaks_a_request(seed):
    async def case():
        rng = random.Random(seed)
        wire, puppet = Wire(), Puppet()
        asked: list[tuple[str, str]] = []
        capacity = Capacity(max_num_seqs=SLOTS, max_waiting=WAITING, kv_tokens=BUDGET)
        core = Core(puppet, capacity, wire.send, freed=wire.free, broken=wire.broken.append)
        core.closed = None
        for _ in range(150):
            moves(rng, core, puppet, asked)
            load = core.load()
            assert load.running + load.waiting == core.held <= SLOTS + WAITING
            assert load.kv_tokens <= BUDGET
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        core.abandon("the test is over")
        async with asyncio.timeout(5):
            await core.ended()
        core.flush()
        assert core.load() == Load()
        assert wire.broken == []
        ended = Counter(m.request_id for _, m in wire.said if isinstance(m, Finished | Failed | Rejected))
        assert set(ended.values()) <= {1}
        for _gateway, request_id in asked:
            check_conversation(wire.of(request_id))
        assert any(isinstance(message, Deltas) for _, message in wire.said)

    asyncio.run(case())
