from __future__ import annotations

import pytest

from protocol.errors import ClusterError, ErrorCode, InvalidRequestError, worker_code


@pytest.mark.parametrize("said", ["from_the_future", "client_closed_request", "unauthenticated", ""])
def test_a_code_that_is_not_for_workers_to_say_counts_as_internal(said: str):
    assert worker_code(said) is ErrorCode.INTERNAL_ERROR


def test_a_workers_own_codes_are_taken_as_they_are():
    assert worker_code("context_length_exceeded") is ErrorCode.CONTEXT_LENGTH_EXCEEDED


def test_an_invalid_request_names_its_field():
    error = InvalidRequestError("temperature is 3; it goes from 0 to 2", param="temperature")
    assert isinstance(error, ClusterError)
    assert (error.code, error.param, error.reason) == (
        ErrorCode.INVALID_REQUEST,
        "temperature",
        "invalid_value",
    )
    assert str(error).startswith("temperature is 3")
