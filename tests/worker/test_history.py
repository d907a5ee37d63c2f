"""Conversations put into an order that templates take."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from worker.history import for_strict_templates, in_order


def call(*ids, content=""):
    calls = [{"id": i, "type": "function", "function": {"name": f"f{i}", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(of, content="r"):
    return {"role": "tool", "content": content, "tool_call_id": of}


def user(content):
    return {"role": "user", "content": content}


def brief(messages):
    return [m.get("tool_call_id") or m["content"] or m["role"] for m in messages]


def test_fc_66_texts_of_the_system_become_one_at_the_head():
    system = [{"role": "system", "content": text} for text in ("a", "b", "c")]
    assert in_order([system[0], user("hi"), system[1], {"role": "assistant", "content": "x"}, system[2]]) == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        user("hi"),
        {"role": "assistant", "content": "x"},
    ]
    assert in_order([user("hi"), system[0]])[0] == system[0]


def test_fc_73_results_follow_their_calls_in_the_order_of_the_calls():
    assert brief(in_order([call("A", "B"), user("text"), result("B"), result("A")])) == [
        "assistant",
        "A",
        "B",
        "text",
    ]


def test_fc_73_unknown_missing_and_double_results_are_kept_where_they_can_be():
    messages = [result("X"), user("hi"), call("A", "B"), result("X"), result("A"), result("A")]
    assert brief(in_order(messages)) == ["X", "hi", "assistant", "A", "A", "X"]


def test_fc_73_an_id_that_comes_again_belongs_to_the_nearest_call_before_it():
    first, second = result("A", "1"), result("A", "2")
    found = in_order([call("A"), first, call("A"), second])
    assert [m["content"] for m in found if m["role"] == "tool"] == ["1", "2"]


def test_fc_73_thirty_results_at_once():
    ids = [str(i) for i in range(30)]
    found = in_order([call(*ids), *[result(i) for i in reversed(ids)]])
    assert brief(found)[1:] == ids


def test_results_learn_the_name_of_their_tool():
    assert in_order([call("A"), result("A")])[1]["name"] == "fA"


def test_merging_joins_texts_thoughts_and_calls_and_leaves_results_apart():
    parts = {"role": "user", "content": [{"type": "image"}]}
    assert for_strict_templates([user("a"), parts, user("b")]) == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}],
        }
    ]
    thought = {"role": "assistant", "content": "x", "reasoning_content": "t"}
    (joined,) = for_strict_templates([thought, call("A"), call("B", content="y")])
    assert (joined["content"], joined["reasoning_content"]) == ("x\n\ny", "t")
    assert [c["id"] for c in joined["tool_calls"]] == ["000000000", "000000001"]
    assert len(for_strict_templates([result("A"), result("B")])) == 2


def test_ids_are_short_and_still_join_calls_and_results():
    found = for_strict_templates([call("call_long", "B"), result("B"), result("call_long"), call("B")])
    assert [c["id"] for m in found for c in m.get("tool_calls", ())] == [
        "000000000",
        "000000001",
        "000000001",
    ]
    assert [m["tool_call_id"] for m in found if m["role"] == "tool"] == ["000000001", "000000000"]


_IDS = st.sampled_from("AB")
_ROLES = st.sampled_from(["system", "user", "assistant"])
_TEXTS = st.text("xy", min_size=1, max_size=2)
_PLAIN = st.builds(lambda role, text: {"role": role, "content": text}, _ROLES, _TEXTS)
MESSAGES = st.lists(_PLAIN | st.builds(result, _IDS, _TEXTS) | st.builds(call, _IDS, _IDS), max_size=10)


@given(MESSAGES)
def test_nothing_is_lost_changed_or_ordered_twice(messages):
    before = copy.deepcopy(messages)
    found = in_order(messages)
    assert messages == before
    assert in_order(found) == found
    assert sum(m["role"] != "system" for m in found) == sum(m["role"] != "system" for m in messages)
    text = "".join(m["content"] for m in found)
    assert all(m["content"] in text for m in messages)
    roles = [m["role"] for m in found]
    assert "system" not in roles[1:]
