"""Turns that several share: nobody has all, nobody waits for ever, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.media.turns import Turns


async def settle() -> None:
    """Let all run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Askers:
    """Who has a turn, and who waits for one."""

    def __init__(self, number: int) -> None:
        self.turns = Turns(number)
        self.tasks: list[tuple[str, asyncio.Task[None]]] = []

    def ask(self, asker: str) -> None:
        self.tasks.append((asker, asyncio.create_task(self.turns.take(asker))))

    def had(self) -> Counter[str]:
        return Counter(asker for asker, task in self.tasks if task.done() and not task.cancelled())

    def waiting(self) -> list[str]:
        return [asker for asker, task in self.tasks if not task.done()]

    async def drop(self, index: int, *, first_back: bool = False) -> None:
        """Give a turn back, or wait no more for it; `first_back`: one is given back in the same moment."""
        if first_back and (back := next((one for one in self.tasks if one[1].done()), None)):
            self.tasks.remove(back)
            self.turns.give_back(back[0])
        if not self.tasks:
            return
        asker, task = self.tasks.pop(index % len(self.tasks))
        if task.done():
            self.turns.give_back(asker)
        else:
            task.cancel()
        await settle()


def test_nobody_ever_has_all_turns():
    async def case() -> None:
        askers = Askers(16)
        for asker, has in (("a", 8), ("b", 4), ("c", 2), ("d", 1)):
            for _ in range(20):
                askers.ask(asker)
            await settle()
            assert askers.had()[asker] == has
        assert askers.had().total() == 15

    asyncio.run(case())


def test_the_only_turn_is_for_whoever_asks():
    async def case() -> None:
        askers = Askers(1)
        askers.ask("a")
        askers.ask("b")
        await settle()
        assert askers.waiting() == ["b"]
        await askers.drop(0)
        assert askers.had() == {"b": 1}

    asyncio.run(case())


def test_a_turn_that_becomes_free_goes_to_whoever_has_least():
    async def case() -> None:
        askers = Askers(4)
        for asker in "aaaabbccd":
            askers.ask(asker)
        await settle()
        assert askers.had() == {"a": 2, "b": 1, "c": 1}
        await askers.drop(0)
        assert askers.had() == {"a": 1, "b": 1, "c": 1, "d": 1}

    asyncio.run(case())


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 99), st.booleans()), max_size=40),
)
@settings(deadline=None)
def test_no_turn_is_lost_whoever_gives_up_when(number: int, steps: list[tuple[str, int, bool]]):
    async def case() -> None:
        askers = Askers(number)
        for asker, index, first_back in steps:
            askers.ask(asker)
            if index % 3 == 0:
                await askers.drop(index, first_back=first_back)
            await settle()
            had = askers.had()
            free = number - had.total()
            assert free >= 0
            assert all(had[waiting] >= free for waiting in askers.waiting())
        while askers.tasks:
            await askers.drop(0)
        for index in range(number):
            askers.ask(f"another {index}")
        await settle()
        assert askers.had().total() == number

    asyncio.run(case())
