"""Work on the preparation thread, and its time limit. Waits end with their condition."""

import asyncio
import threading

import pytest

from worker.engine.preparation import Preparation


class Told:
    """What became of the work, in order."""

    def __init__(self):
        self.said = []

    def done(self, future):
        self.said.append(future.exception() or future.result())

    def late(self, limit_s):
        self.said.append(f"late after {limit_s:g}")

    async def until(self, count):
        async with asyncio.timeout(20):
            while len(self.said) < count:
                await asyncio.sleep(0.001)


def prepared(case, **options):
    async def run():
        preparation, told = Preparation(**options), Told()
        try:
            await case(preparation, told)
        finally:
            preparation.close()
        return told.said

    return asyncio.run(run())


def test_results_and_faults_come_to_the_loop_in_order():
    fault = ValueError("no")

    def fail():
        raise fault

    async def case(preparation, told):
        preparation.submit(lambda: 1, 0, told.done, told.late)
        preparation.submit(fail, 0, told.done, told.late)
        preparation.submit(lambda: threading.current_thread().name, 0, told.done, told.late)
        await told.until(3)

    assert prepared(case) == [1, fault, "preparation"]


def test_what_takes_too_long_is_told_once_and_what_waits_behind_it_is_not_late():
    go_on = threading.Event()

    async def case(preparation, told):
        preparation.submit(lambda: go_on.wait(30), 0, told.done, told.late)
        preparation.submit(lambda: "next", 0, told.done, told.late)
        await told.until(1)
        go_on.set()
        await told.until(3)

    assert prepared(case, limit_s=0.05) == ["late after 0.05", True, "next"]


def test_a_long_prompt_gets_more_time():
    go_on = threading.Event()

    async def case(preparation, told):
        preparation.submit(lambda: go_on.wait(30), 500_000_000, told.done, told.late)
        await asyncio.sleep(0.1)
        go_on.set()
        await told.until(1)

    assert prepared(case, limit_s=0.01) == [True]


@pytest.mark.parametrize("begun", [True, False])
def test_after_the_end_nothing_is_told(begun):
    go_on = threading.Event()

    async def case(preparation, told):
        preparation.submit(lambda: go_on.wait(30), 0, told.done, told.late)
        if begun:
            await asyncio.sleep(0.05)
        preparation.close()
        go_on.set()
        await asyncio.sleep(0.05)

    assert prepared(case, limit_s=0.2) == []
