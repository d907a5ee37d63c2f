"""The pictures of a request: from where they are to bytes that were looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gateway.media.data_urls import decoded, payload
from gateway.media.fetching import Fetcher
from gateway.media.pictures import facts_of
from gateway.media.refusal import PictureError
from gateway.media.resolving import Resolve, Resolver
from gateway.media.values import Picture, Taken
from protocol.config import MediaConfig
from protocol.errors import ClusterError, InvalidRequestError


class Pictures:
    """Takes the pictures of requests in, within the limits of one configuration. On the event loop."""

    def __init__(self, config: MediaConfig, resolve: Resolve | None = None) -> None:
        """Raises `StartError`."""
        self._config = config
        self._fetcher = Fetcher(config, Resolver() if resolve is None else resolve)

    async def take(
        self, pictures: Sequence[Picture], asker: str, hold: Callable[[int], None] = lambda size: None
    ) -> list[Taken]:
        """All of a request of `asker`, in order; `hold` is told of the bytes of each.

        Raises `ClusterError`, which names the first picture at fault.
        """
        most = self._config.max_pictures
        if len(pictures) > most:
            raise _refused(pictures[most], f"is one picture too many: at most {most} are taken", "too_many")
        left = self._config.max_total_bytes
        taken: list[Taken] = []
        try:
            async with asyncio.timeout(self._config.timeout_s):
                for picture in pictures:
                    one = await self._take(picture, asker)
                    left -= len(one.data)
                    if left < 0:
                        raise _refused(
                            picture,
                            f"goes beyond the {self._config.max_total_bytes} bytes that all pictures of a"
                            " request may have together",
                            "image_file_too_large",
                        )
                    hold(len(one.data))
                    taken.append(one)
        except TimeoutError:
            late = pictures[len(taken)]
            message = f"was not there within {self._config.timeout_s:g} s"
            raise _refused(late, message, "failed_to_download_image") from None
        return taken

    async def _take(self, picture: Picture, asker: str) -> Taken:
        try:
            if not picture.size:
                raise PictureError("there is neither an address nor a data URL nor base64 in it")
            if picture.url and picture.url[:5].lower() != "data:":
                data = await self._fetcher.fetch(picture.url, asker)
            else:
                text = payload(picture.url) if picture.url else picture.base64
                data = await asyncio.to_thread(decoded, text, self._config.max_bytes)
            facts = facts_of(data, self._config.max_pixels)
        except PictureError as error:
            raise _refused(picture, f"cannot be used: {error}", error.reason) from None
        return Taken(facts, data)


def _refused(picture: Picture, message: str, reason: str) -> ClusterError:
    return InvalidRequestError(f"{picture.path} {message}", param=picture.path, reason=reason)
