"""All answers to one request: one `Generate` each, so that each can be rejected and retried by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.access import ANYBODY
from gateway.cluster import Cluster
from gateway.dialects.base import Asked, total
from gateway.flight import Terms
from gateway.stream import Group, Stream
from gateway.trial import Trial
from protocol.api_keys import PRIORITIES, ApiKey
from protocol.messages import Generate, Work
from protocol.values import Usage

_SEEDS = 2**63


def generates(
    asked: Asked, request_id: str, model: str, seed: int, time_left_s: float, caller: ApiKey = ANYBODY
) -> list[Generate]:
    """What the workers are asked: each prompt `n` times, with seeds in a row."""
    level = max(PRIORITIES.index(caller.priority), asked.level)
    prompts: Sequence[str | tuple[int, ...] | None] = asked.prompts or (None,)
    return [
        Generate(
            request_id=request_id if number == 0 else f"{request_id}.{number}",
            attempt=0,
            model=model,
            sampling=asked.sampling,
            seed=(seed + number) % _SEEDS,
            messages=asked.messages,
            prompt=prompt,
            echo=asked.echo,
            prompt_only=asked.prompt_only,
            tools=asked.tools,
            tool_choice=asked.tool_choice,
            parallel_tool_calls=asked.parallel_tool_calls,
            response_format=asked.response_format,
            template_options=asked.template_options,
            priority=PRIORITIES[level],
            tenant=caller.name,
            time_left_s=time_left_s,
            cache_key=asked.cache_key,
        )
        for number, prompt in enumerate(prompt for prompt in prompts for _ in range(asked.n))
    ]


class Choices(Group):
    """The streams of all answers as one. Call `close` in any case."""

    __slots__ = ("_cluster", "_ids", "_live", "_n", "_terms", "streams")

    def __init__(self, cluster: Cluster, terms: Terms, *, n: int = 1, live: bool = False) -> None:
        """`n`: so many answers belong to one prompt. `live`: they are written while they come."""
        super().__init__(cluster.turn)
        self._cluster = cluster
        self._n = n
        self._live = live
        self._terms = terms
        self._ids: list[str] = []
        self.streams: list[Stream] = []

    def open(self, requests: Sequence[Work], size: int, parts: tuple[bytes, ...] = ()) -> None:
        """Raises `ClusterError` when there is no place for them. Together they need one in the line.

        `parts`: the pictures that their messages name; they share them.
        """
        trial = Trial(requests[0].request_id) if len(requests) > 1 else None
        terms = replace(self._terms, parts=parts, trial=trial)
        for request in requests:
            share = size // len(requests)
            self._ids.append(request.request_id)
            stream = self._cluster.open(
                request,
                share,
                live=self._live,
                group=self,
                terms=terms,
                further=bool(self.streams),
            )
            self.streams.append(stream)

    def close(self) -> int:
        """How many tokens they took, prompts included."""
        # The last first: those in line would be sent to the places of those that were closed before.
        usages = [self._cluster.close(request_id) for request_id in reversed(self._ids)]
        took = total(usages[::-1], self._n)
        return took.prompt_tokens + took.completion_tokens

    @property
    def overrun(self) -> bool:
        return any(stream.overrun for stream in self.streams)

    @property
    def usage(self) -> Usage:
        """Of all that are complete."""
        return total([stream.end.usage for stream in self.streams if stream.end is not None], self._n)

    def seconds(self) -> tuple[float | None, float]:
        """To the first token of any, and until now."""
        times = [stream.seconds() for stream in self.streams]
        return min((first for first, _ in times if first is not None), default=None), times[0][1]

    def account(self) -> dict[str, str | int | float]:
        """What the log tells of them: the first one's, and their number where there are several."""
        if not self.streams:
            return {}
        told = self.streams[0].account()
        if len(self.streams) > 1:
            told |= {"choices": len(self.streams), "completion_tokens": self.usage.completion_tokens}
        return told
