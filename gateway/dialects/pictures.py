"""Pictures among the parts of a message. Pure.

Whether the model can see is not known yet where a request is read: its pictures stay as the client sent
them, and what is to be said where it cannot goes with each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.dialects.fields import unsupported
from gateway.media.values import Picture
from protocol.errors import ClusterError
from protocol.values import ChatMessage, ContentPart

UNSEEN = "[an image, which this model cannot see]"
_GAP = "\n"


class PicturePart(ContentPart, frozen=True, kw_only=True):
    """A picture that was not looked at yet. Never sent."""

    type: str = "image"
    picture: Picture


def picture_part(path: str, source: Any, *, must_be_seen: ClusterError | None) -> PicturePart:
    """`source`: an address or a data URL, or an object with it, or base64 in one of Anthropic's.

    `must_be_seen`: what is said where the model cannot; None: a note stands in its place then.
    """
    fields = source if isinstance(source, dict) else {"url": source}
    found = {name: fields.get(key) for name, key in (("url", "url"), ("base64", "data"))}
    given = {name: text for name, text in found.items() if isinstance(text, str)}
    return PicturePart(picture=Picture(path=path, refusal=must_be_seen, **given))


def text_only(path: str, kind: str) -> ClusterError:
    """What is said of the part of a kind that the model does not take."""
    return unsupported(path, f"is {kind[:40]!r}, but this model takes text only", reason="unsupported_value")


def joined(parts: Sequence[str | ContentPart]) -> str | tuple[ContentPart, ...]:
    """The content of a message: texts side by side are one."""
    found: list[ContentPart] = []
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
            continue
        if texts:
            found.append(ContentPart(type="text", text=_GAP.join(texts)))
            texts = []
        found.append(part)
    text = _GAP.join(texts)
    if not found:
        return text
    return (*found, ContentPart(type="text", text=text)) if texts else tuple(found)


def pictures_of(messages: Sequence[ChatMessage]) -> list[Picture]:
    """In the order in which they stand there."""
    return [
        part.picture
        for message in messages
        if not isinstance(message.content, str)
        for part in message.content
        if isinstance(part, PicturePart)
    ]
