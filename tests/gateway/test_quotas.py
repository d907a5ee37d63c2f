"""What a key may take: a minute's requests and tokens, answers at once; and a storage that fails."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.access import ANYBODY
from gateway.failures import Headers
from gateway.quotas import Quotas, shared_storage
from protocol.api_keys import ApiKey
from protocol.config import LimitsConfig
from protocol.config_errors import ConfigError
from protocol.errors import ClusterError

KEY = ApiKey(name="alice", secrets=(), created=datetime(2026, 1, 1, tzinfo=UTC))


class Asking:
    """Requests to quotas, and what was told with each."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        self.now = 0.0
        self.quotas = quotas or Quotas(lambda: self.now)
        self.told: dict[str, str] = {}
        self.retry_after_s: float | None = None

    def _tell(self, headers: Headers) -> None:
        self.told |= {name.decode().removeprefix("x-ratelimit-"): value.decode() for name, value in headers}

    async def take(self, key: ApiKey, answers: int = 1) -> str:
        """The code of the refusal, or none."""
        self.told = {}
        try:
            await self.quotas.take(key, answers, self._tell)
        except ClusterError as error:
            self.retry_after_s = error.retry_after_s
            return str(error.code)
        return ""

    async def whole(self, key: ApiKey, tokens: int = 0) -> str:
        refused = await self.take(key)
        if not refused:
            self.quotas.done(key, 1, tokens)
            await asyncio.gather(*self.quotas._spending)
        return refused


def test_so_many_requests_a_minute():
    key = replace(KEY, requests_per_minute=3)

    async def scenario() -> None:
        asking = Asking()
        assert [await asking.whole(key) for _ in range(5)] == ["", "", "", "rate_limited", "rate_limited"]
        assert (asking.told["limit-requests"], asking.told["remaining-requests"]) == ("3", "0")
        assert asking.told["reset-requests"].endswith("s")
        assert asking.retry_after_s is not None
        assert 0 < asking.retry_after_s <= 60
        assert "limit-tokens" not in asking.told
        other = replace(key, name="bob")
        assert await asking.whole(other) == ""
        assert asking.told["remaining-requests"] == "2"

    asyncio.run(scenario())


def test_so_many_tokens_a_minute_are_counted_when_an_answer_is_complete():
    key = replace(KEY, tokens_per_minute=100, requests_per_minute=10)

    async def scenario() -> None:
        asking = Asking()
        assert await asking.whole(key, tokens=60) == ""
        assert asking.told["remaining-tokens"] == "100"
        assert await asking.whole(key, tokens=500) == "", "what was begun is never cut"
        assert asking.told["remaining-tokens"] == "40"
        assert await asking.whole(key) == "rate_limited"
        assert asking.told == {
            "limit-tokens": "100",
            "remaining-tokens": "0",
            "reset-tokens": asking.told["reset-tokens"],
        }
        looser = replace(key, tokens_per_minute=1000)
        assert await asking.whole(looser) == ""
        assert asking.told["remaining-requests"] == "7", "what was refused for its tokens did not count"

    asyncio.run(scenario())


def test_so_many_answers_at_once():
    key = replace(KEY, max_concurrent=3, requests_per_minute=4)

    async def scenario() -> None:
        asking = Asking()
        assert [await asking.take(key, 2), await asking.take(key, 2), await asking.take(key)] == [
            "",
            "rate_limited",
            "",
        ]
        assert await asking.take(key, 4) == "invalid_request", "it could never have them"
        asking.quotas.done(key, 2, 0)
        assert await asking.take(key, 2) == ""
        asking.quotas.done(key, 2, 0)
        assert [await asking.take(key) for _ in range(3)] == ["", "rate_limited", "rate_limited"]
        asking.quotas.done(key, 1, 0)
        asking.quotas.done(key, 1, 0)
        assert not asking.quotas._running, "who was refused holds nothing"

    asyncio.run(scenario())


def test_many_at_the_same_moment_do_not_slip_through():
    key = replace(KEY, max_concurrent=5, requests_per_minute=8)

    async def scenario() -> None:
        asking = Asking()
        assert (await asyncio.gather(*(asking.take(key) for _ in range(20)))).count("") == 5

        fast = replace(key, name="fast", max_concurrent=None)
        assert (await asyncio.gather(*(asking.take(fast) for _ in range(20)))).count("") == 8

    asyncio.run(scenario())


def test_a_key_without_limits_is_told_none():
    async def scenario() -> None:
        asking = Asking()
        for key in (KEY, ANYBODY):
            assert [await asking.whole(key, 10**9) for _ in range(50)] == [""] * 50
            assert asking.told == {}

    asyncio.run(scenario())


def test_a_storage_that_is_away_refuses_nobody_and_the_gateway_counts_alone(caplog):
    pytest.importorskip("redis")
    storage = shared_storage(LimitsConfig(storage="redis://127.0.0.1:1/0"))
    key = replace(KEY, requests_per_minute=2, tokens_per_minute=10)

    async def scenario() -> None:
        asking = Asking()
        asking.quotas = Quotas(lambda: asking.now, storage)
        assert [await asking.whole(key) for _ in range(3)] == ["", "", "rate_limited"]
        assert len(caplog.records) == 1, "it is left alone for a while"
        asking.now += 6
        assert await asking.whole(key) == "rate_limited"
        assert len(caplog.records) == 2

    asyncio.run(scenario())


def test_a_storage_that_is_away_is_told_once_by_all_who_waited_for_it(caplog):
    pytest.importorskip("redis")
    storage = shared_storage(LimitsConfig(storage="redis://127.0.0.1:1/0"))
    key = replace(KEY, requests_per_minute=9)

    async def scenario() -> None:
        asking = Asking(Quotas(lambda: 0.0, storage))
        assert await asyncio.gather(*(asking.whole(key) for _ in range(5))) == [""] * 5
        assert len(caplog.records) == 1

    asyncio.run(scenario())


def test_without_a_storage_there_is_none():
    assert shared_storage(LimitsConfig()) is None


@pytest.mark.parametrize(("mode", "words"), [(0o644, "chmod 600"), (None, "cannot be read")])
def test_a_password_that_cannot_be_used_is_told_with_its_file(tmp_path: Path, mode: int | None, words: str):
    path = tmp_path / "password"
    if mode is not None:
        path.write_text("secret\n")
        path.chmod(mode)
    settings: Any = {"storage": "redis://localhost", "storage_password_file": str(path)}
    with pytest.raises(ConfigError, match=words) as raised:
        shared_storage(LimitsConfig(**settings))
    assert "secret" not in str(raised.value)
