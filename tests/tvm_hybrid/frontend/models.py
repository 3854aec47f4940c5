"""Tiny ONNX models, and a way to run imported models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import tvm
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from relay_passes.canonicalize.activations import recognize_gelu
from relay_passes.canonicalize.constants import fold_weights
from relay_passes.canonicalize.convolutions import fold_padding
from relay_passes.canonicalize.products import fold_factors, fold_input_factors
from relay_passes.ir.tidy import tidy, to_dataflow
from relay_passes.lower.codegen import kernel_context
from tests.stand_ins.building import unchecked
from tvm_hybrid import InferenceSession
from tvm_hybrid.bench.peers.onnx_runtime import literal_session
from tvm_hybrid.frontend import ImportedModel, import_onnx

Declaration = tuple[str, int, Sequence[int | str | None] | None]
OPSET = 17
# Scans x backwards along its second last axis and y along its first; stacks one output along the
# last axis, the other backwards along the first.
SCAN = """
    last, count, down, up = Scan<num_scan_inputs = 2, scan_input_axes = [-2, 0],
        scan_input_directions = [1, 0], scan_output_axes = [-1, 0],
        scan_output_directions = [0, 1],
        body = b (float[4] a, float[4] n, float[4] p, float[4] q)
            => (float[4] a2, float[4] n2, float[4] d, float[4] u)
        {
            one = Constant<value = float[1] {0.01}> ()
            n2 = Add(n, one)
            t = Mul(a, w)
            v = Add(t, p)
            a2 = Tanh(v)
            d = Add(a2, q)
            u = Mul(n2, q)
        }>"""


def f32(name: str, *dims: int | str | None) -> Declaration:
    """A float input or output."""
    return name, TensorProto.FLOAT, dims


def i64(name: str, *dims: int | str | None) -> Declaration:
    """An integer input or output."""
    return name, TensorProto.INT64, dims


def declared(name: str, array: NDArray) -> Declaration:
    """An input or output declared like an array."""
    return name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape


def one_program(model: onnx.ModelProto) -> InferenceSession:
    """A session on one thread, whose only program is compiled in the constructor."""
    session = InferenceSession(model, num_threads=1)
    assert len(session.programs) == 1
    return session


def make_model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[Declaration],
    outputs: Iterable[Declaration],
    constants: Mapping[str, Any] | None = None,
    opset: int = OPSET,
    **extra: Any,
) -> onnx.ModelProto:
    """A model of one graph; `extra` is passed to onnx.helper.make_model."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info(*item) for item in inputs],
        [helper.make_tensor_value_info(*item) for item in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **extra)


def parsed(text: str, opset: int = OPSET) -> onnx.ModelProto:
    """Parses the model of a graph in ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')


def run_imported(
    imported: ImportedModel, feeds: Mapping[str, NDArray], target: str | Mapping[str, Any] = "llvm"
) -> list[NDArray]:
    """Compiles with TVM's own pipeline and runs the result."""
    with unchecked(), kernel_context():
        executable = tvm.compile(imported.mod, tvm.target.Target(target))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arguments = [tvm.runtime.tensor(feeds[item.name]) for item in imported.inputs]
    result = machine["main"](*arguments)
    results = [result] if len(imported.outputs) == 1 else list(result)
    return [item.numpy() for item in results]


def compare(
    model: onnx.ModelProto,
    feeds: Mapping[str, NDArray],
    expected: Sequence[NDArray] | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
) -> ImportedModel:
    """Imports, runs, and compares the results with `expected` or ONNX's reference.

    Integer and bool results must be equal. The float tolerances suit models of a few dozen
    additions of values near 1: float32 rounding is 6e-8 of the value for each.
    """
    if expected is None:
        expected = ReferenceEvaluator(model).run(None, dict(feeds))
    shapes = {name: array.shape for name, array in feeds.items()}
    imported = import_onnx(model, shapes)
    results = run_imported(imported, feeds)
    assert len(results) == len(expected) == len(imported.outputs)
    for info, got, wanted in zip(imported.outputs, results, expected, strict=True):
        assert got.shape == wanted.shape == info.shape
        assert str(got.dtype) == str(wanted.dtype) == info.dtype
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(got, wanted)
    return imported


def folded(imported: ImportedModel) -> ImportedModel:
    """The imported model after the folding passes of the pipeline, in their order."""
    mod = imported.mod
    for each in (to_dataflow(), tidy(), fold_weights(), fold_factors(), fold_padding(),
                 recognize_gelu(), fold_input_factors(), fold_factors()):  # fmt: skip
        mod = each(mod)
    return replace(imported, mod=mod)


def operators(imported: ImportedModel) -> Counter[str]:
    """Counts the calls of each Relax operator in main."""
    names: Counter[str] = Counter()

    def visit(expr: relax.Expr) -> None:
        if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
            names[expr.op.name.removeprefix("relax.")] += 1

    relax.analysis.post_order_visit(imported.mod["main"], visit)
    return names


def random(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Normally distributed values from a fixed seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def onnxruntime_run(model: onnx.ModelProto, feeds: Mapping[str, NDArray]) -> list[NDArray]:
    """ONNX Runtime's result, operator by operator without optimisation."""
    return literal_session(model).run(None, dict(feeds))


def within_one(got: NDArray, wanted: NDArray, share: float) -> None:
    """Checks integers for equality, except ties that another rounding order may decide.

    Parameters
    ----------
    share
        Share of all integers that may differ by one; the others must be equal.
    """
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    distance = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
    assert distance.max(initial=0) <= 1
    assert (distance != 0).mean() <= share


def integers(*shape: int, dtype: str = "uint8", seed: int = 0) -> NDArray:
    """Evenly spread integers, including both limits of the type."""
    limits = np.iinfo(dtype)
    values = np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape)
    flat = values.reshape(-1)
    flat[:1], flat[-1:] = limits.min, limits.max
    return values.astype(dtype)
