"""Sizes that fused functions take as scalars move into their shape argument."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tvm import IRModule, relax, te, tirx
from tvm.ir import assert_structural_equal

import tvm_hybrid
from microkernels.base.tvm_compat.relax import FUSED
from relay_passes.legalize.schedule_generic import scalars_in_shapes
from tests.onnx_builder import OnnxBuilder

WITH_SHAPE, MOVED, WITHOUT_SHAPE = [["past"], ["n"]], [[], ["n", "past"]], [["past"], []]


def places(start: tirx.Expr, x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i: start + i + x[i], "places")


def fused(forms: Sequence[Sequence[str]]) -> IRModule:
    """main(p: [past], x: [n]) calls a function that adds past + i to x[i].

    Parameters
    ----------
    forms : two sequences of str
        Sizes that the function takes as scalars, and sizes in a shape argument after x.
    """
    builder = relax.BlockBuilder()
    numbers, shape = forms

    def inputs() -> tuple[dict[str, tirx.Var], list[relax.Var]]:
        sizes = {name: tirx.Var(name, "int64") for name in ("past", "n")}
        names = zip("px", sizes.values(), strict=True)
        return sizes, [relax.Var(name, relax.TensorType((n,), "int64")) for name, n in names]

    sizes, (_, x) = inputs()
    parameters = [*(sizes[name] for name in numbers), x]
    if shape:
        parameters.append(relax.Var("sizes", relax.ShapeType([sizes[name] for name in shape])))
    with builder.function("fused", parameters, attrs={FUSED: True}, private=True):
        with builder.dataflow():
            result = builder.emit_output(builder.call_te(places, sizes["past"], x))
        callee = builder.emit_func_output(result)
    sizes, (p, x) = inputs()
    args = [*(sizes[name] for name in numbers), x]
    if shape:
        args.append(relax.ShapeExpr([sizes[name] for name in shape]))
    with builder.function("main", [p, x]):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(callee, args))
        builder.emit_func_output(result)
    return builder.get()


def test_numbers_go_into_the_shape() -> None:
    assert_structural_equal(scalars_in_shapes()(fused(WITH_SHAPE)), fused(MOVED))


@pytest.mark.parametrize("forms", [MOVED, WITHOUT_SHAPE])
def test_a_function_stays_that_takes_only_one_of_them(forms: Sequence[Sequence[str]]) -> None:
    assert_structural_equal(scalars_in_shapes()(fused(forms)), fused(forms))


def test_a_range_from_one_size_on_is_fused_with_what_uses_it() -> None:
    build = OnnxBuilder(17)
    p, x = build.input("p", ["past"]), build.input("x", ["n"])
    zero, one = build.constant(0, np.int64), build.constant(1, np.int64)
    past, n = (build.node("Gather", build.node("Shape", each), zero) for each in (p, x))
    positions = build.node("Range", past, build.node("Add", past, n), one)
    build.output(build.node("Neg", positions), None, np.int64)
    program = tvm_hybrid.compile(build.model(), num_threads=1, keep_dynamic=True)
    (kernel,) = (each.function for each in program.manifest.decisions)
    assert kernel.startswith("fused_arange")
    for past_rows, rows in ((3, 5), (0, 2), (4, 1), (7, 0)):
        feeds = {"p": np.zeros(past_rows, np.float32), "x": np.zeros(rows, np.float32)}
        (found,) = program.run(feeds)
        np.testing.assert_array_equal(found.numpy(), -np.arange(past_rows, past_rows + rows))
