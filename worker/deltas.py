"""The parts of an answer as deltas for the gateway, in their order. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.messages import Delta, Generate, TokenLogprob, ToolCallDelta
from worker.parsers.base import Channel, Part


def deltas(
    request: Generate,
    parts: Sequence[Part],
    token_ids: Iterable[int],
    completion_tokens: int,
    logprobs: Iterable[TokenLogprob] = (),
) -> list[Delta]:
    """As few as keep the order: in one delta reasoning comes first, then text, then calls.

    The first one carries the ids of all, and their log-probabilities.
    """
    groups: list[list[Part]] = []
    for part in parts:
        if not groups or part.channel.value < groups[-1][-1].channel.value:
            groups.append([])
        groups[-1].append(part)
    ids, likelihoods = tuple(token_ids), tuple(logprobs)
    if not groups and ids:
        groups = [[]]
    found = []
    for group in groups:
        found.append(
            Delta(
                request.request_id,
                request.attempt,
                _joined(group, Channel.TEXT),
                ids,
                completion_tokens,
                _joined(group, Channel.REASONING),
                tuple(piece for part in group if part.channel is Channel.CALL for piece in _call(part)),
                likelihoods,
            )
        )
        ids, likelihoods = (), ()
    return found


def _joined(parts: Sequence[Part], channel: Channel) -> str:
    return "".join(part.text for part in parts if part.channel is channel)


def _call(part: Part) -> tuple[ToolCallDelta, ToolCallDelta]:
    return ToolCallDelta(part.number, part.name), ToolCallDelta(part.number, "", part.text)
