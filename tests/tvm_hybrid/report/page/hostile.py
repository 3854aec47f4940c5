"""A tiny model whose names are markup, for pages that show it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tvm_hybrid.report.kernel_speed import Roof
from tvm_hybrid.report.page.collect import collect
from tvm_hybrid.report.page.data import PageData

MARKUP = "</script><script>window.injected = 1</script>"
NAME = "<img src=x onerror='window.injected = 2'>{{style}}.onnx"
ROOF = Roof(threads=1, peaks={"float32": 100.0}, bandwidth=20.0)


def hostile_model() -> onnx.ModelProto:
    """x[8, 16] -> product, Relu -> running sums, a fallback -> product."""
    rng = np.random.default_rng(0)
    build = OnnxBuilder()
    build.input(MARKUP, [8, 16])
    first = build.constant(rng.standard_normal((16, 32)), np.float32)
    hidden = build.node("Relu", build.node("MatMul", MARKUP, first))
    sums = build.node("CumSum", hidden, build.constant(np.array(0), np.int64))
    second = build.constant(rng.standard_normal((32, 8)), np.float32)
    build.output(build.node("MatMul", sums, second), [8, 8])
    return build.model()


def hostile_page(folder: Path) -> PageData:
    """The page data of this model."""
    path = folder / NAME.replace("/", "")
    onnx.save(hostile_model(), path)
    executable = tvm_hybrid.compile(path, num_threads=1)
    return collect(executable, model=str(path), repeat=2, roof=ROOF)
