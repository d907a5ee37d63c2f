import asyncio
import contextlib
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from protocol.codec import encode
from protocol.messages import Accepted, Deltas, Failed, Finished, Generate, Rejected, Started
from protocol.values import Capacity, ChatMessage, ContentPart, Load, SamplingParams, ToolSpec
from worker.core import Core
from worker.engine.base import BaseEngine, EngineBusy, GenerationOutput
from worker.engine.fake import FakeEngine
from worker.engine.output import EngineFacts, EngineFailed, PromptStuck
from worker.engine.syntax import configured
from worker.parsers.base import Syntax

ENDLESS = 'fake:{"tokens": ["a"], "repeat": 100000, "delay_ms": 1}'


class Wire:
    """What was said to gateways, and a way to wait for it."""

    def __init__(self):
        self.said = []
        self.freed = 0
        self.broken = []

    def send(self, gateway, message):
        self.said.append((gateway, message))

    def free(self):
        self.freed += 1

    def of(self, request_id):
        """Everything about a request, deltas one by one."""
        found = []
        for _, message in self.said:
            if isinstance(message, Deltas):
                found += [delta for delta in message.deltas if delta.request_id == request_id]
            elif message.request_id == request_id:
                found.append(message)
        return found

    def kinds(self, request_id):
        return [type(message).__name__ for message in self.of(request_id)]

    def text(self, request_id):
        return "".join(m.text for m in self.of(request_id) if type(m).__name__ == "Delta")

    async def until(self, condition):
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.001)

    async def until_said(self, request_id, kind):
        await self.until(lambda: kind.__name__ in self.kinds(request_id))
        return next(m for m in self.of(request_id) if isinstance(m, kind))


def generate(content, request_id="r", attempt=0, time_left_s=None, **sampling):
    return Generate(
        request_id=request_id,
        attempt=attempt,
        model="m",
        sampling=SamplingParams(**sampling),
        seed=0,
        messages=(ChatMessage(role="user", content=content),),
        time_left_s=time_left_s,
    )


@asynccontextmanager
async def serving(engine=None, slots=2, waiting=0):
    """A core that takes requests, and the wire that it speaks into."""
    engine = engine or FakeEngine("m", max_num_seqs=slots, max_waiting=waiting)
    wire = Wire()
    capacity = Capacity(max_num_seqs=slots, max_waiting=waiting)
    core = Core(engine, capacity, wire.send, freed=wire.free, broken=wire.broken.append)
    core.closed = None
    await engine.start()
    try:
        yield core, wire
        await core.ended()
        core.flush()
        assert core.load() == Load()
    finally:
        core.abandon("the test is over")
        await core.ended()
        await engine.stop()


class Foreign(BaseEngine):
    """A third party's engine around one async generator."""

    model_name = "foreign"
    is_mllm = False
    tokenizer = None

    def __init__(self, items, at_call=None):
        self._items = items
        self._at_call = at_call
        self.closed = 0
        self.calls = []

    async def start(self):
        pass

    async def stop(self):
        pass

    async def generate(self, *args, **kwargs):
        raise NotImplementedError

    async def chat(self, *args, **kwargs):
        raise NotImplementedError

    def stream_generate(self, *args, **kwargs):
        raise NotImplementedError

    def stream_chat(self, *args, **kwargs):
        self.calls.append((args[0], kwargs))
        if self._at_call is not None:
            raise self._at_call
        return self._stream()

    async def _stream(self):
        try:
            for item in self._items:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed += 1


def test_a_request_is_accepted_started_streamed_and_finished():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate('fake:{"tokens": ["He", "llo"]}'))
            finished = await wire.until_said("r", Finished)
            assert wire.kinds("r") == ["Accepted", "Started", "Delta", "Delta", "Finished"]
            assert wire.text("r") == "Hello"
            assert {gateway for gateway, _ in wire.said} == {"gw"}
            assert wire.of("r")[0].load.running == 1
            assert finished.load == Load()
            assert finished.usage.completion_tokens == 2
            assert finished.usage.prompt_tokens == wire.of("r")[1].prompt_tokens > 0

    asyncio.run(case())


def test_all_deltas_of_a_step_are_one_message():
    async def case():
        async with serving(slots=8) as (core, wire):
            for number in range(8):
                core.generate(
                    "gw", generate('fake:{"tokens": ["a"], "repeat": 20, "delay_ms": 5}', f"r{number}")
                )
            await wire.until(lambda: all("Finished" in wire.kinds(f"r{n}") for n in range(8)))
            sizes = [len(message.deltas) for _, message in wire.said if isinstance(message, Deltas)]
            assert sum(sizes) == 160
            assert sizes.count(8) >= 15

    asyncio.run(case())


def test_each_gateway_hears_of_its_own_requests_only():
    async def case():
        async with serving() as (core, wire):
            core.generate("one", generate('fake:{"tokens": ["a"]}', "a"))
            core.generate("two", generate('fake:{"tokens": ["b"]}', "b"))
            await wire.until_said("a", Finished)
            await wire.until_said("b", Finished)
            heard = {(gateway, m.request_id) for gateway, m in wire.said if not isinstance(m, Deltas)}
            assert heard == {("one", "a"), ("two", "b")}

    asyncio.run(case())


def test_a_full_worker_rejects_at_once_and_nothing_was_begun():
    async def case():
        async with serving(slots=1) as (core, wire):
            core.generate("gw", generate(ENDLESS, "first"))
            core.generate("gw", generate(ENDLESS, "second"))
            core.flush()
            rejected = wire.of("second")[0]
            assert isinstance(rejected, Rejected)
            assert (rejected.reason, rejected.load.running) == ("engine_busy", 1)
            assert rejected.retry_after_s > 0
            core.abort("gw", "first")

    asyncio.run(case())


def test_a_request_is_rejected_with_the_reason_while_nothing_is_taken():
    async def case():
        async with serving() as (core, wire):
            core.closed = "draining"
            core.generate("gw", generate(ENDLESS))
            core.flush()
            assert wire.of("r")[0].reason == "draining"

    asyncio.run(case())


@pytest.mark.parametrize("engine", [Foreign([], EngineBusy()), Foreign([EngineBusy()])])
def test_busy_at_the_call_and_at_the_first_item_are_rejections(engine):
    async def case():
        async with serving(engine) as (core, wire):
            core.generate("gw", generate("hi"))
            rejected = await wire.until_said("r", Rejected)
            assert rejected.reason == "engine_busy"
            assert rejected.load == Load()
            assert wire.kinds("r") == ["Accepted", "Rejected"]

    asyncio.run(case())


def test_busy_in_the_middle_is_a_fault_and_no_rejection():
    items = [GenerationOutput("a", [1], new_text="a", finish_reason=None, finished=False), EngineBusy()]

    async def case():
        async with serving(Foreign(items)) as (core, wire):
            core.generate("gw", generate("hi"))
            assert (await wire.until_said("r", Failed)).code == "engine_failed"

    asyncio.run(case())


def test_a_foreign_engine_is_called_with_the_contracts_names():
    engine = Foreign([GenerationOutput("Hello", [1, 2], 3, 2)])

    async def case():
        async with serving(engine) as (core, wire):
            core.generate("gw", generate("hi", max_tokens=5, temperature=0.0))
            await wire.until_said("r", Finished)
            assert wire.kinds("r") == ["Accepted", "Started", "Delta", "Finished"]
            assert wire.text("r") == "Hello"

    asyncio.run(case())
    messages, arguments = engine.calls[0]
    assert messages == [{"role": "user", "content": "hi"}]
    assert (arguments["max_tokens"], arguments["temperature"], arguments["tools"]) == (5, 0.0, None)
    assert "resume_token_ids" not in arguments
    assert "stop" not in arguments
    assert engine.closed == 1


def test_a_stop_string_closes_the_engines_stream():
    items = [
        GenerationOutput("", [n], completion_tokens=n, new_text=text, finish_reason=None, finished=False)
        for n, text in enumerate(["one ", "EN", "D", "never"], 1)
    ]
    engine = Foreign(items)

    async def case():
        async with serving(engine) as (core, wire):
            core.generate("gw", generate("hi", stop=("END",)))
            finished = await wire.until_said("r", Finished)
            assert (finished.finish_reason, finished.matched_stop) == ("stop", "END")
            assert finished.usage.completion_tokens == 3
            assert wire.text("r") == "one "
            assert engine.closed == 1

    asyncio.run(case())


def test_a_stream_without_an_end_is_a_fault():
    items = [GenerationOutput("a", new_text="a", finish_reason=None, finished=False)]

    async def case():
        async with serving(Foreign(items)) as (core, wire):
            core.generate("gw", generate("hi"))
            assert "without a finished item" in (await wire.until_said("r", Failed)).message

    asyncio.run(case())


def test_a_failing_request_fails_alone():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate('fake:{"tokens": ["a", "b"], "raise_at": 1}', "bad"))
            core.generate("gw", generate('fake:{"tokens": ["a", "b"], "delay_ms": 5}', "good"))
            failed = await wire.until_said("bad", Failed)
            assert failed.code == "engine_failed"
            assert "before token 1" in failed.message
            await wire.until_said("good", Finished)
            assert wire.broken == []

    asyncio.run(case())


def test_an_engine_beyond_help_is_reported_and_its_request_can_go_elsewhere():
    async def case():
        async with serving(Foreign([EngineFailed("three steps failed")])) as (core, wire):
            core.generate("gw", generate("hi"))
            assert (await wire.until_said("r", Failed)).code == "worker_lost"
            assert wire.broken == ["three steps failed"]

    asyncio.run(case())


def test_a_prompt_that_is_too_long_is_the_clients_mistake():
    async def case():
        async with serving(FakeEngine("m", max_model_len=10)) as (core, wire):
            core.generate("gw", generate("word " * 50))
            failed = await wire.until_said("r", Failed)
            assert (failed.code, failed.param) == ("context_length_exceeded", "messages")

    asyncio.run(case())


def test_an_unusable_script_is_the_clients_mistake():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate("fake:nonsense"))
            failed = await wire.until_said("r", Failed)
            assert (failed.code, failed.param) == ("invalid_request", "messages")

    asyncio.run(case())


def test_what_is_not_supported_is_refused_before_a_place_is_taken():
    image = ContentPart(type="image", frame=1)

    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate((image,)))
            core.flush()
            assert wire.kinds("r") == ["Failed"]
            assert wire.of("r")[0].code == "unsupported"

    asyncio.run(case())


@pytest.mark.parametrize("phase", ["just accepted", "waiting", "prefill", "decoding", "ended", "unknown"])
def test_abort_frees_the_place_in_each_phase_and_says_nothing(phase):
    scripts = {
        "prefill": 'fake:{"tokens": ["a"], "prefill_ms": 60000}',
        "ended": 'fake:{"tokens": ["a"]}',
    }

    async def case():
        engine = FakeEngine("m", max_num_seqs=1, max_waiting=1)
        async with serving(engine, slots=1, waiting=1) as (core, wire):
            if phase == "waiting":
                core.generate("gw", generate(ENDLESS, "other"))
                await wire.until_said("other", Started)
            core.generate("gw", generate(scripts.get(phase, ENDLESS)))
            if phase == "prefill":
                await wire.until_said("r", Started)
            elif phase == "decoding":
                await wire.until(lambda: "aaa" in wire.text("r"))
            elif phase == "ended":
                await wire.until_said("r", Finished)
            elif phase == "waiting":
                await wire.until(lambda: engine.load().waiting == 1)
            before = wire.kinds("r")
            for _ in range(3):
                core.abort("gw", "nobody" if phase == "unknown" else "r")
            if phase == "unknown":
                core.abort("gw", "r")
            await wire.until(lambda: core.held == (1 if phase == "waiting" else 0))
            assert not {"Finished", "Failed", "Rejected"} & set(wire.kinds("r")[len(before) :])
            assert wire.freed == (0 if phase == "ended" else 1)
            core.abort("gw", "other")
            await core.ended()
            assert (engine.load().running, engine.load().waiting) == (0, 0)

    asyncio.run(case())


def test_only_the_gateway_that_asked_can_abort():
    async def case():
        async with serving() as (core, wire):
            core.generate("one", generate('fake:{"tokens": ["a", "b"], "delay_ms": 5}'))
            core.abort("two", "r")
            await wire.until_said("r", Finished)

    asyncio.run(case())


def test_two_attempts_at_one_request_do_not_mix():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate(ENDLESS, attempt=0))
            await wire.until(lambda: "a" in wire.text("r"))
            core.abort("gw", "r")
            core.generate("gw", generate('fake:{"tokens": ["b"]}', attempt=1))
            finished = await wire.until_said("r", Finished)
            assert finished.attempt == 1

    asyncio.run(case())


def test_the_same_attempt_twice_runs_once():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate('fake:{"tokens": ["a"]}'))
            core.generate("gw", generate('fake:{"tokens": ["a"]}'))
            await wire.until_said("r", Finished)
            assert wire.kinds("r").count("Accepted") == 1

    asyncio.run(case())


def test_the_time_limit_ends_a_request():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate(ENDLESS, time_left_s=0.05))
            assert (await wire.until_said("r", Failed)).code == "deadline_exceeded"

    asyncio.run(case())


def test_no_time_left_ends_a_request_before_it_begins():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", generate('fake:{"prefill_ms": 60000}', time_left_s=0.0))
            assert (await wire.until_said("r", Failed)).code == "deadline_exceeded"

    asyncio.run(case())


def test_abandoned_requests_are_said_to_be_lost():
    async def case():
        async with serving() as (core, wire):
            core.generate("one", generate(ENDLESS, "a"))
            core.generate("two", generate(ENDLESS, "b"))
            await wire.until_said("b", Started)
            core.abandon("its gateway is silent", "one")
            assert (await wire.until_said("a", Failed)).code == "worker_lost"
            assert "Failed" not in wire.kinds("b")
            core.abandon("time is over")
            await wire.until_said("b", Failed)

    asyncio.run(case())


def test_a_request_rejected_by_the_engine_after_accepted_is_not_started():
    async def case():
        engine = FakeEngine("m", max_num_seqs=1)
        async with serving(engine, slots=2) as (core, wire):
            core.generate("gw", generate(ENDLESS, "first"))
            core.generate("gw", generate(ENDLESS, "second"))
            await wire.until_said("second", Rejected)
            assert wire.kinds("second") == ["Accepted", "Rejected"]
            core.abort("gw", "first")

    asyncio.run(case())


def test_the_age_of_the_last_step_of_a_foreign_engine_grows_while_something_is_pending():
    class Hanging(Foreign):
        async def _stream(self):
            await read.wait()
            yield GenerationOutput("a", new_text="a", finish_reason=None, finished=False)
            await asyncio.Event().wait()

    read = asyncio.Event()

    async def case():
        async with serving(Hanging([])) as (core, wire):
            assert core.step_age_s() == 0
            core.generate("gw", generate("hi"))
            await wire.until_said("r", Accepted)
            await asyncio.sleep(0.01)
            assert core.step_age_s() == 0  # it may be reading a long prompt
            read.set()
            await wire.until_said("r", Started)
            await wire.until(lambda: core.step_age_s() > 0.05)
            core.abort("gw", "r")
            await core.ended()
            assert core.step_age_s() == 0

    asyncio.run(case())


class Leaving(BaseException):
    """Nothing that `except Exception` would hold."""


@pytest.mark.parametrize(
    "fault",
    [asyncio.CancelledError("of the engine's own"), SystemExit(0), KeyboardInterrupt(), Leaving("x")],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("at_call", [True, False])
def test_whatever_an_engine_raises_ends_its_request_alone_and_is_said(fault, at_call):
    class Raises(Foreign):
        def stream_chat(self, *args, **kwargs):
            if at_call:
                raise fault
            return self._raise()

        async def _raise(self):
            yield GenerationOutput("a", [1], new_text="a", finish_reason=None, finished=False)
            raise fault

    async def case():
        async with serving(Raises([])) as (core, wire):
            core.generate("gw", generate("x"))
            failed = await wire.until_said("r", Failed)
            assert (failed.code, core.load()) == ("engine_failed", Load())
            assert type(fault).__name__ in failed.message

    asyncio.run(case())


def test_an_item_that_cannot_be_sent_fails_its_request_and_no_neighbour():
    good = [GenerationOutput("a" * n, [n], 3, n, None, new_text="a", finished=False) for n in range(1, 6)]
    last = GenerationOutput("aaaaaa", [6], 3, 6, "eos", new_text="a")

    class Mixed(Foreign):
        def stream_chat(self, *args, **kwargs):
            self._items = [good[0], GenerationOutput("\ud800", new_text="\ud800", finished=False)]
            if args[0][0]["content"] == "good":
                self._items = [*good, last]
            return self._stream()

    async def case():
        async with serving(Mixed([])) as (core, wire):
            core.generate("gw", generate("good", "good"))
            core.generate("gw", generate("bad", "bad"))
            finished = await wire.until_said("good", Finished)
            failed = await wire.until_said("bad", Failed)
            assert (wire.text("good"), finished.finish_reason) == ("aaaaaa", "stop")
            assert failed.code == "engine_failed"
            for _, message in wire.said:
                encode(message)

    asyncio.run(case())


def test_an_engine_that_takes_no_notice_of_an_abort_loses_the_request_at_its_next_item():
    class Deaf(Foreign):
        async def _stream(self):
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
                yield GenerationOutput("", [1], new_text="a", finish_reason=None, finished=False)

    async def case():
        async with serving(Deaf([])) as (core, wire):
            core.generate("gw", generate("x"))
            await wire.until_said("r", Started)
            core.abort("gw", "r")
            await wire.until(lambda: core.held == 0)
            assert "Finished" not in wire.kinds("r")

    asyncio.run(case())


def test_an_engine_that_never_pauses_lets_others_have_their_turn():
    class Tireless(Foreign):
        async def _stream(self):
            while True:
                yield GenerationOutput("", [1], new_text="a", finish_reason=None, finished=False)

    async def case():
        async with serving(Tireless([])) as (core, wire):
            core.generate("gw", generate("x"))
            await wire.until_said("r", Started)
            core.abort("gw", "r")
            await wire.until(lambda: core.held == 0)

    asyncio.run(case())


def test_a_stream_that_does_not_close_gives_its_place_back_after_a_while(monkeypatch):
    monkeypatch.setattr("worker.core.CLOSE_S", 0.05)

    class Clinging(Foreign):
        async def _stream(self):
            try:
                yield GenerationOutput("", [1], new_text="a", finish_reason=None, finished=False)
                await asyncio.Event().wait()
            finally:
                await asyncio.Event().wait()

    async def case():
        async with serving(Clinging([])) as (core, wire):
            core.generate("gw", generate("x"))
            await wire.until_said("r", Started)
            core.abort("gw", "r")
            await wire.until(lambda: core.held == 0)

    asyncio.run(case())


def test_calls_of_a_foreign_engine_are_told_where_the_configuration_names_their_form():
    async def case():
        call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        engine = Foreign([GenerationOutput(f"Look.\n{call}")])
        async with serving(engine) as (core, wire):
            core.learn(EngineFacts(syntax=configured(Syntax(), "hermes", None)))
            assert engine.preserve_native_tool_format
            core.generate("gw", replace(generate("hi"), tools=(ToolSpec(name="add"),)))
            finished = await wire.until_said("r", Finished)
            assert finished.finish_reason == "tool_calls"
            pieces = [piece for m in wire.of("r") for piece in getattr(m, "tool_calls", ())]
            assert [(p.index, p.name, p.arguments) for p in pieces] == [(0, "add", ""), (0, "", '{"a": 1}')]
            assert wire.text("r") == "Look."

    asyncio.run(case())


def test_tools_are_refused_by_a_model_of_ours_without_a_form_for_them():
    async def case():
        async with serving() as (core, wire):
            core.generate("gw", replace(generate("hi"), tools=(ToolSpec(name="add"),)))
            assert (await wire.until_said("r", Failed)).code == "unsupported"

    asyncio.run(case())


def test_fc_62_a_prompt_that_is_never_ready_is_the_requests_fault_and_ends_the_process():
    async def case():
        async with serving(Foreign([], at_call=PromptStuck("not ready within 10 s"))) as (core, wire):
            core.generate("gw", generate("hi"))
            failed = await wire.until_said("r", Failed)
            assert (failed.code, failed.message) == ("invalid_request", "not ready within 10 s")
            assert wire.broken == ["not ready within 10 s"]

    asyncio.run(case())
