"""From a folder, or the name of the embedded model, to a model that can be used, piece by piece."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker.engine.blas import prepare_blas
from worker.engine.detokenizer import ByteDetokenizer, Detokenizer, TokenTable, WindowDetokenizer, token_table
from worker.engine.documents import read_json, template_file
from worker.engine.embedded import EMBEDDED_BYTES, embedded_folder, ensure_embedded
from worker.engine.output import EngineFacts, StopRequested
from worker.engine.prompt import PromptReader
from worker.engine.spelling import Spell, speller
from worker.engine.syntax import configured, of_tokenizer, special_marks
from worker.engine.trial import TemplateTrial
from worker.engine.weights import ModelFolder, WeightLoader, open_folder

logger = logging.getLogger(__name__)

_POLL_S = 0.05


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer. `network` belongs to the engine thread."""

    network: Any
    tokenizer: Any
    reader: PromptReader
    make_detokenizer: Callable[[], Detokenizer]
    spell: Spell
    facts: EngineFacts
    special: tuple[int, ...]
    """Tokens that XTC never excludes: those that end an answer or a line."""


class Loader:
    """Loads one model once. Progress may be read, and a stop requested, from any thread."""

    def __init__(
        self,
        folder: Path | None,
        models: Path,
        max_model_len: int | None,
        *,
        tool_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """`folder` None stands for the embedded model, kept beneath `models`."""
        self._parsers = (tool_parser, reasoning_parser)
        self._folder = folder
        self._models = models
        self._max_model_len = max_model_len
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
        limit = context_limit(folder.context, self._max_model_len)
        return size, EngineFacts(limit, folder.fingerprint())

    def pieces(self) -> Iterator[None]:
        """Do one piece of the work with each `next`, all on the thread that will use the model.

        Raises `StopRequested` between two pieces, `ValueError` for a folder that cannot be used,
        and `EmbeddedModelError`.
        """
        self._note(0.0, "starting MLX")
        yield
        prepare_blas()
        self._note(0.05, "looking for the model")
        yield
        path = self._folder
        if path is None:
            path = ensure_embedded(self._models, lambda done, doing: self._note(0.05 + done / 2, doing))
        with self._other_cure(path):
            yield from self._read(path)

    def _read(self, path: Path) -> Iterator[None]:
        folder = open_folder(path)
        limit = context_limit(folder.context, self._max_model_len)
        self._note(0.6, "reading the tokenizer")
        yield
        weights = WeightLoader(folder)
        weights.build()
        tokenizer = _load_tokenizer(folder)
        syntax = configured(of_tokenizer(tokenizer), *self._parsers)
        with self._trial(folder, tokenizer) as trial_ended:
            for share in weights.pieces():
                trial_ended()
                self._note(0.65 + 0.3 * share, "reading the weights")
                yield
            while not trial_ended():
                self._note(0.95, "trying the chat template")
                yield
                time.sleep(_POLL_S)
        eos = tuple(sorted(tokenizer.eos_token_ids))
        shown = special_marks(syntax, list(tokenizer.get_added_vocab()))
        path = folder.path / "tokenizer.json"
        table = token_table(read_json(path), shown) if path.exists() else None
        self.result = LoadedModel(
            network=weights.model,
            tokenizer=tokenizer,
            reader=PromptReader(tokenizer, folder.vocabulary or len(tokenizer)),
            make_detokenizer=_detokenizer_maker(table, tokenizer, shown),
            spell=speller(table, tokenizer),
            facts=EngineFacts(limit, folder.fingerprint(), eos, syntax),
            special=(*eos, *tokenizer.encode("\n", add_special_tokens=False)),
        )

    @contextmanager
    def _other_cure(self, path: Path) -> Iterator[None]:
        """What its own files do not tell is only found when the embedded model is read."""
        try:
            yield
        except ValueError as error:
            if self._folder is None:
                raise ValueError(f"{error}; or remove {path}, and it is made anew") from error
            raise

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


def context_limit(made_for: int | None, wanted: int | None) -> int | None:
    """The context to serve. Raises `ValueError` when more is wanted than the model was made for."""
    if made_for is not None and wanted is not None and wanted > made_for:
        raise ValueError(f"max_model_len is {wanted}, but the model was made for {made_for} tokens; lower it")
    return made_for if wanted is None else wanted


def _load_tokenizer(folder: ModelFolder) -> Any:
    from mlx_lm.utils import load_config, load_tokenizer  # noqa: PLC0415 (OpenBLAS comes first)

    try:
        return load_tokenizer(folder.path, eos_token_ids=load_config(folder.path).get("eos_token_id"))
    except Exception as error:  # whatever the tokenizer's library makes of a damaged file
        raise ValueError(
            f"the tokenizer in {folder.path} cannot be loaded: {error}; copy tokenizer.json and"
            " tokenizer_config.json again"
        ) from error


def _detokenizer_maker(
    table: TokenTable | None, tokenizer: Any, shown: Collection[str]
) -> Callable[[], Detokenizer]:
    if table is not None:
        return lambda: ByteDetokenizer(table)
    return lambda: WindowDetokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=not shown)))
