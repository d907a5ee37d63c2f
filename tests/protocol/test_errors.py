from __future__ import annotations

from protocol.errors import ClusterError, ErrorCode, InvalidRequestError, error_code


def test_a_code_this_version_does_not_know_counts_as_internal():
    assert error_code("from_the_future") is ErrorCode.INTERNAL_ERROR
    assert error_code("overloaded") is ErrorCode.OVERLOADED


def test_an_invalid_request_names_its_field():
    error = InvalidRequestError("temperature is 3; it goes from 0 to 2", param="temperature")
    assert isinstance(error, ClusterError)
    assert (error.code, error.param, error.reason) == (
        ErrorCode.INVALID_REQUEST,
        "temperature",
        "invalid_value",
    )
    assert str(error).startswith("temperature is 3")
