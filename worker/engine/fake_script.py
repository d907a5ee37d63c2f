"""What a fake engine says: scripts in requests, the default answer, the chat template. Pure."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from protocol.messages import TokenLogprob
from worker.engine.output import PromptError
from worker.engine.prompt import template_message, template_variables

PREFIX = "fake:"
DEFAULT_TOKENS = 64

_WORD = re.compile(r"\s*\S+|\s+$")
_VOCABULARY = (
    *("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll"),
    *("lagoon", "meadow", "north", "orchard", "pebble", "quarry", "river", "summit", "tundra", "upland"),
    *("valley", "willow", "zephyr"),
)

MOST_WORDS = 1 << 16
"""So many words a tokenizer remembers."""
MOST_ID = 1 << 48
"""All ids are below."""
Position = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=86_400_000)]


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The JSON object behind `fake:`. What is not given is as in an unscripted request."""

    tokens: tuple[str, ...] | None = None
    bytes: tuple[str, ...] | None = None
    """Hex pieces of UTF-8, each of them one token."""
    repeat: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    delay_ms: Milliseconds | None = None
    """Between two tokens, instead of the engine's speed."""
    prefill_ms: Milliseconds | None = None
    finish: Literal["stop", "length", "tool_calls"] = "stop"
    echo_prompt: bool = False
    raise_at: Position | None = None
    """The request fails before that token, and again on later attempts."""
    hang_at: Position | None = None
    """The engine makes no step any more, while the process lives."""
    break_at: Position | None = None
    """The engine fails for good, and every request in it."""
    exit_at: Position | None = None
    """The process is killed."""
    block_ms: Milliseconds = 0
    busy: bool = False
    once: bool = False
    """Faults happen on attempt 0 only."""

    @property
    def says_something(self) -> bool:
        return self.tokens is not None or self.bytes is not None or self.echo_prompt


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer, by position."""

    pieces: Sequence[bytes]
    repeat: int = 1

    def __len__(self) -> int:
        return len(self.pieces) * self.repeat

    def token(self, position: int) -> bytes:
        return self.pieces[position % len(self.pieces)]


class WordTokenizer:
    """One token a word, with the white space before it. Ids are hashes, so alike in every process.

    `decode` knows the words that this tokenizer has seen lately.
    """

    def __init__(self) -> None:
        self._seen: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        return [self.id_of(word.encode()) for word in words(text)]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self._seen.get(i, b"\xff") for i in token_ids).decode("utf-8", "replace")

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of a prompt that is given as ids. Raises `PromptError`."""
        if not token_ids or not all(type(i) is int and 0 <= i < MOST_ID for i in token_ids):
            raise PromptError(f"the prompt has no token ids, or some beyond 0 to {MOST_ID - 1}", "tokens")
        return self.decode(token_ids)

    def id_of(self, piece: bytes) -> int:
        token_id = int.from_bytes(hashlib.blake2b(piece, digest_size=6).digest(), "big")
        self._seen[token_id] = piece
        if len(self._seen) > MOST_WORDS:
            del self._seen[next(iter(self._seen))]
        return token_id


def made_up_logprob(tokenizer: WordTokenizer, piece: bytes, alternatives: int) -> TokenLogprob:
    """The token itself is as likely as not, each further alternative half as likely as the one before."""
    others = (f" other{number}".encode() for number in range(1, alternatives))
    ranked = [(tokenizer.id_of(each), each) for each in (piece, *others)]
    top = [
        (i, each.decode(errors="replace"), -math.log(2) * rank) for rank, (i, each) in enumerate(ranked, 1)
    ]
    pieces = tuple(each for _, each in ranked[:alternatives])
    return TokenLogprob(*top[0], tuple(top[:alternatives]), piece, pieces)


def words(text: str) -> list[str]:
    """The text cut before each word; joined, it is the text again."""
    return _WORD.findall(text)


def render_chat(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    native_tools: bool = False,
) -> str:
    """The conversation in ChatML, ready for the assistant's turn. Raises `PromptError`.

    Tools stand in the first system message, one a line. `enable_thinking` begins the turn with
    reasoning where it is true, and with none where it is false.
    """
    variables = template_variables(options or {})
    turns = [template_message(message, native_tools) for message in messages]
    if tools:
        system = turns.pop(0)["content"] if turns and turns[0].get("role") == "system" else ""
        lines = [system, "# Tools", *(json.dumps(tool, ensure_ascii=False) for tool in tools)]
        turns.insert(0, {"role": "system", "content": "\n".join(line for line in lines if line)})
    text = "".join(f"<|im_start|>{m.get('role', '')}\n{_turn(m)}<|im_end|>\n" for m in turns)
    if variables.get("continue_final_message"):
        return text.removesuffix("<|im_end|>\n")
    if not variables.get("add_generation_prompt", True):
        return text
    text += "<|im_start|>assistant\n"
    if variables.get("enable_thinking") is None:
        return text
    return text + ("<think>\n" if variables["enable_thinking"] else "<think>\n\n</think>\n\n")


def _turn(message: Mapping[str, Any]) -> str:
    thought = message.get("reasoning_content")
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "".join(
        [
            f"<think>\n{thought}\n</think>\n\n" if thought else "",
            message["content"],
            *(f"\n<tool_call>\n{call}\n</tool_call>" for call in calls),
        ]
    )


def with_pictures_told(messages: Sequence[dict[str, Any]], images: Sequence[str]) -> Sequence[dict[str, Any]]:
    """Pictures, which are data URLs, as words about them: what each is, its length and its SHA-256.

    Raises `PromptError` where they are not as many as the messages have places for.
    """
    places = sum(part.get("type") == "image" for m in messages for part in _parts(m))
    if places != len(images):
        raise PromptError(f"{len(images)} pictures came, and there are places for {places}", "template")
    if not images:
        return messages
    told = iter([{"type": "text", "text": _told(image)} for image in images])
    return [
        {**m, "content": [next(told) if part.get("type") == "image" else part for part in parts]}
        if (parts := _parts(m))
        else m
        for m in messages
    ]


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _told(image: str) -> str:
    head, _, data = image.partition(",")
    found = base64.b64decode(data)
    kind = head.removeprefix("data:").removesuffix(";base64")
    return f" [{kind} of {len(found)} bytes, sha256 {hashlib.sha256(found).hexdigest()}] "


def content_text(message: dict[str, Any]) -> str:
    """The text of a message whose content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def chat_script(messages: Sequence[dict[str, Any]]) -> Script:
    """The script in the last message, where that is the user's or a tool's."""
    if not messages or messages[-1].get("role") not in ("user", "tool"):
        return Script()
    return read_script(content_text(messages[-1]))


def read_script(text: str) -> Script:
    """The script in a text; an empty one where the text has none. Raises `PromptError`."""
    if not text.startswith(PREFIX):
        return Script()
    try:
        script = msgspec.json.decode(text[len(PREFIX) :], type=Script)
        for piece in script.bytes or ():
            bytes.fromhex(piece)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PromptError(f"the script behind '{PREFIX}' cannot be used: {error}", "template") from error
    return script


def answer_of(script: Script, prompt: str, ignore_eos: bool) -> Answer:
    """The tokens that the script asks for, or words drawn from the prompt's hash."""
    if not script.says_something:
        answer = Answer(_default_words(prompt), script.repeat)
    else:
        echo = words(prompt) if script.echo_prompt else []
        texts = [piece.encode() for piece in (*echo, *(script.tokens or ()))]
        answer = Answer([*texts, *(bytes.fromhex(piece) for piece in script.bytes or ())], script.repeat)
    if ignore_eos and len(answer):
        return Answer(answer.pieces, 1 << 40)
    return answer


def _default_words(prompt: str) -> list[bytes]:
    stream = b"".join(
        hashlib.blake2b(f"{part}:{prompt}".encode()).digest() for part in range(DEFAULT_TOKENS // 64)
    )
    chosen = [_VOCABULARY[byte % len(_VOCABULARY)] for byte in stream[:DEFAULT_TOKENS]]
    return [word.encode() if i == 0 else f" {word}".encode() for i, word in enumerate(chosen)]
