"""A LoRA adapter for a model, trained in a moment by mlx-lm's own function."""

import contextlib
import io
from argparse import Namespace

from worker.engine.blas import prepare_blas

prepare_blas()

from mlx_lm.lora import CONFIG_DEFAULTS, train_model  # noqa: E402 (after OpenBLAS)
from mlx_lm.tuner.datasets import ChatDataset  # noqa: E402
from mlx_lm.utils import load  # noqa: E402


def train(model_folder, adapter_folder, question, answer, iters=20, **changes):
    """Teach the model to give that answer to that question."""
    model, tokenizer = load(str(model_folder))
    lesson = {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    lessons = ChatDataset([lesson], tokenizer, mask_prompt=True)
    settings = {
        "adapter_path": str(adapter_folder),
        "batch_size": 1,
        "iters": iters,
        "learning_rate": 1e-2,
        "lora_parameters": {"rank": 4, "scale": 10.0, "dropout": 0.5},
        "model": str(model_folder),
        "num_layers": 1,
        "val_batches": 1,
        **changes,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        train_model(Namespace(**{**CONFIG_DEFAULTS, **settings}), model, lessons, lessons)
    return adapter_folder
