"""From a folder, or the name of the embedded model, to a model that can be used, piece by piece."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.model_context import served_context
from protocol.model_documents import older_template, read_json, template_file
from protocol.model_folder import ModelFolder, open_folder
from protocol.models import EMBEDDED_BYTES, embedded_folder
from worker.engine.adapter import open_adapter
from worker.engine.blas import prepare_blas
from worker.engine.detokenizer import ByteDetokenizer, Detokenizer, TokenTable, WindowDetokenizer, token_table
from worker.engine.embedded import ensure_embedded
from worker.engine.output import EngineFacts, StopRequested
from worker.engine.prompt import PromptReader
from worker.engine.spelling import Spell, speller
from worker.engine.syntax import configured, of_tokenizer, special_marks
from worker.engine.trial import TemplateTrial
from worker.engine.weights import WeightLoader

if TYPE_CHECKING:
    from worker.engine.structured import Grammars

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_BUFFER_BYTES = 1 << 30
"""Enough for the arrays of a step to be used again in the next."""


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer. `network` belongs to the engine thread."""

    network: Any
    tokenizer: Any
    reader: PromptReader
    make_detokenizer: Callable[[], Detokenizer]
    spell: Spell
    grammars: Grammars
    """The preparation thread's."""
    facts: EngineFacts
    special: tuple[int, ...]
    """Tokens that XTC never excludes: those that end an answer or a line."""
    version: str
    """Another one after any change of its files: what was computed under the same may be used again."""
    draft: Any = None
    """The network of a smaller model of the same tokens; the engine thread's too."""
    vocabulary: int | None = None
    """So many token ids it and the draft know."""


class Loader:
    """Loads one model once. Progress may be read, and a stop requested, from any thread."""

    weights: type[WeightLoader] = WeightLoader

    def __init__(
        self,
        folder: Path | None,
        models: Path,
        max_model_len: int | None,
        *,
        adapter: Path | None = None,
        draft: Path | None = None,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """`folder` None stands for the embedded model, kept beneath `models`."""
        self._parsers = (tool_parser, reasoning_parser)
        self._folder = folder
        self._models = models
        self._max_model_len = max_model_len
        self._adapter = adapter
        self._draft = draft
        self._stop = threading.Event()
        self.progress: tuple[float, str] = (0.0, "not begun")
        self.result: LoadedModel | None = None

    def request_stop(self) -> None:
        self._stop.set()

    def inspect(self) -> tuple[int, EngineFacts]:
        """Bytes of the weights, and what is known before they are read. Raises `ValueError`.

        An embedded model that is missing or damaged is made when it is loaded.
        """
        try:
            folder = open_folder(self._folder or embedded_folder(self._models))
        except ValueError:
            if self._folder is None:
                return EMBEDDED_BYTES, EngineFacts()
            raise
        size = sum(shard.size for shard in folder.weights)
        fingerprint = folder.fingerprint()
        if self._adapter is not None:
            adapter = open_adapter(self._adapter)
            size, fingerprint = size + adapter.size, adapter.fingerprint(fingerprint)
        if self._draft is not None:
            size += sum(shard.size for shard in open_folder(self._draft).weights)
        return size, EngineFacts(served_context(folder.context, self._max_model_len), fingerprint)

    def pieces(self) -> Iterator[None]:
        """Do one piece of the work with each `next`, all on the thread that will use the model.

        Raises `StopRequested` between two pieces, `ValueError` for a folder that cannot be used,
        and `EmbeddedModelError`.
        """
        self._note(0.0, "starting MLX")
        yield
        prepare_blas()
        _bound_buffers()
        self._note(0.05, "looking for the model")
        yield
        path = self._folder
        if path is None:
            path = ensure_embedded(self._models, lambda done, doing: self._note(0.05 + done / 2, doing))
        with self._other_cure(path):
            yield from self._read(path)

    def _read(self, path: Path) -> Iterator[None]:
        from worker.engine.structured import for_tokenizer  # noqa: PLC0415 (a requirement of the worker alone)

        folder = open_folder(path)
        adapter = None if self._adapter is None else open_adapter(self._adapter)
        limit = self._context(folder)
        self._note(0.6, "reading the tokenizer")
        yield
        weights = self.weights(folder)
        weights.build()
        if adapter is not None:
            adapter.apply(weights.model)
        tokenizer = _load_tokenizer(folder)
        syntax = configured(of_tokenizer(tokenizer), *self._parsers)
        draft = None if self._draft is None else _draft_weights(self._draft, tokenizer)
        with self._trial(folder, tokenizer) as trial_ended:
            for share in weights.pieces():
                trial_ended()
                self._note(0.65 + 0.25 * share, "reading the weights")
                yield
            for share in draft.pieces() if draft is not None else ():
                trial_ended()
                self._note(0.9 + 0.05 * share, "reading the draft model")
                yield
            while not trial_ended():
                self._note(0.95, "trying the chat template")
                yield
                time.sleep(_POLL_S)
        vocabulary = folder.vocabulary or len(tokenizer)
        if draft is not None:
            vocabulary = min(vocabulary, draft.folder.vocabulary or vocabulary)
        eos = tuple(sorted(tokenizer.eos_token_ids))
        shown = special_marks(syntax, list(tokenizer.get_added_vocab()))
        path = folder.path / "tokenizer.json"
        table = token_table(read_json(path), shown) if path.exists() else None
        fingerprint = folder.fingerprint()
        if adapter is not None:
            fingerprint = adapter.fingerprint(fingerprint)
        folders = [folder] if draft is None else [folder, draft.folder]
        network, reader = self._made_ready(folder, weights.model, tokenizer, vocabulary)
        self.result = LoadedModel(
            network=network,
            tokenizer=tokenizer,
            reader=reader,
            make_detokenizer=_detokenizer_maker(table, tokenizer, shown),
            spell=speller(table, tokenizer),
            grammars=for_tokenizer(tokenizer, vocabulary, eos),
            facts=EngineFacts(limit, fingerprint, eos, syntax),
            special=(*eos, *tokenizer.encode("\n", add_special_tokens=False)),
            version=" ".join([fingerprint, *(each.stamp() for each in folders)]),
            draft=None if draft is None else draft.model,
            vocabulary=vocabulary,
        )

    def _made_ready(
        self, _folder: ModelFolder, model: Any, tokenizer: Any, vocabulary: int
    ) -> tuple[Any, PromptReader]:
        """What is stepped, and what reads prompts for it."""
        return model, PromptReader(tokenizer, vocabulary)

    @contextmanager
    def _other_cure(self, path: Path) -> Iterator[None]:
        """What its own files do not tell is only found when the embedded model is read."""
        try:
            yield
        except ValueError as error:
            if self._folder is None and str(path) in str(error):  # and no matter of adapter or draft
                raise ValueError(f"{error}; or remove {path}, and it is made anew") from error
            raise

    def _context(self, folder: ModelFolder) -> int | None:
        made_for, wanted = folder.context, self._max_model_len
        if made_for is None and wanted is None:
            what = "%s names no context length, so prompts of any length are taken; set max_model_len"
            logger.warning(what, folder.path / "config.json")
        elif made_for is not None and wanted is not None and wanted > made_for:
            what = "max_model_len is %d, but the model was made for %d tokens; %d are served"
            logger.warning(what, wanted, made_for, made_for)
        return served_context(made_for, wanted)

    @contextmanager
    def _trial(self, folder: ModelFolder, tokenizer: Any) -> Iterator[Callable[[], bool]]:
        """The trial of the folder's chat template, as the question whether it is over."""
        template = getattr(tokenizer, "chat_template", None)
        if not tokenizer.has_chat_template:
            logger.warning("%s: no chat template is found; chat requests are refused", folder.path)
        # The embedded model's is known. One that is no text is a program of mlx-lm's or its tokenizer's.
        if self._folder is None or not isinstance(template, str):
            yield lambda: True
            return
        variables = dict(tokenizer.special_tokens_map) | {"enable_thinking": bool(tokenizer.has_thinking)}
        trial = TemplateTrial(template, variables, template_file(folder.path))
        try:
            yield trial.look
        finally:
            trial.close()

    def _note(self, done: float, doing: str) -> None:
        self.progress = (done, doing)
        if self._stop.is_set():
            raise StopRequested(f"asked to stop while {doing}")


def _bound_buffers() -> None:
    """MLX keeps the buffers of freed arrays, on a Mac up to all the memory it may have."""
    import mlx.core as mx  # noqa: PLC0415 (OpenBLAS comes first)

    mx.set_cache_limit(min(_BUFFER_BYTES, mx.set_cache_limit(_BUFFER_BYTES)))


def _load_tokenizer(folder: ModelFolder) -> Any:
    from mlx_lm.utils import load_config, load_tokenizer  # noqa: PLC0415 (OpenBLAS comes first)

    try:
        ends = load_config(folder.path).get("eos_token_id")
        return load_tokenizer(folder.path, older_template(folder.path), eos_token_ids=ends)
    except Exception as error:  # whatever the tokenizer's library makes of a damaged file
        raise ValueError(
            f"the tokenizer in {folder.path} cannot be loaded: {error}; copy tokenizer.json and"
            " tokenizer_config.json again"
        ) from error


def _draft_weights(path: Path, tokenizer: Any) -> WeightLoader:
    """Those of a model that speaks in the same tokens, not yet read. Raises `ValueError`."""
    folder = open_folder(path)
    theirs, ours = _load_tokenizer(folder).get_vocab(), tokenizer.get_vocab()
    if theirs != ours:
        raise ValueError(
            f"the draft model in {path} has other tokens than the model ({len(theirs)} and {len(ours)},"
            f" {len(theirs.items() & ours.items())} of them alike); take a smaller model of the same family"
        )
    weights = WeightLoader(folder)
    weights.build()
    return weights


def _detokenizer_maker(
    table: TokenTable | None, tokenizer: Any, shown: Collection[str]
) -> Callable[[], Detokenizer]:
    if table is not None:
        return lambda: ByteDetokenizer(table)
    return lambda: WindowDetokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=not shown)))
