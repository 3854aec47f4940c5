"""Small models with random weights, as files that published packages load from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx

from tests.onnx_builder import OnnxBuilder

WIDTH, POSITIONS = 32, 64
WORDS = ["a", "the", "cat", "dog", "bird", "sits", "runs", "sings", "on", "over", "mat", "sky", "."]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def cut_out() -> onnx.ModelProto:
    """A network that marks an object: an image of 320 by 320 -> a number of (0, 1) per pixel."""
    build, draw = OnnxBuilder(), np.random.default_rng(0).normal

    def conv(x: str, channels: int, out: int, stride: int) -> str:
        weight = build.constant(draw(size=(out, channels, 3, 3), scale=0.3), "f4")
        bias = build.constant(draw(size=out, scale=0.1), "f4")
        steps = [stride, stride]
        return build.node("Conv", x, weight, bias, pads=[1, 1, 1, 1], strides=steps)

    image = build.input("input.1", [1, 3, 320, 320])
    fine = build.node("Relu", conv(image, 3, 8, 2))
    pooled = build.node("MaxPool", fine, kernel_shape=[2, 2], strides=[2, 2])
    coarse = build.node("Relu", conv(pooled, 8, 8, 1))
    twice = build.constant([1, 1, 2, 2], "f4")
    wide = build.node("Resize", coarse, "", twice, mode="linear")
    both = build.node("Concat", fine, wide, axis=1)
    full = build.node("Resize", conv(both, 16, 1, 1), "", twice, mode="linear")
    build.output(build.node("Sigmoid", full), [1, 1, 320, 320])
    return build.model()


def encoder() -> onnx.ModelProto:
    """A BERT of one layer and two heads: texts of any number and length -> a vector per token."""
    build, draw = OnnxBuilder(), np.random.default_rng(1).normal
    size: list[int | str] = ["batch", "sequence"]
    ids, mask, kinds = (
        build.input(name, size, np.int64)
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )

    def weight(*shape: int) -> str:
        return build.constant(draw(size=shape, scale=0.3), "f4")

    def normal(x: str) -> str:
        scale, bias = np.ones(WIDTH), np.zeros(WIDTH)
        return build.node(
            "LayerNormalization",
            x,
            build.constant(scale, "f4"),
            build.constant(bias, "f4"),
            axis=-1,
        )

    def heads(x: str, order: list[int]) -> str:
        product = build.node("MatMul", x, weight(WIDTH, WIDTH))
        split = build.node("Reshape", product, build.constant([0, 0, 2, WIDTH // 2], "i8"))
        return build.node("Transpose", split, perm=order)

    length = build.node("Slice", build.node("Shape", ids), *_whole(build, 1, 2))
    places = build.node("Slice", weight(POSITIONS, WIDTH), build.constant([0], "i8"), length)
    words = build.node("Gather", weight(len(SPECIAL) + len(WORDS), WIDTH), ids)
    kind = build.node("Gather", weight(2, WIDTH), kinds)
    x = normal(build.node("Add", build.node("Add", words, kind), places))
    wide = build.node("Unsqueeze", build.node("Cast", mask, to=1), build.constant([1, 2], "i8"))
    absent = build.node("Sub", build.constant(1.0, "f4"), wide)
    hidden = build.node("Mul", absent, build.constant(-1e9, "f4"))
    scores = build.node("MatMul", heads(x, [0, 2, 1, 3]), heads(x, [0, 2, 3, 1]))
    scaled = build.node("Mul", scores, build.constant((WIDTH / 2) ** -0.5, "f4"))
    shares = build.node("Softmax", build.node("Add", scaled, hidden), axis=-1)
    mixed = build.node("MatMul", shares, heads(x, [0, 2, 1, 3]))
    joined = build.node("Transpose", mixed, perm=[0, 2, 1, 3])
    flat = build.node("Reshape", joined, build.constant([0, 0, WIDTH], "i8"))
    x = normal(build.node("Add", x, build.node("MatMul", flat, weight(WIDTH, WIDTH))))
    inner = build.node("Tanh", build.node("MatMul", x, weight(WIDTH, 4 * WIDTH)))
    result = normal(build.node("Add", x, build.node("MatMul", inner, weight(4 * WIDTH, WIDTH))))
    build.output(build.node("Identity", result), [*size, WIDTH])
    model = build.model()
    for node in model.graph.node:  # the name that packages ask for
        node.output[:] = ["last_hidden_state" if n == model.graph.output[0].name else n
                          for n in node.output]  # fmt: skip
    model.graph.output[0].name = "last_hidden_state"
    return model


def _whole(build: OnnxBuilder, start: int, end: int) -> tuple[str, str]:
    return build.constant([start], "i8"), build.constant([end], "i8")


def save_encoder(folder: Path) -> None:
    """Writes the encoder with its tokenizer, as packages of Hugging Face's hub lay it out."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    (folder / "onnx").mkdir(parents=True)
    (folder / "1_Pooling").mkdir()
    onnx.save(encoder(), folder / "onnx" / "model.onnx")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(
        zip(
            ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True
        )
    )
    files = {
        "special_tokens_map.json": names,
        "tokenizer_config.json": {
            **names, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        },
        "config.json": {
            "model_type": "bert", "architectures": ["BertModel"], "hidden_size": WIDTH,
            "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4 * WIDTH,
            "vocab_size": len(vocabulary), "max_position_embeddings": POSITIONS, "pad_token_id": 0,
        },
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling",
             "type": "sentence_transformers.models.Pooling"},
        ],
        "sentence_bert_config.json": {"max_seq_length": POSITIONS, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
