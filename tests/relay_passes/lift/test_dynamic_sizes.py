"""Functions with dynamic sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, te, tirx
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T
from tvm.sym import Analyzer

import tvm_hybrid
from microkernels.base.errors import CompileError
from relay_passes.ir.decisions import DecisionLog
from relay_passes.ir.graph import size_of
from relay_passes.lift.tir_contraction import in_caller_sizes
from tests.relay_passes.graphs import constant, run
from tests.tir_schedules.tensorize.programs import function, summed
from tir_schedules.generic.expressions import substitute
from tir_schedules.generic.nest import NotHandledError, read_program
from tir_schedules.tensorize.arrangement import RefusedError

from .test_lift_programs import STAGES, legalized, lifted, names

op = relax.op
F = "float32"
N, M = (tirx.Var(name, "int64") for name in "nm")
Shape = tuple[Any, ...]


def dynamic_module(body: Callable[..., relax.Expr], *shapes: Shape) -> IRModule:
    """main(*inputs) of float32 tensors, whose sizes may be variables."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{i}", relax.TensorType(each, F)) for i, each in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(*inputs)))
        builder.emit_func_output(result)
    return relax.transform.CanonicalizeBindings()(builder.get())


def randoms(shapes: tuple[Shape, ...], sizes: dict[tirx.Var, int]) -> list[np.ndarray]:
    known = {var: tirx.const(number, "int64") for var, number in sizes.items()}

    def size(extent: Any) -> int:
        if isinstance(extent, int):
            return extent
        return int(Analyzer().simplify(substitute(extent, known)).value)

    rng = np.random.default_rng(0)
    return [rng.standard_normal([*map(size, each)]).astype(F) for each in shapes]


TAPS = constant(6, 4, 3, 3)
TURNED = constant(4, 3, 4, 4)
MODELS: dict[str, tuple[Callable[..., relax.Expr], tuple[Shape, ...], list[str], str]] = {
    "layer": (
        lambda x, w: op.nn.relu(op.matmul(op.reshape(x, (N * M, 16)), w)),
        ((N, M, 16), (16, 8)),
        ["reshape", "matmul", "nn.relu"],
        "batch_matmul + relu",
    ),
    "softmax of scores": (
        lambda x, y: op.nn.softmax(op.matmul(x, op.permute_dims(y, [0, 2, 1]))),
        ((N, M, 16), (N, M, 16)),
        ["permute_dims", "matmul", "max"],
        "softmax",
    ),
    "windows": (
        lambda x: op.nn.conv2d(x, TAPS, strides=(2, 1), padding=(1, 1)),
        ((N, 4, M, M + 1),),
        ["nn.pad", "nn.conv2d"],
        "conv2d",
    ),
    "transposed": (
        lambda x: op.nn.conv2d_transpose(x, TURNED, (2, 2), (1, 1), groups=2),
        ((N, 4, M, 5),),
        ["nn.conv2d_transpose"],
        "conv2d",
    ),
    "norm": (
        lambda x, w: op.nn.layer_norm(op.matmul(x, w), constant(8), constant(8, seed=1), [-1]),
        ((N, M, 16), (16, 8)),
        ["matmul", "mean"],
        "layer_norm",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_legalised_operators_come_back(name: str, stage: str) -> None:
    body, shapes, first, template = MODELS[name]
    plain = dynamic_module(body, *shapes)
    given = legalized(plain, stage)
    found, decisions = lifted(given)
    assert names(found)[: len(first)] == first and "call_tir" not in names(found)
    assert [decision.taken for decision in decisions] == [True]
    executable = tvm_hybrid.compile(given, num_threads=1, keep_dynamic=True)
    assert template in [each.op for each in executable.explain() if each.kernel]
    for sizes in ({N: 1, M: 3}, {N: 3, M: 17}):
        arrays = randoms(shapes, sizes)
        result = executable.run(*arrays)[0].numpy()
        np.testing.assert_allclose(result, run(plain, arrays)[0], 1e-4, 1e-4)


def test_a_layer() -> None:
    def given(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.matmul(x, w))

    def wanted(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.matmul(x, w, out_dtype=F))

    shapes = (N, M, 16), (16, 8)
    found, _ = lifted(legalized(dynamic_module(given, *shapes), "fused"))
    assert_structural_equal(found, dynamic_module(wanted, *shapes), map_free_vars=True)


def test_sizes_that_became_numbers_since() -> None:
    body, shapes, first, _ = MODELS["windows"]
    legal = legalized(dynamic_module(body, *shapes))
    known = relax.transform.BindSymbolicVars({"n": 2, "m": 9})(legal)
    found, (decision,) = lifted(known)
    assert names(found) == first and decision.taken, decision.reason
    arrays = randoms(shapes, {N: 2, M: 9})
    np.testing.assert_allclose(run(found, arrays)[0], run(legal, arrays)[0], 1e-4, 1e-4)


def test_a_part_of_a_dynamic_size_is_a_function_of_its_own() -> None:
    def body(x: relax.Expr, w: relax.Expr) -> relax.Expr:
        return op.matmul(op.strided_slice(x, [0], [2], [6]), w)

    mod = dynamic_module(body, (N + 4, 16), (16, 8))
    found, _ = lifted(legalized(mod, "fused"))
    assert names(found)[-2:] == ["call_tir", "matmul"]


def scores(n: tirx.Var) -> tirx.PrimFunc:
    """Scores [12, n, n] of two tensors [n, 12, 16]."""

    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((12, n, n), (16,), lambda h, i, j, k: a[i, h, k] * b[j, h, k])

    shape = (n, 12, 16), F
    return function(body, shape, shape)


@pytest.mark.parametrize("bits", ["int32", "int64"])
def test_tensorize(bits: str) -> None:
    program = scores(tirx.Var("n", bits))
    decisions: DecisionLog = []
    made = tvm_hybrid.tensorize(program, num_threads=1, decisions=decisions)
    assert made.params[0].shape[0].same_as(program.params[0].shape[0])
    assert "batches i0, rows i1, columns i2" in decisions[0].reason
    library = tvm.compile(made.with_attr("global_symbol", "main"), tvm_hybrid.resolve_target(None))
    for n in (1, 5, 33):
        a, b = randoms(((n, 12, 16), (n, 12, 16)), {})
        result = tvm.runtime.empty((12, n, n), F)
        library["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), result)
        np.testing.assert_allclose(result.numpy(), np.einsum("ihd,jhd->hij", a, b), 1e-4, 1e-4)


def test_extents_that_are_no_sizes() -> None:
    @T.prim_func(s_tir=True)
    def triangle(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")) -> None:
        for i in range(8):
            for j in range(i + 1):
                with T.sblock("part"):
                    v_i = T.axis.spatial(8, i)
                    v_j = T.axis.spatial(i + 1, j)
                    b[v_i, v_j] = a[v_i, v_j]

    with pytest.raises(NotHandledError, match="an axis whose extent is no size"):
        read_program(triangle, size_of)


def test_sizes_that_nothing_tells() -> None:
    n = tirx.Var("n", "int64")

    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((n * 2, 8), (16,), lambda i, j, k: a[i, k] * b[k, j])

    program = function(body, ((n * 2, 16), F), ((16, 8), F))
    with pytest.raises(CompileError, match="no dimension of its inputs is the size n"):
        tvm_hybrid.tensorize(program, num_threads=1)
    inputs = [relax.Var("x", relax.TensorType((6, 16), F)), constant(16, 8)]
    with pytest.raises(RefusedError, match="no argument tells the size n"):
        in_caller_sizes(program, inputs, [relax.TensorType((6, 8), F)])


def test_sizes_of_a_caller_that_trades_names() -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")

    def body(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        return summed((n, 8), (m,), lambda i, j, k: a[i, k] * b[k, j])

    program = function(body, ((n, m), F), ((m, 8), F))
    inputs = [relax.Var("x", relax.TensorType(shape, F)) for shape in ((m, n * 2), (n * 2, 8))]
    written, _ = in_caller_sizes(program, inputs, [relax.TensorType((m, 8), F)])
    double = n * 2
    assert [tuple(each.shape)[:1] for each in written.params[:2]] != [(n,), (m,)]
    assert_structural_equal(list(written.params[0].shape), [m, double])
    assert_structural_equal(list(written.params[1].shape)[:1], [double])
