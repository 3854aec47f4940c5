"""examples/generate.py: text by small decoders in the format that onnxruntime-genai exports."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from tests.onnx_builder import CONTRIB, OnnxBuilder
from tests.tvm_hybrid.small_models import ROOT
from tools.decoding.llama import Sizes
from tools.decoding.onnx_files import model

_SPEC = importlib.util.spec_from_file_location("generate", ROOT / "examples" / "generate.py")
assert _SPEC is not None and _SPEC.loader is not None
generate = sys.modules["generate"] = importlib.util.module_from_spec(_SPEC)  # dataclasses need it
_SPEC.loader.exec_module(generate)

LINES = ["a house by the sea", "the sea is wide and the house is small", "ça va très bien"]
END = "<end>"
CONTEXT = 64
SIZES = Sizes(layers=2, width=64, heads=4, shared=2, inner=96, words=288, context=CONTEXT)


def tokenizer_of() -> Any:
    """A tokenizer with byte pairs from a few lines; its smallest token is one byte."""
    found = Tokenizer(BPE())
    found.pre_tokenizer = ByteLevel(add_prefix_space=False)
    found.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=288, special_tokens=[END], initial_alphabet=alphabet)
    found.train_from_iterator(LINES, trainer)
    return found


def folder_of(path: Path, proto: onnx.ModelProto, layers: int, **search: Any) -> Path:
    """Writes the files that onnxruntime-genai's model builder writes."""
    onnx.save(proto, path / "model.onnx")
    tokenizer = tokenizer_of()
    tokenizer.save(str(path / "tokenizer.json"))
    inputs = {name: name for name in ("input_ids", "attention_mask", "position_ids")}
    outputs = {"logits": "logits"}
    for part in ("key", "value"):
        inputs[f"past_{part}_names"] = f"past_key_values.%d.{part}"
        outputs[f"present_{part}_names"] = f"present.%d.{part}"
    decoder = {"filename": "model.onnx", "num_hidden_layers": layers}
    decoder |= {"inputs": inputs, "outputs": outputs}
    whole = {"eos_token_id": [tokenizer.token_to_id(END)], "context_length": CONTEXT}
    config = {"model": {**whole, "decoder": decoder}, "search": search}
    (path / "genai_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module", params=["float32", "float16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded Llama; the float16 one returns only the last token's logits."""
    dtype = np.dtype(request.param).type
    proto = model(SIZES, dtype=dtype, last_only=dtype is np.float16)
    return folder_of(tmp_path_factory.mktemp("llama"), proto, SIZES.layers)


def scores_without_cache(folder: Path, ids: list[int]) -> np.ndarray:
    """ONNX Runtime's scores for the token after `ids`."""
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    feeds = {"input_ids": np.array([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
    for info in session.get_inputs()[2:]:
        dtype = np.float16 if "float16" in info.type else np.float32
        feeds[info.name] = np.zeros((1, SIZES.shared, 0, SIZES.size), dtype)
    return session.run(None, feeds)[0][0, -1].astype(np.float32)


class Recording(generate.Sampler):  # type: ignore[misc]
    """A sampler that records all tokens to choose from."""

    def choose(self, scores: np.ndarray, before: Any) -> int:
        self.chosen = [*before, super().choose(scores, before)]
        return self.chosen[-1]


def test_the_likeliest_tokens_follow_the_prompt(folder: Path) -> None:
    generator = generate.Generator(folder, threads=1)
    prompt = "the sea is"
    for _ in range(2):  # the second run must not see the first text
        sampler = Recording()
        pieces = list(generator.stream(prompt, 12, sampler))
    before = len(generator.tokenizer.encode(prompt).ids)
    assert len(sampler.chosen) == before + 12
    for end in range(before, len(sampler.chosen)):
        scores = scores_without_cache(folder, sampler.chosen[:end])
        assert scores[sampler.chosen[end]] >= scores.max() - 0.02  # float16 error
    text = generator.tokenizer.decode(sampler.chosen)
    assert text.startswith(prompt + "".join(pieces))
    assert generator.rates["prompt"][0] == before and generator.rates["steps"][0] == 11


def speaker(text: str) -> onnx.ModelProto:
    """A decoder with positions that generates a given text token by token and ends."""
    tokenizer, build = tokenizer_of(), OnnxBuilder()
    script = [*tokenizer.encode(text).ids, tokenizer.token_to_id(END)]
    ids = build.input("input_ids", ["batch", "n"], np.int64)
    mask = build.input("attention_mask", ["batch", "total"], np.int64)
    positions = build.input("position_ids", ["batch", "n"], np.int64)
    table = np.zeros((CONTEXT, tokenizer.get_vocab_size()), np.float32)
    table[np.arange(len(script) - 1), script[1:]] = 10
    rows = build.node("Gather", build.constant(np.ones((table.shape[1], 4), np.float32)), ids)
    caches = [
        build.input(f"past_key_values.0.{x}", ["batch", 1, "past", 4]) for x in ("key", "value")
    ]
    last = build.node("ReduceSum", mask, build.constant([1]), keepdims=0)
    last = build.node("Sub", last, build.constant([1]))
    total = build.node("Gather", build.node("Shape", mask), build.constant(1), axis=0)
    counts = [build.node("Cast", each, to=onnx.TensorProto.INT32) for each in (last, total)]
    heads = {"num_heads": 1, "kv_num_heads": 1, "domain": CONTRIB}
    mixed, *present = build.nodes(
        "GroupQueryAttention", 3, rows, rows, rows, *caches, *counts, **heads
    )
    none = build.node("ReduceSum", mixed, build.constant([-1]), keepdims=1)
    none = build.node("Sub", none, build.constant(4.0, np.float32))  # values are 1
    said = build.node("Gather", build.constant(table), positions)
    build.output(build.node("Add", said, none), None)
    for each in present:
        build.output(each, None)
    proto = build.model()
    for value, name in zip(
        proto.graph.output, ("logits", "present.0.key", "present.0.value"), strict=True
    ):
        node = next(each for each in proto.graph.node if value.name in each.output)
        node.output[list(node.output).index(value.name)] = name
        value.name = name
    return proto


def test_characters_of_several_bytes_come_whole_and_text_ends(tmp_path: Path) -> None:
    text = "the sea: \u6d77\u306f\u5e83\u3044 \U0001f30a, ça va"
    folder = folder_of(tmp_path, speaker(text), 1)
    generator = generate.Generator(folder, threads=1)
    pieces = list(generator.stream("the", 60, generate.Sampler()))
    assert "the" + "".join(pieces) == text
    assert len(pieces) > 5 and not any("\ufffd" in piece for piece in pieces)
    result = CliRunner().invoke(
        generate.main, [str(folder), "-", "--threads", "1"], input="the", catch_exceptions=False
    )
    assert result.stdout == text[3:] + "\n"
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["prompt", "steps"]
    assert "tokens/s" in result.stderr


def test_a_text_is_no_longer_than_the_context(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, speaker("a"), 1)
    generator = generate.Generator(folder, threads=1)
    generator.config = dataclasses.replace(generator.config, ends=())
    sampler = Recording()
    list(generator.stream("the", 1000, sampler))
    assert len(sampler.chosen) == CONTEXT
    for prompt, why in (("", "no tokens"), ("ab" * CONTEXT, "no room")):
        result = CliRunner().invoke(generate.main, [str(folder), prompt, "--threads", "1"])
        assert result.exit_code == 1 and why in result.output


def test_what_the_caller_says_comes_before_what_the_folder_says(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, speaker("a"), 1, do_sample=True, temperature=0.5, top_p=0.9)
    generator = generate.Generator(folder, threads=1)
    said = generator.sampler(top_k=None)
    assert (said.temperature, said.top_k, said.top_p) == (0.5, 0, 0.9)
    assert generator.sampler(temperature=0.0).temperature == 0
    generator.config.search["do_sample"] = False
    assert generator.sampler(seed=None).temperature == 0
    assert generator.sampler(top_k=3).top_k == 3 and generator.sampler(top_k=3).temperature == 0.5
    rngs = [generator.sampler(seed=7).rng for _ in range(2)]
    assert rngs[0].random() == rngs[1].random()


def drawn(**how: Any) -> list[int]:
    """How often each of four tokens is drawn in 2000 draws."""
    sampler = generate.Sampler(rng=np.random.default_rng(0), **how)
    scores = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))
    found = [sampler.choose(scores.copy(), [1, 1]) for _ in range(2000)]
    return np.bincount(found, minlength=4).tolist()


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    def expect(found: list[int], *shares: float) -> None:
        assert np.abs(np.array(found) / 2000 - shares).max() < 0.04  # 3.5 standard deviations
        assert [count == 0 for count in found] == [share == 0 for share in shares]

    expect(drawn(temperature=1.0), 0.1, 0.4, 0.2, 0.3)
    expect(drawn(temperature=1.0, top_k=2), 0, 4 / 7, 0, 3 / 7)
    expect(drawn(temperature=1.0, top_p=0.75), 0, 4 / 9, 2 / 9, 3 / 9)
    squares = np.array([0.01, 0.16, 0.04, 0.09]) / 0.3
    expect(drawn(temperature=0.5), *squares)
    assert drawn() == drawn(temperature=1.0, top_k=1) == [0, 2000, 0, 0]
    assert drawn(temperature=1.0, top_p=0.01) == [0, 2000, 0, 0]
    assert drawn(penalty=2.0) == [0, 0, 0, 2000]  # log(0.4) * 2 < log(0.3)
