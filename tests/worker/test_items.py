from types import SimpleNamespace

import pytest

from worker.engine.base import GenerationOutput
from worker.engine.output import EngineOutput
from worker.items import MOST_AT_ONCE, checked, sendable


class Integer:
    """A number as array libraries have them."""

    def __index__(self):
        return 7


def item(**changes):
    return GenerationOutput(**{"text": "ab", "tokens": [1], "new_text": "b", **changes})


def test_an_item_by_the_contract_is_passed_on_as_it_is():
    for given in (item(), EngineOutput("é", [0], 3, 1, None, cached_tokens=2, matched_stop=5)):
        assert checked(given) is given


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (item(tokens=[Integer()]), {"tokens": [7]}),
        (item(tokens=(1, 2)), {"tokens": [1, 2]}),
        (item(tokens=None), {"tokens": []}),
        (item(new_text=None), {"new_text": ""}),
        (item(prompt_tokens=Integer(), completion_tokens=None), {"prompt_tokens": 7, "completion_tokens": 0}),
        (EngineOutput("a", matched_stop=1.5), {"matched_stop": None}),  # type: ignore[arg-type]
        (
            SimpleNamespace(**vars(item(finish_reason=None, finished=0))),
            {"text": "ab", "finish_reason": None, "finished": False},
        ),
    ],
)
def test_an_item_of_the_same_meaning_takes_the_place_of_one_in_other_types(given, expected):
    found = checked(given)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        item(text=b"ab"),
        item(new_text=1),
        item(tokens=["x"]),
        item(tokens=[-1]),
        item(tokens=[2**63]),
        item(tokens=3),
        item(prompt_tokens=-3),
        item(completion_tokens="1"),
        EngineOutput("a", cached_tokens=0.5),  # type: ignore[arg-type]
        EngineOutput("a", tokens=[1] * (MOST_AT_ONCE + 1)),
    ],
)
def test_an_item_without_a_meaning_is_refused(given):
    with pytest.raises((TypeError, ValueError, AttributeError)):
        checked(given)


def test_text_that_is_no_unicode_or_without_end_is_refused():
    assert sendable("héllo 👋") == "héllo 👋"
    for text in ("\ud800", "a" * (MOST_AT_ONCE + 1)):
        with pytest.raises(ValueError, match=r"surrogates|characters"):
            sendable(text)
