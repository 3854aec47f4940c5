"""Damaged models and libraries: a typed error or a right result; no crash, hang or memory flood."""

from __future__ import annotations

import functools
import random
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_hybrid
from microkernels.base.tvm_compat.runtime import open_library
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.small_models import mlp
from tests.tvm_hybrid.tuning.forked import Child
from tvm_hybrid.errors import ArtifactError, TvmHybridError
from tvm_hybrid.executable import load as loading
from tvm_hybrid.frontend import import_onnx

TRUNCATIONS, FLIPS = 100, 200
COMPILED = 8  # damaged models that still import and are also compiled
SECONDS = 240
FLOOD = 4 << 30  # bytes of address space that importing this model never needs


@functools.cache
def network() -> bytes:
    """A model with shapes from attributes and from constants, so that bit flips change them."""
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> str:
        return g.constant(rng.standard_normal(shape), np.float32)

    def numbers(*values: int) -> str:
        return g.constant(values, np.int64)

    g = OnnxBuilder()
    image = g.input("x", (1, 3, 8, 8))
    layer = g.node("Conv", image, weight(4, 3, 3, 3), weight(4), pads=[1, 1, 1, 1], strides=[2, 2])
    layer = g.node("MaxPool", g.node("Relu", layer), kernel_shape=[2, 2], strides=[2, 2])
    layer = g.node("Pad", layer, numbers(0, 0, 1, 0, 0, 0, 0, 1))
    layer = g.node("Resize", layer, "", g.constant([1, 1, 2, 2], np.float32), mode="nearest")
    row = g.node("Gemm", g.node("Reshape", layer, numbers(1, -1)), weight(144, 8), weight(8))
    rows = g.node("Expand", g.node("Softmax", row, axis=-1), numbers(2, 8))
    one = onnx.helper.make_tensor("one", onnx.TensorProto.FLOAT, [1], [1.0])
    rows = g.node("Add", rows, g.node("ConstantOfShape", numbers(2, 8), value=one))
    rows = g.node("Tile", rows, numbers(1, 2))
    g.output(g.node("Slice", rows, numbers(0), numbers(9), numbers(1), numbers(2)), (2, 5))
    return g.model().SerializeToString()


def damaged(data: bytes, seed: int) -> Iterator[bytes]:
    """Data truncated at a random place, or with one random bit flipped."""
    generator = random.Random(seed)
    for _ in range(TRUNCATIONS):
        yield data[: generator.randrange(len(data))]
    for _ in range(FLIPS):
        place, bit = generator.randrange(len(data)), generator.randrange(8)
        yield data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_models(tmp_path: Path) -> None:
    report = tmp_path / "untyped"
    tvm_hybrid.compile(network(), num_threads=1)

    def work(acknowledge: Callable[[int], None]) -> None:
        signal.alarm(SECONDS)  # ends a hang
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = pages * resource.getpagesize() + FLOOD
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        left = COMPILED
        for data in damaged(network(), 1):
            try:
                import_onnx(data)
                if left:
                    left -= 1
                    tvm_hybrid.compile(data, num_threads=1)
            except TvmHybridError as error:
                acknowledge(1 if str(error) else 2)
            except BaseException:
                report.write_text(traceback.format_exc())
                raise
            else:
                acknowledge(0)

    child = Child(work)
    outcomes = child.acknowledged()
    assert child.wait() == 0, report.read_text() if report.exists() else outcomes
    assert len(outcomes) == TRUNCATIONS + FLIPS and set(outcomes) == {0, 1}
    assert outcomes[:TRUNCATIONS].count(1) >= TRUNCATIONS - 2  # a cut may leave a valid model


def test_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before they are opened as libraries, which could crash."""
    path = tmp_path / "m.so"
    data = mlp().export(path).read_bytes()

    opened = []

    def noting(path: str) -> Any:
        opened.append(path)
        return open_library(path)

    monkeypatch.setattr(loading, "open_library", noting)
    for bad in damaged(data, 2):
        path.write_bytes(bad)
        with pytest.raises(ArtifactError, match=r"m\.so"):
            tvm_hybrid.load(path)
        assert not opened
    path.write_bytes(data)
    tvm_hybrid.load(path)
    assert opened
