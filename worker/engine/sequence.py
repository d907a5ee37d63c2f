"""What passes between the event loop and the engine thread: sequences there, events back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from worker.engine.prefill import Rate
from worker.engine.settings import SamplingSettings


class Likelihood(NamedTuple):
    """The log-probability of a token, and the likeliest tokens at its place with theirs, falling.

    In the model's own distribution: before penalties, bias and temperature, as vLLM reports them.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Event:
    """One thing that happened to a sequence: its prompt was taken, it got a token, or it failed."""

    token: int | None = None
    finish: str | None = None
    """With the last token: `stop` (a stop token) or `length`."""
    cached_tokens: int | None = None
    """Set when the prompt is taken: so many of its tokens need no reading."""
    error: Exception | None = None
    likelihood: Likelihood | None = None
    """Of the token."""
    prompt: tuple[Likelihood, ...] = ()
    """When the prompt is taken, where it was to be scored: of its tokens from the second on."""
    drafts: int = 0
    """Tokens that a draft proposed for this one and those after it."""
    accepted: int = 0
    """1 where this token is one that a draft proposed."""

    @property
    def last(self) -> bool:
        return self.finish is not None or self.error is not None


class Guide(Protocol):
    """What says which tokens may come next in one answer. The engine thread's own."""

    @property
    def over(self) -> bool:
        """Nothing but the end can come."""

    def advance(self, answer: list[int]) -> None:
        """Go to behind these tokens, from wherever it is. Raises `PromptError`."""

    def allowed(self) -> Any:
        """The tokens that may come next, as an array of uint32 words, a bit each. Raises `PromptError`."""


@dataclass(eq=False)
class Sequence:
    """Prompt and answer of one request as ids. The engine thread's own from when it is added."""

    request_id: str
    prompt: list[int]
    max_tokens: int
    """Of the whole answer, that of an earlier attempt included."""
    sampling: SamplingSettings
    stop_ids: frozenset[int]
    deliver: Callable[[Event], None]
    """Called on the event loop."""
    emitted: list[int] = field(default_factory=list)
    score_prompt: bool = False
    """Whether the log-probabilities of the prompt's own tokens are asked for."""
    taken: bool = False
    """Whether its prompt was taken, and said to be: that is said once, also of one that begins anew."""
    guide: Guide | None = None
    """Where the answer has to follow a grammar."""
    pictures: tuple[Any, ...] = ()
    """Those that stand for some of the prompt's ids."""

    @property
    def ids(self) -> list[int]:
        """All that the model has to have read before the next token. A new list."""
        return self.prompt + self.emitted

    @property
    def words(self) -> list[int]:
        """The prompt's ids without those of pictures, which are beyond the vocabulary."""
        beyond = min((picture.place.first for picture in self.pictures), default=None)
        return self.prompt if beyond is None else [each for each in self.prompt if each < beyond]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.emitted)


Events = list[tuple[Sequence, Event]]


class Stepper(Protocol):
    """What takes sequences through a model, on the engine thread."""

    @property
    def prefill_rate(self) -> Rate: ...

    @property
    def decode_rate(self) -> Rate: ...

    @property
    def has_work(self) -> bool: ...

    @property
    def running(self) -> int: ...

    @property
    def prefill_tokens(self) -> int:
        """Tokens still to be read of the prompt that is being read."""

    @property
    def preemptions(self) -> int:
        """How often a sequence had to give up its cache, to go on later."""

    @property
    def prefix_stats(self) -> dict[str, int]: ...

    def add(self, sequence: Sequence) -> None: ...

    def remove(self, sequence: Sequence) -> None:
        """End it, waiting or running; one that is not here has ended already."""

    def make_room(self) -> Sequence | None:
        """Memory runs out: give up what can be computed again, a part at a time.

        Returns the sequence that is alone in hand, and has to end, when there is nothing else.
        """

    def step(self) -> Events:
        """What one step brought. Raises nothing."""

    def clear_prefixes(self) -> None: ...

    def close(self) -> None: ...
