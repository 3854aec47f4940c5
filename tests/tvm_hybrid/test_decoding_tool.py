"""`tools.decoding` steps through a small decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tests.onnx_builder import OnnxBuilder
from tools import decoding

TOKENS, SIZE = 99, 16


def decoder() -> onnx.ModelProto:
    """Token ids, a mask and a cache of one head -> logits, and the cache."""
    build = OnnxBuilder()
    rng = np.random.default_rng(0)
    ids = build.input("ids", ["batch", "n"], np.int64)
    mask = build.input("mask", ["batch", "past + n"], np.int64)
    past = [build.input(f"past.{part}", ["batch", 1, "past", SIZE]) for part in "kv"]
    table = build.constant(rng.standard_normal((TOKENS, SIZE)), np.float32)
    rows = build.node("Unsqueeze", build.node("Gather", table, ids), build.constant([1], np.int64))
    k, v = (build.node("Concat", each, rows, axis=2) for each in past)
    scores = build.node("MatMul", rows, build.node("Transpose", k, perm=[0, 1, 3, 2]))
    seen = build.node("Unsqueeze", mask, build.constant([1, 2], np.int64))
    bias = build.node("Log", build.node("Cast", seen, to=1))
    weights = build.node("Softmax", build.node("Add", scores, bias), axis=-1)
    mixed = build.node("Squeeze", build.node("MatMul", weights, v), build.constant([1], np.int64))
    head = build.constant(rng.standard_normal((SIZE, TOKENS)), np.float32)
    build.output(build.node("MatMul", mixed, head), ["batch", "n", TOKENS])
    for each in (k, v):
        build.output(each, ["batch", 1, "past + n", SIZE])
    return build.model()


def test_it_measures_steps_and_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "decoder.onnx"
    onnx.save(decoder(), path)
    monkeypatch.setattr(decoding, "PAUSE", 0)
    monkeypatch.setattr(decoding, "TURNS", 1)
    given = [str(path), "--pasts", "0,5", "--prompts", "3"]
    result = CliRunner().invoke(decoding.main, given, catch_exceptions=False)
    lines = result.output.splitlines()
    assert lines[0] == "one program: True"
    assert [line.split("  ")[0] for line in lines[2:]] == ["past 0", "past 5", "prompt 3"]
