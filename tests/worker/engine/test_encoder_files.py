"""What an encoder's files say: its task, how long texts may be, whether vectors may be cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.model_folder import ModelFolder
from protocol.values import Task
from worker.engine.encoder_files import is_matryoshka, longest_text, pooling_of, task_of


def folder(path: Path, config: dict[str, Any], **files: Any) -> ModelFolder:
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return ModelFolder(path, config, ())


@pytest.mark.parametrize(
    ("names", "task"),
    [
        (["BertModel"], Task.EMBED),
        (["XLMRobertaForSequenceClassification"], Task.RERANK),
        (None, Task.EMBED),
    ],
)
def test_a_classifier_ranks(names: list[str] | None, task: Task):
    assert task_of({"architectures": names}) is task


@pytest.mark.parametrize(
    ("config", "files", "wanted", "longest"),
    [
        ({"max_position_embeddings": 512}, {}, None, 512),
        ({"max_position_embeddings": 512}, {}, 100, 100),
        ({"max_position_embeddings": 512}, {"sentence_bert_config": {"max_seq_length": 256}}, None, 256),
        ({"max_position_embeddings": 512}, {"tokenizer_config": {"model_max_length": 10**30}}, None, 512),
        ({"max_position_embeddings": 514, "model_type": "xlm-roberta", "pad_token_id": 1}, {}, None, 512),
        ({}, {}, None, None),
    ],
)
def test_a_text_is_as_long_as_the_least_that_is_said(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], wanted: int | None, longest: int | None
):
    assert longest_text(folder(tmp_path, config, **files), wanted) == longest


@pytest.mark.parametrize(
    ("config", "cuts"),
    [
        ({"model_type": "bert"}, False),
        ({"model_type": "qwen3"}, True),
        ({"model_type": "bert", "matryoshka_dimensions": [64, 128]}, True),
        ({"model_type": "qwen3", "is_matryoshka": False}, False),
    ],
)
def test_vectors_are_cut_where_the_model_was_made_for_it(config: dict[str, Any], cuts: bool):
    assert is_matryoshka(config) is cuts


def test_pooling_is_read_where_it_is_said(tmp_path: Path):
    assert pooling_of(folder(tmp_path, {})) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    assert pooling_of(folder(tmp_path, {})) == {"pooling_mode_cls_token": True}
    (tmp_path / "1_Pooling" / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        pooling_of(folder(tmp_path, {}))
