"""A reshape that joins a dynamic axis with static ones is fused with its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax, tirx

from microkernels.base.tvm_compat.relax import INJECTIVE, OP_PATTERN
from relay_passes.ir.graph import is_call
from relay_passes.legalize.schedule_generic import legalize_operators
from relay_passes.legalize.shapes import joined
from relay_passes.lower_module import lower_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module, run

H, W = (tirx.Var(name, "int64") for name in "hw")


def depth_to_space() -> IRModule:
    """[2, h, w, 12] -> [2, 2 * h, 1, 2 * w, 3]"""

    def body(x: relax.Expr) -> relax.Expr:
        parts = relax.op.reshape(x, relax.ShapeExpr([2, H, W, 2, 2, 3]))
        turned = relax.op.permute_dims(parts, [0, 1, 3, 2, 4, 5])
        return relax.op.reshape(turned, relax.ShapeExpr([2, H * 2, 1, 2 * W, 3]))

    return module(body, ((2, H, W, 12), "float32"))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (4, 1)])
def test_a_dynamic_axis_joins_static_ones(size: tuple[int, int]) -> None:
    x = np.random.default_rng(0).standard_normal((2, *size, 12)).astype(np.float32)
    (found,) = run(legalize_operators()(depth_to_space()), [x])
    turned = x.reshape(2, *size, 2, 2, 3).transpose(0, 1, 3, 2, 4, 5)
    np.testing.assert_array_equal(found, turned.reshape(2, 2 * size[0], 1, 2 * size[1], 3))


def test_it_is_fused_with_the_permutation_before() -> None:
    mod = legalize_operators()(depth_to_space())
    patterns = {
        var.name_hint: function.attrs.get(OP_PATTERN)
        for var, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
    }
    assert patterns["reshape1"] == INJECTIVE
    mod = relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(mod))
    assert "fused_transpose_reshape1" in {var.name_hint for var in mod.get_global_vars()}


def spectra() -> IRModule:
    """Rows of [h // 8, 4, 6] transposed, and rows of it as it is."""

    def body(x: relax.Expr, _: relax.Expr) -> list[relax.Expr]:
        frames = x.ty.shape[0]
        turned = relax.op.permute_dims(x, [0, 2, 1])
        rows = relax.ShapeExpr([frames, 24])
        return [relax.op.sqrt(relax.op.reshape(turned, rows)), relax.op.reshape(x, rows)]

    return module(body, ((tirx.floordiv(H, 8), 4, 6), "float32"), ((H,), "float32"))  # type: ignore[arg-type]


def test_views_of_quotients_are_fused_or_copy_nothing() -> None:
    """TVM takes both for views of any size, which it never fuses."""
    lowered = lower_module(spectra(), PipelineOptions(TARGET))
    calls = [binding.value for block in lowered["main"].body.blocks for binding in block.bindings]
    (kernel,) = (call for call in calls if is_call(call, "relax.call_tir"))
    assert "transpose" in kernel.args[0].name_hint and "sqrt" in kernel.args[0].name_hint
    assert sum(is_call(call, "relax.reshape") for call in calls) == 1


@pytest.mark.parametrize("length", [0, 7, 8, 31])
def test_views_of_quotients(length: int) -> None:
    x = np.random.default_rng(0).random((length // 8, 4, 6), np.float32)
    lowered = lower_module(spectra(), PipelineOptions(TARGET))
    roots, rows = run(lowered, [x, np.zeros(length, np.float32)])
    np.testing.assert_array_equal(rows, x.reshape(-1, 24))
    turned = x.transpose(0, 2, 1).reshape(-1, 24)
    np.testing.assert_array_equal(roots, np.sqrt(turned))  # sqrt is rounded correctly


def test_groups_of_axes() -> None:
    sizes = [tirx.const(n, "int64") for n in (1, 2, 3, 6)]
    one, two, three, six = sizes
    assert joined([H, two, three], [H * 6]) == [[0, 1, 2]]
    assert joined([H, two, W, three, one], [H * 2, one, W * 3]) == [[0, 1], [], [2, 3]]
    assert joined([two, three, W], [six, W]) == [[0, 1], [2]]
    assert joined([H, six], [H, two, three]) is None  # a split
    assert joined([H, W], [H * W]) is None
    assert joined([H, two], [W]) is None
