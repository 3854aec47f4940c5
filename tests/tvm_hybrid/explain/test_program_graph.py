"""The graph of a compiled model: its kernels, in order, and the tensors between them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

import tvm_hybrid
from tests.onnx_builder import OnnxBuilder
from tests.tvm_hybrid.onnx_models import two_layers
from tests.tvm_hybrid.small_models import mlp_module, several_module
from tvm_hybrid.errors import ArtifactError
from tvm_hybrid.explain.program_graph import INPUT, VALUE, WEIGHT, Outline, ProgramGraph


def graph_of(model: object, **options: object) -> ProgramGraph:
    found = tvm_hybrid.compile(model, num_threads=1, **options).graph
    assert found is not None
    return found


def test_one_kernel() -> None:
    graph = graph_of(mlp_module(4))
    (call,) = graph.calls
    assert call.function.startswith("tvm_hybrid_matmul")
    assert [graph.values[number].kind for number in call.reads] == [INPUT, WEIGHT, WEIGHT]
    assert graph.inputs == call.reads[:1] and graph.outputs == call.writes
    result = graph.values[call.writes[0]]
    assert (result.shape, result.dtype, result.nbytes) == ((4, 16), "float32", 4 * 4 * 16)
    assert result.kind == VALUE


def test_outputs_may_be_inputs_and_views() -> None:
    graph = graph_of(several_module())
    x, n = graph.inputs
    assert graph.outputs[2:] == (x, x)  # a flat view, and x itself
    written = [number for call in graph.calls for number in call.writes]
    assert set(graph.outputs[:2]) == set(written)
    assert {number for call in graph.calls for number in call.reads} >= {x, n}


def test_kernels_that_write_into_one_tensor() -> None:
    rng = np.random.default_rng(0)
    build = OnnxBuilder()
    for name in ("x", "y"):
        build.input(name, [16, 32])
    products = [
        build.node("MatMul", name, build.constant(rng.standard_normal((32, 64)), np.float32))
        for name in ("x", "y")
    ]
    build.output(build.node("Concat", *products, axis=1), [16, 128])
    graph = graph_of(build.model())
    first, second = graph.calls
    assert first.updates == () and second.updates == first.writes
    assert set(second.updates) <= set(second.reads)
    assert graph.outputs == second.writes


def test_dynamic_sizes_have_names_and_no_bytes() -> None:
    graph = graph_of(two_layers("rows"), keep_dynamic=True)
    value = graph.values[graph.inputs[0]]
    assert value.shape == ("rows", 8) and value.nbytes == 0
    assert type(value.shape[0]) is str  # so that JSON can hold it


def test_a_library_keeps_graph_and_plan(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(4), num_threads=1, fallback="scalar")
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    assert loaded.graph == executable.graph
    assert loaded.outline is not None and loaded.outline == executable.outline
    assert loaded.outline.plan.planned == 4 * 4 * 16 and loaded.outline.plan.blocks == 1
    below = loaded.manifest.fallback
    assert below is not None and Outline.unpacked(below.outline).graph.calls
    again = tvm_hybrid.load(loaded.export(tmp_path / "again.so"))
    assert again.graph == executable.graph


def test_an_older_library_keeps_none(tmp_path: Path) -> None:
    executable = tvm_hybrid.compile(mlp_module(4), num_threads=1)
    executable.outline = None
    loaded = tvm_hybrid.load(executable.export(tmp_path / "m.so"))
    assert loaded.graph is None and loaded.outline is None


@pytest.mark.parametrize("data", [b"something else", zlib.compress(b"\x01")], ids=["raw", "packed"])
def test_what_is_no_outline_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"graph in the library is damaged .*; export it again"):
        Outline.unpacked(data)
