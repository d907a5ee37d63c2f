"""Requests with pictures: for models that see, these are taken in; to all others they are words. Pure, but
for the class that takes them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace
from starlette.types import Receive

from gateway.body import Intake, client_closed, wait_for_disconnect
from gateway.catalog import Catalog
from gateway.dialects.pictures import UNSEEN, PicturePart, joined, pictures_of
from gateway.media.intake import Pictures
from gateway.media.values import Picture, Taken
from protocol.api_keys import ApiKey
from protocol.errors import ClusterError, ErrorCode
from protocol.messages import Generate
from protocol.values import ChatMessage, ContentPart

logger = logging.getLogger(__name__)

_RETRY_S = 2.0

Messages = tuple[ChatMessage, ...]


def unseen(messages: Messages, seers: Sequence[str]) -> Messages:
    """As a model reads them that cannot see. Raises `ClusterError` for a picture that it would have to.

    `seers`: models that can.
    """
    for picture in pictures_of(messages):
        if picture.refusal is not None:
            error = picture.refusal
            words = f"{error.message}; models that see: {', '.join(seers)}" if seers else error.message
            raise ClusterError(error.code, words, param=error.param, reason=error.reason)
    return tuple(_without_pictures(message) for message in messages)


def _without_pictures(message: ChatMessage) -> ChatMessage:
    if isinstance(message.content, str):
        return message
    parts = [UNSEEN if isinstance(part, PicturePart) else part.text for part in message.content]
    return replace(message, content=joined(parts))


def seen(messages: Messages, taken: Sequence[Taken]) -> Messages:
    """As they are sent: each picture by the number of its frame."""
    frames = iter(enumerate(taken, 1))

    def part(given: ContentPart) -> ContentPart:
        if not isinstance(given, PicturePart):
            return given
        frame, picture = next(frames)
        return ContentPart(type="image", frame=frame, media_type=picture.facts.media_type)

    return tuple(
        message
        if isinstance(message.content, str)
        else replace(message, content=tuple(part(given) for given in message.content))
        for message in messages
    )


class Sight:
    """What is done with pictures before their requests are sent. On the event loop."""

    def __init__(self, catalog: Catalog, pictures: Pictures, intake: Intake) -> None:
        self._catalog = catalog
        self._pictures = pictures
        self._intake = intake

    def checked(self, messages: Messages, model: str, caller: ApiKey) -> Messages:
        """Without pictures, where the model cannot see. Raises `ClusterError`."""
        if not pictures_of(messages) or self._catalog.sees(model):
            return messages
        if not self._catalog.workers_of(model):
            raise ClusterError(
                ErrorCode.NO_WORKER_AVAILABLE,
                f"no worker of the model {model!r} has told yet whether it can see; ask again",
                retry_after_s=_RETRY_S,
            )
        return unseen(messages, [name for name in self._catalog.models(caller) if self._catalog.sees(name)])

    async def take(
        self, requests: Sequence[Generate], receive: Receive, asker: str
    ) -> tuple[list[Generate], tuple[bytes, ...]]:
        """The requests, which have the same messages, as they are sent, and the frames of their pictures.

        Nothing is fetched any more when the client leaves. Raises `ClusterError`.
        """
        messages = requests[0].messages
        pictures = pictures_of(messages)
        if not pictures:
            return list(requests), ()
        taken = await self._while_there(pictures, receive, asker)
        for picture in taken:
            logger.debug("request %s: %s", requests[0].request_id, picture)
        shown = seen(messages, taken)
        return [replace(request, messages=shown) for request in requests], tuple(one.data for one in taken)

    async def _while_there(self, pictures: Sequence[Picture], receive: Receive, asker: str) -> list[Taken]:
        with self._intake.share() as hold:
            taking = asyncio.create_task(self._pictures.take(pictures, asker, hold))
            leaving = asyncio.create_task(wait_for_disconnect(receive))
            try:
                await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    raise client_closed()
                return taking.result()
            finally:
                taking.cancel()
                leaving.cancel()
