import asyncio
import logging
import threading
from dataclasses import fields

import pytest

from worker.engine.base import (
    BaseEngine,
    EngineBusy,
    GenerationOutput,
    cleanup_startup_cancellation,
    run_blocking_startup_work,
    suspend_cancellation,
)


def pending_cancellations():
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


class Bare(BaseEngine):
    """Only what must be there."""

    model_name = "bare"
    is_mllm = False
    tokenizer = None

    async def start(self):
        pass

    async def stop(self):
        pass

    async def generate(self, *args, **kwargs):
        raise EngineBusy

    async def chat(self, *args, **kwargs):
        raise EngineBusy

    def stream_generate(self, *args, **kwargs):
        raise EngineBusy

    def stream_chat(self, *args, **kwargs):
        raise EngineBusy


def test_outputs_do_not_share_their_lists():
    GenerationOutput("a").tokens.append(1)
    assert GenerationOutput("b").tokens == []


def test_the_fields_of_an_output_keep_their_order():
    names = (
        "text tokens prompt_tokens completion_tokens finish_reason mtp_drafts mtp_accepted new_text finished"
    )
    assert [field.name for field in fields(GenerationOutput)] == names.split()


def test_busy_needs_no_arguments_and_has_a_code():
    assert EngineBusy().code == "text_generation_busy"
    assert isinstance(EngineBusy(), RuntimeError)


def test_an_engine_that_lacks_a_method_cannot_be_made():
    with pytest.raises(TypeError):
        BaseEngine()  # type: ignore[abstract]


def test_defaults_of_an_engine_that_sets_nothing():
    engine = Bare()
    engine.prepare_for_start()
    assert engine.get_stats() == {}
    assert engine.get_cache_stats() is None
    assert engine.clear_runtime_caches() is None
    assert asyncio.run(engine.abort_request("any")) is False
    assert engine.preserve_native_tool_format is False


def test_the_tool_format_is_set_per_engine():
    one, other = Bare(), Bare()
    one.preserve_native_tool_format = True
    assert (one.preserve_native_tool_format, other.preserve_native_tool_format) == (True, False)


def test_suspend_without_a_task_does_nothing():
    with suspend_cancellation():
        pass


def test_clean_up_can_await_while_cancelled_and_the_cancellation_comes_back():
    seen = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with suspend_cancellation():
                seen.append(pending_cancellations())
                await asyncio.sleep(0)
                seen.append("cleaned")
            seen.append(pending_cancellations())
            raise

    async def case():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(case())
    assert seen == [0, "cleaned", 2]


def test_suspended_cancellations_come_back_after_a_failure():
    counts = []

    async def work():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(ValueError, match="broken"), suspend_cancellation():
                raise ValueError("broken") from None
            counts.append(pending_cancellations())
            raise

    async def case():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(case())
    assert counts == [1]


def test_startup_work_runs_in_a_thread_and_its_failure_propagates():
    names = []

    def work():
        names.append(threading.current_thread() is threading.main_thread())
        raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        asyncio.run(run_blocking_startup_work(work))
    assert names == [False]


@pytest.mark.parametrize("fails", [False, True])
def test_cancelled_startup_work_is_waited_for(fails):
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work():
        begun.set()
        may_end.wait(10)
        ended.set()
        if fails:
            raise OSError("gives way to the cancellation")

    async def case():
        task = asyncio.create_task(run_blocking_startup_work(work))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        may_end.set()
        await asyncio.wait({task})
        assert ended.is_set()
        assert task.cancelled()

    asyncio.run(case())


def test_a_failing_clean_up_is_logged_and_swallowed(caplog):
    async def cleanup():
        raise OSError("cannot clean")

    with caplog.at_level(logging.ERROR):
        asyncio.run(cleanup_startup_cancellation(cleanup))
    assert "clean-up" in caplog.text


def test_a_clean_up_that_exits_is_obeyed():
    async def cleanup():
        raise SystemExit(3)

    async def case():
        with pytest.raises(SystemExit):
            await cleanup_startup_cancellation(cleanup)

    asyncio.run(case())
