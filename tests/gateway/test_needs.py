"""What requests need of a worker, and which needs are as hard to meet as others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.needs import ANY, Needs
from gateway.registry import WorkerView
from protocol.values import Task
from tests.gateway.test_routing import view

NAMES = st.sampled_from(["", "a", "b"])
TASKS = st.sampled_from(list(Task))
NEEDS = st.builds(Needs, NAMES, st.booleans(), st.booleans(), TASKS, NAMES)


def worker(name: str, *, resumes: bool = False, sees: bool = False, task: str = Task.GENERATE) -> WorkerView:
    found = view(name)
    modalities = ("text", "image") if sees else ("text",)
    card = msgspec.structs.replace(found.card, can_resume=resumes, modalities=modalities, task=task)
    return msgspec.structs.replace(found, card=card)


WORKERS = st.builds(worker, st.sampled_from("abc"), resumes=st.booleans(), sees=st.booleans(), task=TASKS)


@pytest.mark.parametrize(
    ("needs", "met_by"),
    [
        (ANY, "abcd"),
        (Needs(only="a"), "a"),
        (Needs(resumes=True), "bd"),
        (Needs(sees=True), "cd"),
        (Needs(resumes=True, sees=True), "d"),
        (Needs(only="c", resumes=True), ""),
        (Needs(task=Task.EMBED), "e"),
    ],
)
def test_who_meets_which_needs(needs: Needs, met_by: str):
    workers = [
        worker("a"),
        worker("b", resumes=True),
        worker("c", sees=True),
        worker("d", resumes=True, sees=True),
        worker("e", task=Task.EMBED),
    ]
    assert "".join(one.worker_id for one in workers if needs.met_by(one)) == met_by


@given(NEEDS, NEEDS, WORKERS)
def test_who_meets_needs_meets_those_that_they_imply(needs: Needs, other: Needs, one: WorkerView):
    assert not (needs.imply(other) and needs.met_by(one)) or other.met_by(one)


@given(NEEDS, NEEDS)
def test_all_needs_imply_themselves_and_none(needs: Needs, other: Needs):
    assert needs.imply(needs)
    assert needs.imply(ANY._replace(task=needs.task))
    assert needs.imply(needs.alone)
    assert not (needs.imply(other) and other.imply(needs)) or needs == other
