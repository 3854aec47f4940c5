"""Values and reductions of blocks become operators that compute the block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, te, tirx

from relay_passes.lift.emission import Emission
from relay_passes.lift.lift_function import read_reduction
from relay_passes.lift.tir_values import read_block
from tests.examples import examples
from tests.relay_passes.graphs import run
from tests.tir_schedules.tensorize.programs import Tensor, function, summed
from tir_schedules.generic.nest import read_program
from tir_schedules.tensorize.arrangement import RefusedError

from .test_lift_programs import calling, randoms

F = "float32"
X = ((4, 6), F)


def number(value: float) -> Any:
    return tirx.const(value, F)


def read(body: Callable[..., Any], *inputs: Tensor) -> tuple[Any, list[str]]:
    """The operators that one block of a function becomes, as a module, and their names."""
    program = read_program(function(body, *inputs))
    block = Emission()
    given = [relax.Var(f"x{i}", relax.TensorType(*each)) for i, each in enumerate(inputs)]
    tensors = dict(zip(program.func.params, given, strict=False))
    (nest,) = program.nests
    result = (read_reduction if nest.reduce else read_block)(block, tensors, nest)
    names = [str(each.value.op.name).removeprefix("relax.") for each in block.bindings]
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        with builder.dataflow():
            for each in block.bindings:
                builder.emit_normalized(each)
            out = builder.emit_output(result)
        builder.emit_func_output(out)
    return builder.get(), names


def same(body: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The names of a block's operators, which must compute what the block does."""
    mod, names = read(body, *inputs)
    program = function(body, *inputs)
    out = program.params[-1]
    shape = tuple(int(extent) for extent in out.shape)
    arrays = randoms(*inputs)
    expected = run(calling(program, (shape, str(out.dtype)), *inputs), arrays)[0]
    np.testing.assert_allclose(run(mod, arrays)[0], expected, 1e-5, 1e-6)
    return names


CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[str]]] = {
    "relu": (
        lambda x: te.compute((4, 6), lambda i, j: tirx.max(x[i, j], number(0))),
        (X,),
        ["nn.relu"],
    ),
    "extremes": (
        lambda x, y: te.compute((4, 6), lambda i, j: tirx.min(tirx.max(x[i, j], y[j]), number(1))),
        (X, ((6,), F)),
        ["maximum", "minimum"],
    ),
    "turned": (lambda x: te.compute((6, 4), lambda j, i: x[i, j]), (X,), ["permute_dims"]),
    "repeated": (lambda x: te.compute((3, 4, 6), lambda n, i, j: x[i, j]), (X,), ["broadcast_to"]),
    "a column": (
        lambda x, y: te.compute((4, 6), lambda i, j: x[i, j] / y[i]),
        (X, ((4,), F)),
        ["reshape", "divide"],
    ),
    "a part": (lambda x: te.compute((2, 3), lambda i, j: x[i + 1, j * 2]), (X,), ["strided_slice"]),
    "backwards": (lambda x: te.compute((4, 6), lambda i, j: x[3 - i, j]), (X,), ["flip"]),
    "one row": (lambda x: te.compute((6,), lambda j: x[2, j]), (X,), ["strided_slice", "reshape"]),
    "zeros around": (
        lambda x: te.compute(
            (7, 6), lambda i, j: tirx.if_then_else(tirx.all(i >= 1, i < 5), x[i - 1, j], number(0))
        ),
        (X,),
        ["nn.pad"],
    ),
    "other axes": (
        lambda x: te.compute((3, 8), lambda i, j: x[(i * 8 + j) // 6, (i * 8 + j) % 6]),
        (X,),
        ["reshape"],
    ),
    "a choice": (
        lambda x: te.compute(
            (4, 6), lambda i, j: tirx.Select(x[i, j] > number(0), x[i, j], tirx.exp(x[i, j]))
        ),
        (X,),
        ["less", "exp", "where"],
    ),
    "a sum": (
        lambda x: summed((4,), (6,), lambda i, k: x[i, k] - number(1)),
        (X,),
        ["subtract", "sum", "reshape"],
    ),
    "a sum of columns": (
        lambda x: summed((6,), (4,), lambda j, k: x[k, j]),
        (X,),
        ["sum", "reshape"],
    ),
    "a sum in another order": (
        lambda x: summed((6, 4), (5,), lambda j, i, k: x[i, k, j]),
        (((4, 5, 6), F),),
        ["sum", "permute_dims", "reshape"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_operators(name: str) -> None:
    body, inputs, operators = CASES[name]
    assert same(body, *inputs) == operators


def test_a_maximum() -> None:
    def body(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis((0, 6), "k")
        return te.compute((4,), lambda i: te.max(x[i, k], axis=k))

    assert same(body, X) == ["max", "reshape"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda x, i, j: x[i, i], "a diagonal"),
        (lambda x, i, j: x[i, j] * tirx.Cast(F, j), "no operator computes"),
        (lambda x, i, j: x[i, tirx.floormod(i + j, 6)], "not linear in one axis"),
        (lambda x, i, j: tirx.if_then_else(i < 2, x[i, j], x[i, 0]), "no operator computes"),
    ],
)
def test_refusals(value: Callable[..., Any], reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        read(lambda x: te.compute((4, 6), lambda i, j: value(x, i, j)), X)


@examples(20, deadline=None)
@given(
    st.permutations(range(3)),
    st.tuples(*[st.tuples(st.integers(0, 2), st.integers(1, 2), st.booleans())] * 3),
    st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * 3),
)
def test_random_slices_and_pads(
    order: list[int], cuts: tuple[tuple[int, int, bool], ...], pads: tuple[tuple[int, int], ...]
) -> None:
    x = ((5, 6, 7), F)
    counts = [(e - 1 - s) // t + 1 for e, (s, t, _) in zip(x[0], cuts, strict=True)]

    def cut(source: te.Tensor) -> te.Tensor:
        def element(*place: Any) -> Any:
            index = [None] * 3
            for at, dimension in zip(place, order, strict=True):
                start, stride, turned = cuts[dimension]
                at = counts[dimension] - 1 - at if turned else at
                index[dimension] = at * stride + start
            return source[tuple(index)]

        return te.compute([counts[dimension] for dimension in order], element)

    def pad(source: te.Tensor) -> te.Tensor:
        shape = [b + e + a for e, (b, a) in zip(x[0], pads, strict=True)]

        def element(*place: Any) -> Any:
            inside = [
                condition
                for at, extent, (before, _) in zip(place, x[0], pads, strict=True)
                for condition in (at >= before, at < before + extent)
            ]
            index = [at - before for at, (before, _) in zip(place, pads, strict=True)]
            return tirx.if_then_else(tirx.all(*inside), source[tuple(index)], number(2))

        return te.compute(shape, element)

    assert set(same(cut, x)) <= {"strided_slice", "flip", "permute_dims", "reshape"}
    assert set(same(pad, x)) <= {"nn.pad"}
