"""A request's life in sentences. Facts in, lines out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def lines(gateway_id: str, request: Mapping[str, Any]) -> Iterator[str]:
    """What a gateway knows of one request, from its `GET /admin/requests/ID`."""
    yield f"{request.get('id')}, model {request.get('model')}, gateway {gateway_id}"
    for event in request.get("events", ()):
        sentence = _SENTENCES.get(event.get("what"), _other)(event)
        yield f"{event.get('after_s', 0.0):9.3f} s  {sentence}"
        yield from (f"{'':13}{more}" for more in _choice(event))


def _came(event: Mapping[str, Any]) -> str:
    return f"came: {event.get('bytes')} bytes of prompt, class {event.get('priority')}"


def _waits(event: Mapping[str, Any]) -> str:
    return f"waits in the gateway's line, {event.get('ahead')} there before it"


def _sent(event: Mapping[str, Any]) -> str:
    again = f", attempt {event['attempt'] + 1}" if event.get("attempt") else ""
    return f"sent to {event.get('worker')}{again}"


def _rejected(event: Mapping[str, Any]) -> str:
    return f"{event.get('worker')} rejects it: {event.get('reason')}"


def _began(event: Mapping[str, Any]) -> str:
    cached = f", {event['cached_tokens']} of them in its cache" if event.get("cached_tokens") else ""
    return f"{event.get('worker')} begins it: {event.get('prompt_tokens')} tokens of prompt{cached}"


def _again(event: Mapping[str, Any]) -> str:
    return (
        f"{event.get('worker')} is left ({event.get('code')}) before a token came; it begins anew elsewhere"
    )


def _goes_on(event: Mapping[str, Any]) -> str:
    left = f"{event.get('worker')} is left ({event.get('code')}) after {event.get('tokens')} tokens"
    return f"{left}; another one goes on"


def _finished(event: Mapping[str, Any]) -> str:
    times = event.get("worker_s", {})
    told = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in times.items())
    inside = f"; inside the worker: {told}" if told else ""
    return (
        f"{event.get('worker')} ends it: {event.get('finish_reason')}, {event.get('tokens')} tokens{inside}"
    )


def _failed(event: Mapping[str, Any]) -> str:
    return f"fails: {event.get('code')}"


def _left(event: Mapping[str, Any]) -> str:
    return f"the client leaves, after {event.get('tokens')} tokens"


def _other(event: Mapping[str, Any]) -> str:
    return str(event.get("what"))


_SENTENCES = {
    "came": _came,
    "waits": _waits,
    "sent": _sent,
    "rejected": _rejected,
    "began": _began,
    "again": _again,
    "goes_on": _goes_on,
    "finished": _finished,
    "failed": _failed,
    "left": _left,
}


def _choice(event: Mapping[str, Any]) -> Iterator[str]:
    """Who could have been asked."""
    for each in event.get("free", ()):
        mark = "*" if each.get("worker") == event.get("worker") else " "
        load = ", ".join(f"{each.get(name)} {name}" for name in ("running", "waiting", "unconfirmed"))
        yield f"{mark} {each.get('worker')}: {load}; done with all in {each.get('cost_s')} s"
    if event.get("more_free"):
        yield f"  {event['more_free']} more with a place"
    if event.get("without_a_place"):
        yield f"  {event['without_a_place']} without a place"
    if event.get("tried"):
        yield f"  tried before: {', '.join(event['tried'])}"
