"""Loading a model that sees, by mlx-vlm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from protocol.model_folder import ModelFolder
from worker.engine.loading import Loader
from worker.engine.prompt import PromptReader
from worker.engine.vision_prompt import Inputs, PictureReader, Place, Processor
from worker.engine.weights import WeightLoader

if TYPE_CHECKING:
    from worker.engine.vision_encoder import Encoded
    from worker.engine.vision_network import VisionNetwork

SEEING = frozenset({"qwen2_vl", "qwen2_5_vl"})
"""Kinds of models, as config.json names them, that were tried with pictures: docs/models.md."""
_TRIAL_PIXELS = 64
_NEAR = 0.5
"""Of log-probabilities: more than numbers of 16 bits differ when nothing else does."""


class VisionWeights(WeightLoader):
    """Those of a model that mlx-vlm knows."""

    library = "mlx-vlm"

    def read(self) -> Any:
        from mlx_vlm.utils import load_model  # noqa: PLC0415 (OpenBLAS comes first)

        return load_model(self.folder.path, lazy=True)


class VisionLoader(Loader):
    """Loads a model with its eyes: the encoder of pictures, and the processor before it."""

    weights = VisionWeights

    def __init__(
        self, *arguments: Any, encoder_bytes: int, forget: Callable[[], object], **options: Any
    ) -> None:
        """As `Loader`. `encoder_bytes`: so much of what the encoder made is kept. `forget`: as `Places` of
        `worker.engine.vision_prompt` has it."""
        super().__init__(*arguments, **options)
        self._encoder_bytes = encoder_bytes
        self._forget = forget

    def _made_ready(
        self, folder: ModelFolder, model: Any, tokenizer: Any, vocabulary: int
    ) -> tuple[Any, PromptReader]:
        """They are tried on a picture, which tells whether the model can be batched."""
        from PIL import Image  # noqa: PLC0415 (a requirement of models that see)

        from worker.engine.vision_encoder import Encoder  # noqa: PLC0415 (OpenBLAS came first)
        from worker.engine.vision_network import VisionNetwork  # noqa: PLC0415

        self._note(0.95, "trying the eyes")
        token = getattr(model.config, "image_token_id", None) or getattr(
            model.config, "image_token_index", None
        )
        if token is None or not hasattr(model, "language_model"):
            where = folder.path / "config.json"
            raise ValueError(f"{where} is not of a model that sees: it has no token for pictures")
        processor = Processor(_load_processor(folder), tokenizer, token)
        encoder = Encoder(model, token, self._encoder_bytes)
        inputs = processor.inputs(Image.new("RGB", (_TRIAL_PIXELS, _TRIAL_PIXELS)))
        trial = encoder.encode(inputs)
        network = VisionNetwork(model, vocabulary, encoder, counts_in_three=trial.steps is not None)
        if folder.config["model_type"] not in SEEING:
            _compare(network, trial, inputs, vocabulary)
        return network, PictureReader(tokenizer, vocabulary, processor, encoder.has, self._forget)


def _load_processor(folder: ModelFolder) -> Any:
    from mlx_vlm.utils import load_processor  # noqa: PLC0415 (OpenBLAS came first)

    try:
        return load_processor(folder.path, add_detokenizer=False)
    except Exception as error:  # whatever its library makes of a damaged file
        raise ValueError(
            f"the processor of pictures in {folder.path} cannot be loaded: {error};"
            " copy preprocessor_config.json again"
        ) from error


def _compare(network: VisionNetwork, trial: Encoded, inputs: Inputs, vocabulary: int) -> None:
    """Raises `ValueError` where a picture as ids is another thing to the model than in its own way."""
    import mlx.core as mx  # noqa: PLC0415 (OpenBLAS came first)

    own = network.own_logits(inputs)
    ids: list[int] = inputs["input_ids"][0].tolist()
    at = [i for i, token in enumerate(ids) if token == network.encoder.picture_token]
    for number, i in enumerate(at):
        ids[i] = vocabulary + number
    network.show(Place((), vocabulary, len(at)), trial)
    ours = network(mx.array([ids]), network.make_cache())[0, -1]
    network.keep(())
    own, ours = (each - mx.logsumexp(each) for each in (own, ours))
    apart = float(mx.abs(own - ours)[mx.argsort(-own)[:10]].max().item())  # type: ignore[arg-type]
    if not apart < _NEAR:
        raise ValueError(
            f"models of the type {network.model_type!r} look at pictures in a way that this version cannot"
            f" batch (its log-probabilities are {apart:.1f} away from the model's own); take another model"
            " that sees"
        )
