"""What an API key may take: requests and tokens a minute, answers at once. Shell over the library `limits`.

Tokens count when an answer is complete: a key that has used up its own is refused until they are past,
and nothing that was begun is cut. Counts are this gateway's, or shared by all that name one storage.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from limits.aio.storage import MemoryStorage, RedisStorage
from limits.errors import StorageError

from gateway.failures import Headers, Shape
from gateway.limit_headers import headers
from gateway.windows import MINUTE_S, Window
from protocol.api_keys import ApiKey, now
from protocol.config import LimitsConfig
from protocol.config_errors import ConfigError
from protocol.errors import ClusterError, ErrorCode, InvalidRequestError

logger = logging.getLogger(__name__)

_NO_LIMIT = 2**62
_TIMEOUT_S = 0.5
_LEFT_ALONE_S = 5.0
"""So long a storage that failed is not asked again."""
_BUSY_WAIT_S = 1.0


class Quotas:
    """Owns what is under way of each key, and the way to the counts of the last minutes."""

    def __init__(self, clock: Callable[[], float], shared: RedisStorage | None = None) -> None:
        self._clock = clock
        self._own = MemoryStorage()
        self._shared = shared
        self._shared_again_at = 0.0
        self._running: Counter[str] = Counter()
        self._spending: set[asyncio.Task[None]] = set()

    async def take(
        self, key: ApiKey, answers: int, tell: Callable[[Headers], None], shape: Shape = Shape.OPENAI
    ) -> None:
        """Let a request of so many answers begin. Call `done` when it is over.

        `tell` is given the headers that clients of that shape read. Raises `ClusterError`.
        """
        self._check_places(key, answers)
        # Before anything is awaited, or many could come in meanwhile.
        self._running[key.name] += answers
        try:
            await self._check_minute(key, lambda kind, window: tell(headers(kind, window, shape, now())))
        except BaseException:
            self._leave(key, answers)
            raise

    def done(self, key: ApiKey, answers: int, tokens: int) -> None:
        """It is over, and took so many tokens."""
        self._leave(key, answers)
        if key.tokens_per_minute is not None and tokens:
            task = asyncio.create_task(self._spend(key, tokens))
            self._spending.add(task)
            task.add_done_callback(self._spending.discard)

    def _leave(self, key: ApiKey, answers: int) -> None:
        self._running[key.name] -= answers
        if not self._running[key.name]:
            del self._running[key.name]

    def _check_places(self, key: ApiKey, answers: int) -> None:
        most = key.max_concurrent
        if most is None:
            return
        if answers > most:
            raise InvalidRequestError(
                f"this asks for {answers} answers at once, and this API key may have {most}", param="n"
            )
        if self._running[key.name] + answers > most:
            raise _limited(f"this API key has {most} answers under way, as many as it may", _BUSY_WAIT_S)

    async def _check_minute(self, key: ApiKey, tell: Callable[[str, Window], None]) -> None:
        """The tokens first: a request that is refused for them does not count."""
        if key.tokens_per_minute is not None:
            window = await self._window(key, "tokens", key.tokens_per_minute)
            tell("tokens", window)
            if window.wait_s:
                words = f"this API key has used its {window.limit} tokens of this minute"
                raise _limited(words, window.wait_s)
        if key.requests_per_minute is not None:
            taken = await self._add(key, "requests", key.requests_per_minute, 1)
            window = await self._window(key, "requests", key.requests_per_minute)
            tell("requests", window)
            if not taken:
                words = f"this API key has asked {window.limit} times in this minute, as often as it may"
                raise _limited(words, window.wait_s)

    async def _spend(self, key: ApiKey, tokens: int) -> None:
        await self._add(key, "tokens", _NO_LIMIT, tokens)

    async def _add(self, key: ApiKey, kind: str, limit: int, amount: int) -> bool:
        """Whether so many more were within the limit; then they count."""
        name = _name(key, kind)
        if (shared := self._storage()) is not None:
            try:
                return await shared.acquire_sliding_window_entry(name, limit, MINUTE_S, amount)
            except StorageError as error:
                self._leave_alone(error)
        return await self._own.acquire_sliding_window_entry(name, limit, MINUTE_S, amount)

    async def _window(self, key: ApiKey, kind: str, limit: int) -> Window:
        name = _name(key, kind)
        if (shared := self._storage()) is not None:
            try:
                return Window(limit, *await shared.get_sliding_window(name, MINUTE_S))
            except StorageError as error:
                self._leave_alone(error)
        return Window(limit, *await self._own.get_sliding_window(name, MINUTE_S))

    def _storage(self) -> RedisStorage | None:
        return self._shared if self._clock() >= self._shared_again_at else None

    def _leave_alone(self, error: StorageError) -> None:
        """Nobody is refused for a storage that fails: this gateway counts alone meanwhile."""
        if self._storage() is None:
            return  # as another request that waited for it found, too
        self._shared_again_at = self._clock() + _LEFT_ALONE_S
        logger.warning("the storage of limits does not answer, so this gateway counts alone: %s", error)


def shared_storage(config: LimitsConfig) -> RedisStorage | None:
    """The Redis or Valkey server that is configured; it is not asked yet. Raises `ConfigError`."""
    if config.storage is None:
        return None
    password = _password(Path(config.storage_password_file)) if config.storage_password_file else None
    return RedisStorage(
        # Both servers speak the same, and one library speaks it with either.
        f"async+{config.storage.replace('valkey', 'redis', 1)}",
        wrap_exceptions=True,
        implementation="redispy",
        key_prefix="studiofleet",
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
        **({"password": password} if password else {}),
    )


def _password(path: Path) -> str:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"limits.storage_password_file is open to other users; run: chmod 600 {path}")
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"limits.storage_password_file {path} cannot be read: {error.strerror or error};"
            " put the password there, or remove the key"
        ) from error


def _name(key: ApiKey, kind: str) -> str:
    return f"{kind}/{key.name}"


def _limited(words: str, wait_s: float) -> ClusterError:
    return ClusterError(ErrorCode.RATE_LIMITED, f"{words}; ask again later", retry_after_s=wait_s)
