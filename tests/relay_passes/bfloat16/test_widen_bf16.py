"""widen_bf16: bfloat16 models compute in f32 and round once; structure and values."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.relax import op

from relay_passes.bfloat16.widening import widen_bf16, widen_f16
from relay_passes.canonicalize.activations import formulas
from tests.relay_passes.graphs import Body, module, run

from .test_bf16_precision import operand_types

BF16 = np.dtype(ml_dtypes.bfloat16)
X = ((4, 8), "bfloat16")
RNG = np.random.default_rng(1)
W = RNG.standard_normal((8, 6)).astype(BF16)
B = RNG.standard_normal(6).astype(BF16)


def const(array: np.ndarray) -> relax.Expr:
    return relax.const(array, str(array.dtype))


def types(mod: IRModule) -> list[str]:
    """`operator:type` of every binding."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            name = value.op.name if isinstance(value, relax.Call) else type(value).__name__
            if not isinstance(value.ty, relax.TupleType):
                found.append(f"{name.rsplit('.', 1)[-1]}:{value.ty.dtype}")
    return found


def results(body: Body, x: np.ndarray, products: str = "bfloat16") -> list[np.ndarray]:
    return run(widen_bf16(products)(module(body, (x.shape, str(x.dtype)))), [x])


@pytest.mark.parametrize("operands", ["bfloat16", "float32"])
def test_a_convolution_and_what_follows_round_once(operands: str) -> None:
    kernel, bias = const(RNG.standard_normal((6, 8, 3, 3)).astype(BF16)), const(B.reshape(6, 1, 1))

    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.add(op.nn.conv2d(x, kernel, padding=1), bias))

    mod = widen_bf16(convolutions=operands)(module(body, ((1, 8, 4, 5), "bfloat16")))
    cast = ["astype:float32"] if operands == "float32" else []
    steps = ["conv2d:float32", "add:float32", "relu:float32", "astype:bfloat16"]
    assert types(mod) == cast + steps
    assert operand_types(mod) == [(operands, operands, "float32")]


def test_a_product_and_what_follows_round_once() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.nn.relu(op.add(op.matmul(x, const(W)), const(B)))

    mod = widen_bf16()(module(body, X))
    assert types(mod) == ["matmul:float32", "add:float32", "relu:float32", "astype:bfloat16"]
    assert operand_types(mod) == [("bfloat16", "bfloat16", "float32")]
    x = RNG.standard_normal((4, 8)).astype(BF16)
    exact = np.maximum(x.astype(np.float64) @ W.astype(np.float64) + B.astype(np.float64), 0)
    (result,) = results(body, x)
    assert result.dtype == BF16
    # The products are exact: 8 roundings of f32 sums below 64, then one to 8 bits.
    error = np.abs(result.astype(np.float64) - exact)
    assert (error <= 8 * 64 * 2.0**-24 + 2.0**-8 * exact).all()


def test_f32_products_have_f32_operands() -> None:
    mod = widen_bf16("float32")(module(lambda x: op.matmul(op.exp(x), const(W)), X))
    assert operand_types(mod) == [("float32",) * 3]
    assert types(mod) == ["astype:float32", "exp:float32", "matmul:float32", "astype:bfloat16"]


def test_moves_stay_narrow_until_something_is_computed() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        parts = op.split(op.permute_dims(x, [1, 0]), 2, 0)
        first, second = (relax.TupleGetItem(parts, i) for i in range(2))
        return [op.concat([second, first]), op.exp(first)]

    x = RNG.standard_normal((4, 8)).astype(BF16)
    mod = widen_bf16()(module(body, X))
    assert types(mod).count("astype:float32") == 1
    assert "concat:bfloat16" in types(mod)
    joined, powers = results(body, x)
    np.testing.assert_array_equal(joined, np.concatenate([x.T[4:], x.T[:4]]))
    wanted = np.exp(x.T[:4].astype(np.float64))
    # f32's exp moves a result over a tie by less than 2**-20; then one rounding to 8 bits.
    assert (np.abs(powers.astype(np.float64) - wanted) <= (2.0**-8 + 2.0**-20) * wanted).all()


def test_casts_of_the_model_round() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        return op.subtract(x, op.astype(op.astype(x, "bfloat16"), "float32"))

    x = RNG.standard_normal((4, 8)).astype(np.float32)
    (result,) = results(body, x)
    np.testing.assert_array_equal(result, x - x.astype(BF16).astype(np.float32))
    assert np.any(result)


def test_other_results_than_bfloat16() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        y = op.add(x, x)
        return [op.greater(y, x), op.astype(y, "int32"), op.argmax(y, 1), op.astype(y, "float32")]

    x = (RNG.standard_normal((4, 8)) * 100).astype(BF16)
    twice = 2 * x.astype(np.float32)
    above, whole, largest, wide = results(body, x)
    np.testing.assert_array_equal(above, x.astype(np.float32) > 0)
    np.testing.assert_array_equal(whole, twice.astype(np.int32))
    np.testing.assert_array_equal(largest, twice.argmax(1))
    np.testing.assert_array_equal(wide, twice)


def test_a_value_that_is_used_and_returned_is_rounded_for_the_caller() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        y = op.exp(x)
        return [y, op.permute_dims(y, [1, 0]), op.nn.softmax(y)]

    mod = widen_bf16()(module(body, X))
    assert [str(field.dtype) for field in mod["main"].ret_ty.fields] == ["bfloat16"] * 3
    x = RNG.standard_normal((4, 8)).astype(BF16)
    y, transposed, rows = results(body, x)
    np.testing.assert_array_equal(transposed, y.T)
    np.testing.assert_allclose(rows.astype(np.float32).sum(1), 1, atol=8 * 2.0**-9)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            lambda x: op.nn.layer_norm(x, const(B[:1].repeat(8)), const(B[:1].repeat(8)), [-1])
        ),
        pytest.param(lambda x: op.nn.gelu(op.clip(x, -1, 1))),
        pytest.param(lambda x: op.max(op.sum(x, [1], keepdims=True), [0])),
        pytest.param(lambda x: op.where(op.greater(x, op.negative(x)), x, op.zeros_like(x))),
    ],
    ids=["layer_norm", "gelu", "reductions", "where"],
)
def test_operators_that_tvm_has_no_bfloat16_for(body: Body) -> None:
    """Such operators are computed in f32, and their results are rounded once."""
    x = RNG.standard_normal((4, 8)).astype(BF16)
    (result,) = results(body, x)
    f32 = widen_bf16()(
        module(lambda y: op.astype(body(op.astype(y, "bfloat16")), "float32"), (X[0], "float32"))
    )
    (wanted,) = run(f32, [x.astype(np.float32)])
    np.testing.assert_array_equal(result, wanted.astype(BF16))


def test_f32_modules_stay() -> None:
    mod = module(lambda x: op.nn.relu(x), ((4, 8), "float32"))
    assert_structural_equal(widen_bf16()(mod), mod)


def test_it_is_done_after_one_run() -> None:
    once = widen_bf16()(
        module(lambda x: op.matmul(op.exp(op.matmul(x, const(W))), const(W.T.copy())), X)
    )
    assert_structural_equal(widen_bf16()(once), once)


def test_products_of_float16_are_of_float32() -> None:
    w = const(W.astype(np.float16))

    def body(x: relax.Expr) -> relax.Expr:
        return op.matmul(op.nn.relu(op.matmul(x, w)), op.permute_dims(w))

    mod = widen_f16()(module(body, ((4, 8), "float16")))
    assert operand_types(mod) == [("float32", "float32", "float32")] * 2
    assert [each for each in types(mod) if "float16" in each] == ["astype:float16"]
    x = RNG.standard_normal((4, 8)).astype(np.float16)
    wide = W.astype(np.float32)
    wanted = np.maximum(x.astype(np.float32) @ wide, 0) @ wide.T
    # A rounding of the result, of at most 64.
    np.testing.assert_allclose(run(mod, [x])[0].astype(np.float32), wanted, atol=0.02)


def test_a_rounding_that_torch_writes_behind_an_operator_of_float16() -> None:
    def body(x: relax.Expr) -> relax.Expr:
        wide = op.astype(x, "float32")
        y = op.astype(op.matmul(wide, const(W.astype(np.float32))), "float16")
        return op.nn.relu(y)

    mod = widen_f16()(module(body, ((4, 8), "float16")))
    assert types(mod) == ["astype:float32", "matmul:float32", "relu:float32", "astype:float16"]


HALF = ((4, 8), "float16")
NUMBERS = np.ones(8, np.float32)
Wide = Callable[[relax.Expr], relax.Expr]


def hard_swish(x: relax.Expr) -> relax.Expr:
    low = op.clip(op.add(x, const(np.float32(3))), 0, 6)
    return op.divide(op.multiply(x, low), const(np.float32(6)))


def grouped(x: relax.Expr) -> relax.Expr:
    ones = op.ones_like(const(NUMBERS))
    return op.nn.group_norm(x, ones, const(NUMBERS), 2, 1, [])


@pytest.mark.parametrize(
    ("wide", "rounds"),
    [
        (lambda x: op.nn.layer_norm(x, const(NUMBERS), const(NUMBERS), [-1]), False),
        (lambda x: op.nn.rms_norm(x, const(NUMBERS), [-1]), False),
        (grouped, False),
        (op.nn.silu, False),
        (hard_swish, False),
        (lambda x: op.sin(op.exp(x)), True),
        (lambda x: op.add(op.concat([op.split(x, 2, 1)[1], op.split(x, 2, 1)[0]], 1), x), True),
    ],
    ids=["layer_norm", "rms_norm", "group_norm", "silu", "hard_swish", "two operators", "a tuple"],
)
def test_an_operator_between_casts_is_one_of_float16(wide: Wide, rounds: bool) -> None:
    """A rounding that comes after several operators belongs to the model and stays."""

    def body(x: relax.Expr) -> relax.Expr:
        y = op.matmul(x, const(np.eye(8, dtype=np.float16)))
        y = op.astype(wide(op.astype(y, "float32")), "float16")
        return op.negative(y)

    casts = [
        each for each in types(widen_f16(formulas)(module(body, HALF))) if "astype:float16" in each
    ]
    assert len(casts) == 1 + rounds


def test_float16_without_products_and_sums_stays() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        return [op.nn.relu(op.exp(x)), op.max(x, 1), op.scatter_elements(x, INDICES, x, 1)]

    mod = module(body, ((4, 8), "float16"))
    assert_structural_equal(widen_f16()(mod), mod)


IMAGE = ((1, 8, 4, 4), "float16")
INDICES = const(np.zeros((4, 8), np.int64))
ROWS = const(np.zeros((8, 1), np.int64))
HALF_ONES = const(np.ones(8, np.float16))
KERNEL = const(np.ones((8, 1, 3, 3), np.float16))


def trained(x: relax.Expr) -> relax.Expr:
    call = op.nn.batch_norm(x, *[HALF_ONES] * 4, 1, training=True)
    return relax.TupleGetItem(call, 0)


@pytest.mark.parametrize(
    ("sums", "x"),
    [
        (lambda x: op.sum(x, [1]), HALF),
        (lambda x: op.mean(x, [1]), HALF),
        (lambda x: op.variance(x, [1]), HALF),
        (lambda x: op.std(x, [1]), HALF),
        (lambda x: op.prod(x, [1]), HALF),
        (lambda x: op.cumsum(x, 1), HALF),
        (lambda x: op.cumsum(x, 1, dtype="float16"), HALF),
        (lambda x: op.cumprod(x, 1, dtype="float16"), HALF),
        (lambda x: op.einsum(relax.Tuple([x]), "ij->i"), HALF),
        (lambda x: op.scatter_elements(x, INDICES, x, 1, reduction="add"), HALF),
        (lambda x: op.scatter_nd(x, ROWS, op.concat([x, x]), reduction="add"), HALF),
        (lambda x: op.nn.softmax(x), HALF),
        (lambda x: op.nn.log_softmax(x), HALF),
        (lambda x: op.nn.layer_norm(x, HALF_ONES, HALF_ONES, [-1]), HALF),
        (lambda x: op.nn.rms_norm(x, HALF_ONES, [-1]), HALF),
        (lambda x: op.nn.group_norm(x, HALF_ONES, HALF_ONES, 2, 1, [2, 3]), IMAGE),
        (lambda x: op.nn.instance_norm(x, HALF_ONES, HALF_ONES, 1, [2, 3]), IMAGE),
        (trained, IMAGE),
        (lambda x: op.nn.avg_pool2d(x, (3, 3)), IMAGE),
        (lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)), IMAGE),
        (lambda x: op.nn.conv2d_transpose(x, KERNEL, out_dtype="float16"), IMAGE),
        (lambda x: op.image.resize2d(x, (9, 9), layout="NCHW", method="linear"), IMAGE),
    ],
)
def test_sums_of_float16_are_of_float32(sums: Body, x: tuple[tuple[int, ...], str]) -> None:
    """The square before a sum and the root after it are f32, too: nothing is rounded in between."""

    def body(x: relax.Expr) -> relax.Expr:
        return op.sqrt(sums(op.multiply(x, x)))

    found = types(widen_f16()(module(body, x)))
    assert found[0] == "astype:float32" and found[-1] == "astype:float16"
    assert [each for each in found if "float16" in each] == ["astype:float16"]


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_product_that_is_moved_before_it_is_rounded(kind: str) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        wide = op.astype(x, "float32")
        product = op.reshape(op.matmul(wide, const(W.astype(np.float32))), (2, 2, 6))
        return op.nn.relu(op.astype(product, kind))

    widen = widen_bf16("float32") if kind == "bfloat16" else widen_f16()
    assert types(widen(module(body, ((4, 8), kind)))) == [
        "astype:float32",
        "matmul:float32",
        "reshape:float32",
        "relu:float32",
        f"astype:{kind}",
    ]


@pytest.mark.parametrize("constant", [True, False])
def test_a_bias_before_the_rounding_of_an_imported_product(constant: bool) -> None:
    def body(x: relax.Expr) -> relax.Expr:
        bias = const(B.astype(np.float32)) if constant else op.astype(const(B), "float32")
        product = op.matmul(x, const(W), out_dtype="float32")
        return op.nn.relu(op.astype(op.add(product, bias), "bfloat16"))

    assert types(widen_bf16()(module(body, X)))[-4:] == [
        "matmul:float32",
        "add:float32",
        "relu:float32",
        "astype:bfloat16",
    ]


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_indices_of_the_largest_elements_keep_their_type(kind: str) -> None:
    """Values are computed in f32 and rounded back; indices stay int32."""

    def body(x: relax.Expr) -> relax.Expr:
        pair = op.topk(op.cumsum(x, axis=1), 3)  # a sum makes the block float32
        return relax.Tuple([pair[0], pair[1]])

    widened = widen_f16() if kind == "float16" else widen_bf16()
    mod = widened(module(body, ((4, 8), kind)))
    assert [str(each.dtype) for each in mod["main"].ret_ty.fields] == [kind, "int32"]
    x = np.arange(32).reshape(4, 8).astype(BF16 if kind == "bfloat16" else np.float16)
    values, indices = run(mod, [x])
    np.testing.assert_array_equal(indices, np.tile(np.arange(7, 4, -1), (4, 1)))
    np.testing.assert_array_equal(values, np.cumsum(x.astype("f4"), 1)[:, :4:-1].astype(x.dtype))
