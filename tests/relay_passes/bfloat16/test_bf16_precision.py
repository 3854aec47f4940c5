"""bf16_precision: which products take bfloat16 operands, and which ones stay f32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import ir, relax, tirx
from tvm.relax import op

from relay_passes.bfloat16 import bf16_precision as rounding
from relay_passes.canonicalize.constants import fold_weights
from relay_passes.ir.graph import op_name
from relay_passes.ir.rules import rules
from tests.relay_passes.graphs import Body, constant, module

X = ((4, 16), "float32")


def bf16_precision(convolutions: bool = True) -> ir.transform.Pass:
    """The pass with constants rounded and common values computed once."""
    group = rules("bf16", [rounding.bf16_precision(convolutions), fold_weights])
    once = relax.transform.EliminateCommonSubexpr(), relax.transform.CanonicalizeBindings()
    return ir.transform.Sequential([group, *once])


def products(mod: ir.IRModule) -> list[relax.Call]:
    """The matrix products and convolutions of main."""
    values = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    names = ("relax.matmul", "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv2d_transpose")
    return [value for value in values if op_name(value) in names]


def operand_types(mod: ir.IRModule) -> list[tuple[str, ...]]:
    """Types of operands and result of every product."""
    return [tuple(str(e.ty.dtype) for e in (*call.args, call)) for call in products(mod)]


def test_constants_are_rounded_now_to_nearest_even() -> None:
    ties = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 3e38, 1e-40, 0.1], np.float32)
    mod = bf16_precision()(
        module(lambda x: op.matmul(x, relax.const(ties.reshape(1, 6))), ((2, 1), "float32"))
    )
    (call,) = products(mod)
    assert operand_types(mod) == [("bfloat16", "bfloat16", "float32")]
    rounded = call.args[1].value.numpy()
    assert rounded.dtype == ml_dtypes.bfloat16
    wanted = np.array([1, 1 + 2.0**-6, -1, 3e38, 1e-40, 0.1]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(rounded.ravel().view(np.uint16), wanted.view(np.uint16))


def test_one_cast_for_all_who_read_a_value_and_everything_else_stays_f32() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        q, k = op.matmul(x, constant(16, 8)), op.matmul(x, constant(16, 8, seed=1))
        scores = op.nn.softmax(op.matmul(q, op.permute_dims(k, [1, 0])))
        return op.add(op.matmul(scores, x), op.add(x, constant(16)))

    mod = bf16_precision()(module(body, X))
    assert operand_types(mod) == [("bfloat16", "bfloat16", "float32")] * 4
    casts = [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if op_name(binding.value) == "relax.astype"
    ]
    assert (
        len(casts) == len({cast.args[0] for cast in casts}) == 4
    )  # x, q, the transposed k, scores
    others = [
        binding.var
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if op_name(binding.value) != "relax.astype"
    ]
    assert {str(var.ty.dtype) for var in others} == {"float32"}


def conv2d(x: relax.Expr, w: relax.Expr, **attrs: Any) -> relax.Expr:
    attrs = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 0, 1, 2), **attrs}
    return op.nn.conv2d(x, w, **attrs)


IMAGE = ((1, 6, 7, 4), "float32")


def test_convolutions() -> None:
    """Convolutions with any groups take bfloat16 operands and keep their other attributes."""

    def body(x: relax.Expr) -> list[relax.Expr]:
        line = op.reshape(x, (6, 7, 4))
        return [
            conv2d(x, constant(3, 3, 4, 8), strides=(2, 1)),
            conv2d(x, constant(3, 3, 1, 4), groups=4, dilation=(2, 2)),
            op.nn.conv1d(line, constant(3, 4, 8), data_layout="NWC", kernel_layout="WIO"),
        ]

    before = module(body, IMAGE)
    after = bf16_precision()(before)
    assert operand_types(after) == [("bfloat16", "bfloat16", "float32")] * 3
    for old, new in zip(products(before), products(after), strict=True):
        for name in ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout"):
            assert getattr(old.attrs, name) == getattr(new.attrs, name)


def test_a_weight_of_run_time_is_rounded_then() -> None:
    mod = module(lambda x: conv2d(x, op.reshape(op.exp(x), (2, 3, 4, 7))), IMAGE)
    after = bf16_precision()(mod)
    assert operand_types(after) == [("bfloat16", "bfloat16", "float32")]
    assert after["main"].script().count("R.astype") == 2


def by_channel_of_run_time(x: relax.Expr) -> relax.Expr:
    """A depthwise convolution whose weight is computed from x at run time."""
    pixels = op.strided_slice(op.reshape(op.exp(x), (42, 4)), [0], [0], [6])
    return conv2d(x, op.reshape(pixels, (2, 3, 1, 4)), groups=4)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            lambda x: op.nn.conv2d(op.permute_dims(x, [0, 3, 1, 2]), constant(8, 4, 3, 3)),
            id="channels first",
        ),
        pytest.param(by_channel_of_run_time, id="of each channel, a weight of run time"),
        pytest.param(
            lambda x: op.nn.conv2d_transpose(
                x, constant(3, 3, 4, 8), data_layout="NHWC", kernel_layout="HWIO"
            ),
            id="transposed",
        ),
    ],
)
def test_convolutions_that_stay(body: Body) -> None:
    assert operand_types(bf16_precision()(module(body, IMAGE))) == [("float32",) * 3]


def test_convolutions_and_products_of_pixels_may_stay() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        line = op.reshape(x, (42, 4))
        pixels = op.matmul(x, constant(4, 8))
        return [conv2d(x, constant(3, 3, 4, 8)), pixels, op.matmul(line, constant(4, 8))]

    narrow, wide = ("bfloat16", "bfloat16", "float32"), ("float32",) * 3
    mod = module(body, IMAGE)
    assert operand_types(bf16_precision()(mod)) == [narrow] * 3
    assert operand_types(bf16_precision(convolutions=False)(mod)) == [wide, wide, narrow]


def decoded(x: relax.Expr) -> relax.Expr:
    """A product by an 8-bit weight, x @ ((w - 3) * scale)."""
    stored = relax.const(np.arange(64, dtype=np.int8).reshape(2, 8, 4))
    wide = op.subtract(op.astype(stored, "float32"), relax.const(np.float32(3)))
    return op.matmul(x, op.reshape(op.multiply(wide, constant(2, 1, 4)), (16, 4)))


def integers(x: relax.Expr) -> relax.Expr:
    """An integer product of x."""
    q = op.astype(op.round(x), "int32")
    return op.matmul(q, relax.const(np.ones((16, 4), np.int32)))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(decoded, id="decoded weight"),
        pytest.param(integers, id="integers"),
        pytest.param(lambda x: op.matmul(x, constant(16)), id="vector"),
        pytest.param(lambda x: op.nn.softmax(op.add(x, constant(16))), id="no product"),
        pytest.param(
            lambda x: op.matmul(op.astype(x, "float64"), relax.const(np.ones((16, 4)), "float64")),
            id="double",
        ),
    ],
)
def test_what_stays(body: Body) -> None:
    mod = relax.transform.DeadCodeElimination()(module(body, X))
    before, after = operand_types(mod), operand_types(bf16_precision()(mod))
    assert before == after
    assert all("bfloat16" not in types for types in after)


def product_of(x_type: relax.TensorType) -> ir.IRModule:
    x = relax.Var("x", x_type)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.matmul(x, constant(16, 4)))
        builder.emit_func_output(result)
    return builder.get()


N = tirx.Var("n", "int64")


@pytest.mark.parametrize("rows", [N, tirx.floordiv(N, 2)], ids=["n", "n // 2"])
def test_any_number_of_rows_is_rounded(rows: tirx.Expr) -> None:
    mod = product_of(relax.TensorType((rows, 16), "float32"))
    assert operand_types(bf16_precision()(mod)) == [("bfloat16", "bfloat16", "float32")]


def test_unknown_sizes_stay() -> None:
    mod = product_of(relax.TensorType(dtype="float32", ndim=2))
    assert operand_types(bf16_precision()(mod)) == [("float32",) * 3]
