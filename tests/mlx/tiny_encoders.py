"""Folders with encoders of two layers and random weights, and a tokenizer that spells: nothing is fetched."""

import json
import string

from worker.engine.blas import prepare_blas

HIDDEN = 32
LONGEST = 64
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_SIGNS = string.ascii_lowercase + string.digits + ".,?!-"
VOCABULARY = len(_SPECIAL) + 2 * len(_SIGNS)
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 0,
}
BERT = {"model_type": "bert", "architectures": ["BertModel"], "type_vocab_size": 2, **_COMMON}
XLM_ROBERTA = {
    **_COMMON,
    "model_type": "xlm-roberta",
    "architectures": ["XLMRobertaModel"],
    "type_vocab_size": 1,
}
QWEN = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    **_COMMON,
}
RANKER = {**BERT, "architectures": ["BertForSequenceClassification"], "num_labels": 1}
MEAN = {"word_embedding_dimension": HIDDEN, "pooling_mode_mean_tokens": True}
CLS = {"word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def encoder_folder(target, config, pooling=None, seed=1):
    """Write it to `target`. `pooling`: what sentence-transformers would say of it."""
    target.mkdir()
    (target / "config.json").write_text(json.dumps(config))
    _write_tokenizer(target, kinds=config["model_type"] == "bert")
    if pooling is not None:
        (target / "1_Pooling").mkdir()
        (target / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    _write_weights(target, config, seed)
    return target


def _write_tokenizer(target, *, kinds):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors  # noqa: PLC0415

    pieces = [*_SPECIAL, *_SIGNS, *("##" + sign for sign in _SIGNS)]
    tokenizer = Tokenizer(
        models.WordPiece(
            {piece: number for number, piece in enumerate(pieces)},
            unk_token="[UNK]",
            max_input_chars_per_word=1000,
        )
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(target / "tokenizer.json"))
    names = ["input_ids", *(["token_type_ids"] if kinds else []), "attention_mask"]
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "model_input_names": names,
    }
    (target / "tokenizer_config.json").write_text(json.dumps(described))


def _write_weights(target, config, seed):
    """Spread wider than at the start of a training, so that different texts have different vectors."""
    prepare_blas()
    import mlx.core as mx  # noqa: PLC0415 (after OpenBLAS)
    from mlx.utils import tree_flatten  # noqa: PLC0415
    from mlx_vlm.models import bert, qwen3_embedding, xlm_roberta  # noqa: PLC0415

    ranks = config["architectures"][0].endswith("ForSequenceClassification")
    module = {"bert": bert, "qwen3": qwen3_embedding, "xlm-roberta": xlm_roberta}[config["model_type"]]
    make = module.SequenceClassificationModel if ranks else module.Model
    mx.random.seed(seed)
    network = make(module.ModelConfig.from_dict(dict(config)))
    weights = {
        name: value * 8 if value.ndim > 1 else value for name, value in tree_flatten(network.parameters())
    }
    mx.save_safetensors(str(target / "model.safetensors"), weights, metadata={"format": "mlx"})
