"""With which code `plan` and `apply` end."""

from __future__ import annotations

import pytest

from clusterctl.applying import Result
from clusterctl.plan_commands import _leave
from clusterctl.planning import Action, Blocked, Plan, Verb

ACTION = Action(Verb.START, "studio-2", "w", "it does not run")
DONE = Result(ACTION)
FAILED = Result(ACTION, "it does not fit")
LOST = Result(ACTION, "it does not answer", unreachable=True)
AWAY = Blocked("studio-3", "it does not answer", unreachable=True)
BARE = Blocked("studio-3", "nothing is installed there", unreachable=False)


@pytest.mark.parametrize(
    ("blocked", "results", "code"),
    [
        ([], [], 0),
        ([], [DONE, DONE], 0),
        ([], [FAILED], 1),
        ([BARE], [], 3),
        ([BARE], [FAILED], 1),
        ([], [DONE, FAILED], 5),
        ([AWAY], [DONE], 5),
        ([BARE], [DONE, LOST], 5),
        ([AWAY], [], 6),
        ([], [LOST], 6),
        ([AWAY], [FAILED], 6),
    ],
)
def test_the_exit_code_says_how_it_went(blocked: list[Blocked], results: list[Result], code: int):
    planned = Plan((ACTION,) * len(results), tuple(blocked))
    if code == 0:
        _leave(planned, results)
        return
    with pytest.raises(SystemExit) as ended:
        _leave(planned, results)
    assert ended.value.code == code
