"""Whether the workers of a machine fit into its memory, and the arithmetic in words. Pure.

What has to fit of a worker's key-value cache is what was asked for: `kv_tokens`, or `max_num_seqs` times
`max_model_len`. Where neither is set, one request of the length that the model was made for; how many
more run beside it, the worker decides by the memory that it sees (it takes nothing new at 85 %).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.kv_sizes import KvShape

GIB = 1 << 30
_RESERVE = 8 * GIB
_RESERVED_SHARE = 0.12
_LARGEST_RESERVE = 0.25
PROCESS_BYTES = 150_000_000
"""Of a worker that has MLX loaded, without a model."""
_PIECE = 2048
"""Tokens of a prompt that are read at once, at most."""
_PADDING = 512
"""Tokens by which mlx-lm's cache of a batch was seen to be longer than its longest sequence needs."""
_STEP, _SHORTEST = 256, 2048
"""Lengths that are advised: multiples of the first, not less than the second."""
ASSUMED_TOKENS = 8192
"""Of a request, where neither the model nor the configuration names a length."""


@dataclass(frozen=True)
class Machine:
    """What a machine has (bytes). None: it does not tell, or has no such thing."""

    name: str
    memory: int
    recommended: int | None = None
    """What Metal recommends as the most that a GPU should hold."""
    wired_limit: int | None = None
    """What its administrator allows the GPU to hold: `iogpu.wired_limit_mb`."""

    @property
    def reserve(self) -> int:
        """For the system and whatever else runs: 12 %, at least 8 GiB, at most a quarter."""
        wanted = max(_RESERVE, int(_RESERVED_SHARE * self.memory))
        return min(wanted, int(_LARGEST_RESERVE * self.memory))

    @property
    def ceiling(self) -> int:
        """For workers together."""
        device = self.wired_limit or self.recommended
        rest = self.memory - self.reserve
        return rest if device is None else min(rest, device)

    @property
    def words(self) -> str:
        parts = [f"{size(self.memory)} of memory, {size(self.reserve)} of it reserved for the system"]
        if self.wired_limit:
            parts.append(f"iogpu.wired_limit_mb allows the GPU {size(self.wired_limit)}")
        elif self.recommended:
            parts.append(f"Metal recommends {size(self.recommended)} for the GPU")
        return f"{self.name}: {'; '.join(parts)}: {size(self.ceiling)} for workers"


@dataclass(frozen=True)
class ModelSizes:
    """Of a model folder."""

    weights: int
    shape: KvShape | None
    """None: its configuration does not tell."""
    context: int | None = None
    """Tokens that it was made for."""
    step_bytes: int = 0
    """Of one token that is being read: what passes from layer to layer."""
    logits_bytes: int = 0
    """Of one sequence: a number for each token of the vocabulary."""
    draft: ModelSizes | None = None


@dataclass(frozen=True)
class Asked:
    """What a worker's entry says of its memory."""

    worker_id: str
    max_num_seqs: int
    max_model_len: int | None = None
    kv_tokens: int | None = None
    prefix_cache: int = 0
    on_demand: bool = False
    batched: bool = False
    """Sequences are kept in one cache, padded to the longest."""
    stated: int | None = None
    """`memory_mb`, in bytes: weights and prefix cache."""


@dataclass(frozen=True)
class Need:
    """Of one worker (bytes)."""

    asked: Asked
    weights: int = 0
    kv: int = 0
    prefix_cache: int = 0
    working: int = 0
    process: int = 0
    sequences: int = 0
    tokens: int = 0
    """Of each of those sequences."""
    full_kv: int = 0
    """With one request as long as may be and all other places taken: a batch is padded to its longest."""
    shape: KvShape | None = None
    unknown: str = ""
    """Why it, or a part of it, cannot be told."""

    @property
    def fixed(self) -> int:
        return self.weights + self.prefix_cache + self.working + self.process

    @property
    def total(self) -> int:
        return self.fixed + self.kv


@dataclass(frozen=True)
class Fit:
    """The workers of a machine against what it has."""

    machine: Machine
    needs: tuple[Need, ...]

    @property
    def total(self) -> int:
        """Workers on demand take turns: the largest of them counts."""
        always = sum(need.total for need in self.needs if not need.asked.on_demand)
        return always + max((need.total for need in self.needs if need.asked.on_demand), default=0)

    @property
    def fits(self) -> bool:
        return self.total <= self.machine.ceiling

    def room_for_kv(self, need: Need) -> int:
        """Bytes that the others leave to that worker's key-value cache."""
        return self.machine.ceiling - self.total + need.kv

    def lines(self) -> list[str]:
        """The arithmetic."""
        found = [self.machine.words]
        for need in self.needs:
            found += _need_lines(need)
        turns = "; on-demand workers take turns" if any(n.asked.on_demand for n in self.needs) else ""
        together = f"{size(self.total)} of {size(self.machine.ceiling)}"
        over = "" if self.fits else f", {size(self.total - self.machine.ceiling)} too much"
        return [*found, f"together: {together}{over}{turns}"]

    def advice(self, worker_id: str) -> str:
        """What to do about that worker; empty where nothing is to be said."""
        need = next(need for need in self.needs if need.asked.worker_id == worker_id)
        room = self.room_for_kv(need)
        if self.fits and (need.shape is None or need.full_kv <= room):
            return ""
        ways = _smaller(need, room)
        if not self.fits:
            if ways:
                return f"it fits with {ways}"
            return "take a smaller or more quantized model, or remove another worker of this machine"
        full = (
            f"with all {need.asked.max_num_seqs} places taken, by long requests, its cache would need"
            f" {size(need.full_kv)}, and {size(room)} are left; it takes nothing new before that"
        )
        return f"{full}. For places that are sure: {ways}" if ways else full


def _smaller(need: Need, room: int) -> str:
    """Options with which the cache stays within so many bytes."""
    if need.shape is None or not need.tokens:
        return ""
    ways: list[str] = []
    padding = _PADDING if need.asked.batched else 0
    places = room // max(1, need.shape.bytes_for(need.tokens + padding))
    if places >= 1 and need.asked.max_num_seqs > 1:
        ways.append(f"--max-model-len {need.tokens} --max-num-seqs {min(places, need.asked.max_num_seqs)}")
    for sequences in dict.fromkeys((need.asked.max_num_seqs, 1)):
        longest = need.shape.longest_in(room // sequences, need.tokens + padding) - padding
        if longest >= _SHORTEST and not (sequences == 1 and ways):
            ways.append(f"--max-model-len {longest // _STEP * _STEP} --max-num-seqs {sequences}")
    return " or ".join(ways)


def need_of(asked: Asked, model: ModelSizes | None, why: str = "") -> Need:
    """`model` None: nothing is known of it, because of `why`; only what the configuration states counts."""
    if model is None:
        return Need(asked, weights=asked.stated or 0, unknown=why)
    weights, prefix_cache = model.weights, asked.prefix_cache
    if model.draft is not None:
        weights += model.draft.weights
    if asked.stated is not None:
        weights, prefix_cache = max(0, asked.stated - prefix_cache), min(prefix_cache, asked.stated)
    lengths = [length for length in (model.context, asked.max_model_len) if length is not None]
    longest = min(lengths, default=ASSUMED_TOKENS)
    if asked.kv_tokens is not None:
        longest = min(longest, asked.kv_tokens)
    places, padding = asked.max_num_seqs, _PADDING if asked.batched else 0
    sequences = 1 if asked.max_model_len is None and asked.kv_tokens is None else places
    working = 2 * _PIECE * model.step_bytes + 2 * places * model.logits_bytes
    unknown = "" if model.shape is not None else "its config.json does not tell the sizes of its cache"
    return Need(
        asked,
        weights=weights,
        kv=_kv(model, sequences, longest, asked.kv_tokens, padding),
        prefix_cache=prefix_cache,
        working=working,
        process=PROCESS_BYTES,
        sequences=sequences,
        tokens=longest,
        full_kv=_kv(model, places, longest, None, padding),
        shape=model.shape,
        unknown=unknown,
    )


def _kv(model: ModelSizes, sequences: int, longest: int, bound: int | None, padding: int) -> int:
    """Of so many sequences of that length, in all at most `bound` tokens."""
    whole, rest = divmod(min(sequences * longest, bound or sequences * longest), longest)
    lengths = [longest] * whole + [rest] * (rest > 0)
    shapes = [each.shape for each in (model, model.draft) if each is not None and each.shape is not None]
    return sum(shape.bytes_for(length + padding) for shape in shapes for length in lengths)


def _need_lines(need: Need) -> list[str]:
    asked = need.asked
    if not need.fixed:
        return [f"{asked.worker_id}: counted as nothing: {need.unknown}"]
    tokens = f"{need.sequences} x {need.tokens} tokens"
    if asked.kv_tokens is not None and asked.kv_tokens < need.sequences * need.tokens:
        tokens = f"{asked.kv_tokens} tokens"
    parts = [
        (need.weights, "weights"),
        (need.kv, f"KV cache of {tokens}"),
        (need.prefix_cache, "prefix cache"),
        (need.working, "for reading prompts"),
        (need.process, "process"),
    ]
    words = " + ".join(f"{size(part)} {name}" for part, name in parts if part)
    kind = " (on demand)" if asked.on_demand else ""
    found = [f"{asked.worker_id}{kind}: {size(need.total)} = {words}"]
    if need.unknown:
        found.append(f"  {need.unknown}")
    return found + _shape_lines(need)


def _shape_lines(need: Need) -> list[str]:
    if need.shape is None:
        return []
    found = [
        f"  a token takes {layers.count} layers x {layers.words} = {size(layers.count * layers.token_bytes)}"
        + ("" if layers.window is None else f", for the last {layers.window} tokens")
        for layers in need.shape.layers
    ]
    if need.shape.state_bytes:
        found.append(f"  and each sequence {size(need.shape.state_bytes)} of recurrent state")
    return found


def size(count: int) -> str:
    """Bytes in words, decimal as disks and downloads have it."""
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            value = count / 10**power
            return f"{value:.1f} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{count} B"
