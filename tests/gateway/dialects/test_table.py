"""The tables of fields against the parsers: nothing is read that they do not tell, nor told and not read."""

from __future__ import annotations

import json

import pytest

from gateway.dialects.table import Row, Use, schema_of
from protocol.errors import ClusterError
from tests.gateway.dialects.rules import (
    LEAST,
    NUMERIC,
    OTHER_FORMS,
    PARSERS,
    ROWS,
    VALUES,
    body_with,
    expected,
    flat,
    names_read,
    numbers,
)

SAMPLES = {
    "string": '"x"',
    "integer": "1",
    "number": "1",
    "boolean": "true",
    "array": "[1]",
    "object": '{"a": 1}',
}


def refusal(path: str, name: str, value: str, *, forms: int = 9) -> ClusterError | None:
    """That of any of the first so many forms of the body."""
    for form in (LEAST[path], *OTHER_FORMS.get(path, ()))[:forms]:
        try:
            PARSERS[path](body_with(path, name, value, form=form))
        except ClusterError as error:
            return error
    return None


@pytest.mark.parametrize("path", PARSERS)
def test_each_field_that_is_read_stands_in_the_table_and_the_other_way_round(path: str):
    """A field that is added to a parser needs its row in the dialect's `…_rows.py`."""
    read: set[str] = set()
    for body in (LEAST[path], *OTHER_FORMS.get(path, ())):
        read |= names_read(path, body)
    rows = ROWS[path] or ()
    assert read <= {row.name for row in rows}
    assert {row.name for row in rows if row.use is not Use.IGNORED} <= read
    assert not {row.name for row in rows if row.use is Use.IGNORED} & read
    assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize(("path", "name", "row"), numbers())
def test_fc_13_one_rule_for_every_number_on_every_route(path: str, name: str, row: Row):
    for value in (*VALUES, "9" * 400, "1e-300"):
        found = refusal(path, name, value)
        reason = None if found is None else found.reason or "invalid_value"
        if len(value) > 99:
            assert reason in ("invalid_value", "invalid_json", "invalid_type", "unsupported_parameter")
            continue
        assert reason in expected(row, value), (value, reason)
        if found is not None and reason != "invalid_json":
            assert found.param in (name, "top_logprobs", "best_of", "max_tokens"), value


@pytest.mark.parametrize("path", PARSERS)
def test_a_value_of_another_type_is_refused_by_name_and_null_is_none(path: str):
    for name, row in flat(ROWS[path] or ()):
        if row.use is not Use.HONOURED or not row.types or row.types[0] in NUMERIC:
            continue
        if "." in name and not name.startswith("options."):
            continue  # beside others that have to be there
        for kind, sample in SAMPLES.items():
            if kind not in row.types:
                found = refusal(path, name, sample)
                assert found is not None, (name, sample)
                assert str(found.param).startswith(name.rpartition(".")[2]) or found.param == name
        found = refusal(path, name, "null", forms=1)
        assert found is None or found.reason == "missing_required_parameter", name
        assert found is not None or not row.required, name


@pytest.mark.parametrize("path", PARSERS)
def test_what_the_table_says_is_refused_and_what_it_says_is_ignored(path: str):
    for name, row in flat(ROWS[path] or ()):
        for sample in ('"x"', '{"a": 1}', "[1]", "true", "-7"):
            if row.use is Use.IGNORED and "." not in name:
                assert refusal(path, name, sample) is None, (name, sample)
        if row.use is Use.REFUSED:
            for kind in row.types or SAMPLES:
                found = refusal(path, name, SAMPLES[kind])
                assert found is not None, (name, kind)
                assert found.param == name


def test_a_row_becomes_a_schema():
    schema = schema_of((Row("n", ("integer",), low=1, high=9), Row("m", ("array",), required=True)))
    assert schema["required"] == ["m"]
    assert schema["properties"]["n"] == {"type": ["integer", "null"], "minimum": 1, "maximum": 9}
    assert json.dumps(schema)
