"""Products of float16 keep their operands only where tiles of fp16 are faster."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal
from tvm.relax import op

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.bfloat16.bf16_precision import raise_casts
from relay_passes.bfloat16.narrow_products import (
    HALF_PRODUCT,
    SLOWER,
    half_products,
    narrow_products,
)
from relay_passes.bfloat16.widening import widen_f16
from relay_passes.ir.decisions import DecisionLog
from tests.relay_passes.graphs import Body, module

from .test_bf16_precision import operand_types

GNR = Machine("graniterapids", isa_named("amx_fp16"))
SPR = Machine("sapphirerapids", isa_named("amx"))
RNG = np.random.default_rng(0)
UNKNOWN = "a size is dynamic or 0, or an operand is a vector"
HALF, WIDE = ("float16", "float16", "float32"), ("float32",) * 3


def weight(*shape: int) -> relax.Expr:
    return relax.const(RNG.standard_normal(shape).astype(np.float16))


def kept(mod: IRModule, machine: Machine = GNR) -> tuple[IRModule, list[str]]:
    """The widened module, and the reasons that were noted."""
    decisions: DecisionLog = []
    found = widen_f16(keeps=half_products(machine, decisions))(mod)
    assert all(each.op == HALF_PRODUCT for each in decisions)
    return found, [each.reason.partition(": ")[2] for each in decisions]


def test_two_products_round_what_is_between_once() -> None:
    w, v, x = weight(64, 96), weight(64, 96), ((32, 64), "float16")

    def before(x: relax.Expr) -> relax.Expr:
        return op.matmul(op.nn.relu(op.matmul(x, w)), op.permute_dims(v))

    def after(x: relax.Expr) -> relax.Expr:
        hidden = op.nn.relu(op.matmul(x, w, out_dtype="float32"))
        turned = op.permute_dims(v)
        product = op.matmul(op.astype(hidden, "float16"), turned, out_dtype="float32")
        return op.astype(product, "float16")

    found, reasons = kept(module(before, x))
    assert reasons == []
    assert_structural_equal(found, module(after, x))


def test_products_that_torch_writes_in_float32_read_float16() -> None:
    w, x = RNG.standard_normal((64, 96)).astype(np.float16), ((32, 64), "float16")
    wide, narrow = (relax.const(w.astype(each)) for each in ("float32", "float16"))
    mod = module(lambda x: op.matmul(op.astype(x, "float32"), wide), x)
    wanted = module(lambda x: op.matmul(x, narrow, out_dtype="float32"), x)
    found = narrow_products("float16")()(mod)
    assert_structural_equal(relax.transform.DeadCodeElimination()(found), wanted)
    other = relax.const((w + np.float32(2.0**-20)).astype(np.float32))
    kept_wide = module(lambda x: op.matmul(op.astype(x, "float32"), other), x)
    assert_structural_equal(narrow_products("float16")()(kept_wide), kept_wide)


def test_without_tiles_of_fp16_nothing_changes() -> None:
    mod = module(lambda x: op.matmul(x, weight(64, 64)), ((32, 64), "float16"))
    found, reasons = kept(mod, SPR)
    assert_structural_equal(found, widen_f16()(mod))
    assert reasons == []


def product(x: relax.Expr, y: relax.Expr) -> relax.Expr:
    return op.matmul(x, y)


def windowed(groups: int) -> Body:
    return lambda x: op.nn.conv2d(x, weight(64, 64 // groups, 3, 3), padding=1, groups=groups)


@pytest.mark.parametrize(
    ("body", "shapes", "reason"),
    [
        (product, [(2, 32, 64), (2, 64, 32)], None),
        (product, [(2, 4, 64), (2, 64, 32)], "the matrices of its batch have few rows"),
        (product, [(32, 64), (64, 64)], "the weight is not a constant"),
        (lambda x: op.matmul(x, weight(3, 2)), [(2, 3)], SLOWER),
        (windowed(1), [(1, 64, 14, 14)], None),
        (windowed(64), [(1, 64, 14, 14)], "a convolution in groups"),
        (lambda x: op.nn.conv2d(x, weight(64, 64, 1, 1)), [(1, 64, 14, 14)], None),
        (product, [(tirx.Var("n", "int64"), 64), (64, 64)], UNKNOWN),
    ],
)
def test_which_products_are_kept(body: Body, shapes: list, reason: str | None) -> None:
    found, reasons = kept(module(body, *((shape, "float16") for shape in shapes)))
    assert operand_types(found) == [HALF if reason is None else WIDE]
    assert reasons == ([] if reason is None else [reason])


def test_casts_rise_past_reshapes() -> None:
    def before(x: relax.Expr) -> relax.Expr:
        moved = op.permute_dims(op.reshape(op.exp(x), (4, 2, 8)), [1, 0, 2])
        return op.astype(op.astype(moved, "float16"), "float32")

    def after(x: relax.Expr) -> relax.Expr:
        narrow = op.astype(op.exp(x), "float16")
        moved = op.permute_dims(op.reshape(narrow, (4, 2, 8)), [1, 0, 2])
        return op.astype(moved, "float32")

    x = ((4, 16), "float32")
    assert_structural_equal(raise_casts("float16")()(module(before, x)), module(after, x))
