"""What a gateway takes from the machine."""

from __future__ import annotations

import resource

import pytest

from gateway.binding import connection_limit


@pytest.mark.parametrize(
    ("given", "wanted", "taken", "raised"),
    [
        ((20_000, 20_000), 2048, 2048, None),
        ((256, resource.RLIM_INFINITY), 2048, 2048, 3200),
        ((1024, 1_000_000), 2048, 2048, 3200),
        ((256, 1024), 2048, 512, 1024),
        ((256, 1024), 100, 100, 1024),
    ],
)
def test_connections_and_descriptors_fit(
    monkeypatch: pytest.MonkeyPatch, given: tuple[int, int], wanted: int, taken: int, raised: int | None
):
    asked: list[int] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _what: given)
    monkeypatch.setattr(resource, "setrlimit", lambda _what, limits: asked.append(limits[0]))
    assert connection_limit(wanted) == taken
    assert asked == ([] if raised is None else [raised])
