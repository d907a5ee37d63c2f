"""What clients are told of a limit of their key, as OpenAI's and Anthropic's libraries read it. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from gateway.failures import Headers, Shape
from gateway.windows import Window, duration


def headers(kind: str, window: Window, shape: Shape, now: datetime) -> Headers:
    """`kind` is `requests` or `tokens`. Anthropic's name the time at which the whole limit is free again."""
    limit, remaining = str(window.limit), str(window.remaining)
    told = {
        f"x-ratelimit-limit-{kind}": limit,
        f"x-ratelimit-remaining-{kind}": remaining,
        f"x-ratelimit-reset-{kind}": duration(window.reset_s),
    }
    if shape is Shape.ANTHROPIC:
        free_at = now + timedelta(seconds=window.reset_s)
        told[f"anthropic-ratelimit-{kind}-limit"] = limit
        told[f"anthropic-ratelimit-{kind}-remaining"] = remaining
        told[f"anthropic-ratelimit-{kind}-reset"] = free_at.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [(name.encode(), value.encode()) for name, value in told.items()]
