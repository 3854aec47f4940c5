"""`tools.decoding` steps through small decoders, beside other engines."""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import ROOT
from tools.decoding import __main__ as command
from tools.decoding import steps, table
from tools.decoding.engines import STEPS, tokens
from tools.decoding.environments import CTRANSLATE2, LLAMA_CPP, PACKAGES
from tools.decoding.llama import Sizes, eight_bits, four_bits, interleaved, weights
from tools.decoding.onnx_files import F32, INT4, INT8, write
from tools.decoding.peers import Given, Peer
from tools.decoding.reader import READER, STREAMS, Reader, weight_bytes
from tools.decoding.sessions import OnnxRuntime, Ours
from tvm_hybrid.bench.peers.peers import ONNX_RUNTIME, OPENVINO, OURS
from tvm_hybrid.report.timing import ContestantError

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
    monkeypatch.setattr(steps, "PAUSE", 0)
    monkeypatch.setattr(steps, "TURNS", 1)
    given = [str(path), "--pasts", "0,5", "--prompts", "3"]
    result = CliRunner().invoke(command.main, given, catch_exceptions=False)
    lines = result.output.splitlines()
    assert lines[0] == "one program: True"
    assert [line.split("  ")[0] for line in lines[2:]] == ["past 0", "past 5", "prompt 3"]


TINY = Sizes(layers=2, width=64, heads=4, shared=2, inner=96, words=128, context=256)


def answering(path: Path, script: str) -> str:
    """A program that stands for another engine's Python."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


STEADY = """\
echo '{"ready": 1}'
while read -r asked; do
    case "$asked" in
        *scores*) echo '{"found": [1.0, -1.0]}' ;;
        *steps*) echo '{"found": [0.5, 0.25]}' ;;
        *) echo '{"error": "no memory"}' ;;
    esac
done"""


def test_an_engine_of_another_process(tmp_path: Path) -> None:
    peer = Peer(OPENVINO, answering(tmp_path / "python", STEADY), Given(TINY, F32, 1))
    assert peer.scores(32).tolist() == [1, -1]
    assert peer.steps(32) == [0.5, 0.25]
    with pytest.raises(ContestantError, match="OpenVINO: no memory"):
        peer.prompts(32)
    peer.close()
    with pytest.raises(ContestantError, match="CTranslate2: the process ended with code 3"):
        Peer(CTRANSLATE2, answering(tmp_path / "python", "exit 3"), Given(TINY, F32, 1))
    with pytest.raises(ContestantError, match=r"llama\.cpp: ModuleNotFoundError: No module named"):
        Peer(LLAMA_CPP, sys.executable, Given(TINY, F32, 1))


def test_the_table_has_everybody_who_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "COLUMNS", {"d8": ("steps", 8), "p16": ("prompts", 16)})
    monkeypatch.setattr(table, "PAUSE", 0)
    failing = STEADY.replace("[0.5, 0.25]", "[0.5]").replace("[1.0, -1.0]", f"{[1.0] * TINY.words}")
    pythons = {OPENVINO: str(tmp_path / "none"), CTRANSLATE2: answering(tmp_path / "ct", failing)}
    monkeypatch.setitem(command.MODELS, "110M", TINY)
    monkeypatch.setattr(command, "engines", lambda names: (pythons, {}, {LLAMA_CPP: "no"}))
    path = tmp_path / "table.json"
    given = ["--models", "110M", "--kinds", "f32,int8", "--threads", "1", "--output", str(path)]
    before = os.sched_getaffinity(0)
    result = CliRunner().invoke(command.main, given, catch_exceptions=False)
    os.sched_setaffinity(0, before)
    lines = result.stdout.splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith("| ")] == [
        *("| 110M, f32, 1 thread", "| d8", "| p16"),
        *("| 110M, int8, 1 thread", "| d8", "| p16"),
    ]
    assert "missing: llama.cpp: no" in result.stderr
    rows = msgspec.json.decode(path.read_bytes(), type=list[table.Measured])
    assert [(row.kind, row.column) for row in rows] == [
        *(("f32", "d8"), ("f32", "p16"), ("int8", "d8"), ("int8", "p16"))
    ]
    for row in rows:
        others = [CTRANSLATE2] * (row.column == "d8")  # it fails at prompts
        reader = [READER] * (row.column == "d8")  # it reads for tokens only
        assert set(row.least) == {OURS, ONNX_RUNTIME, *others, *reader}
        assert "no memory" in row.notes[CTRANSLATE2]
        assert 0 < row.least[OURS] <= row.median[OURS] < 1
        assert "cannot start" in row.notes[OPENVINO]
        differ = float(row.notes[ONNX_RUNTIME].split()[5])
        assert differ < 1e-3


@pytest.mark.parametrize("make", [Ours, OnnxRuntime])
def test_an_engine_goes_on_where_it_was(make: Any, tmp_path: Path) -> None:
    engine = make(write(tmp_path / "model.onnx", TINY, F32), Given(TINY, F32, 1))
    ids = tokens(TINY, 20)
    whole = engine.read(ids).copy()
    for kept in (0, 7, 19):
        engine.keep(kept)
        for start in range(kept, 20, 5):
            found = engine.read(ids[start : min(start + 5, 20)])
        np.testing.assert_allclose(found, whole, atol=1e-5)


def test_weights_of_fewer_bits() -> None:
    weight = dict(weights(TINY))["blk.0.attn_q"]
    codes, scales = four_bits(weight)
    wide = scales[..., None].astype(np.float32)
    near = ((codes.astype(np.float32) - 8) * wide).reshape(weight.shape)
    assert codes.min() == 0 and codes.max() <= 15
    assert (np.abs(near - weight).reshape(codes.shape) <= 1.01 * np.abs(wide)).all()
    rows, factors = eight_bits(weight)
    np.testing.assert_allclose(rows * factors[:, None], weight, atol=0.51 * factors.max())
    pairs = interleaved(TINY, weight, TINY.heads)  # rows 0 and 8 of a head become 0 and 1
    np.testing.assert_array_equal(pairs[:4], weight[[0, 8, 1, 9]])
    np.testing.assert_array_equal(pairs[16:18], weight[[16, 24]])


def test_the_reader_reads_all_weights(tmp_path: Path) -> None:
    size = weight_bytes(TINY, F32)
    assert size == 4 * sum(w.size for name, w in weights(TINY) if name in TINY.matrices())
    assert weight_bytes(TINY, INT8) == size // 4
    assert weight_bytes(TINY, INT4) == size // 4 * 9 // 16
    reader = Reader(tmp_path, 1 << 20, 2)
    assert len(reader.steps(8)) == STEPS
    assert all(reader.read(streams) > 0 for streams in STREAMS)


def test_engines_are_those_of_the_extra() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extra = set(setup["options.extras_require"]["peers"].split())
    pinned = {package for each in PACKAGES.values() for package in each if "==" in package}
    assert extra == pinned
