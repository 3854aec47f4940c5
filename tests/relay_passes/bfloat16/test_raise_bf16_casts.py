"""raise_casts: where casts end up; values must not change by a bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.relax import op

from relay_passes.bfloat16.bf16_precision import raise_casts
from relay_passes.ir.graph import op_name
from relay_passes.ir.rules import rules
from relay_passes.quantize.move_quantization import open_tuples
from tests.relay_passes.graphs import Body, module, run

X = ((2, 6, 4), "float32")
RAISE = rules("raise", [raise_casts(), open_tuples])


def narrow(x: relax.Expr) -> relax.Expr:
    return op.astype(x, "bfloat16")


def both(value: relax.Expr) -> list[relax.Expr]:
    """The value rounded to bfloat16, and the value itself."""
    return [narrow(value), value]


def after_relu(body: Body) -> Body:
    """The body on a value that is computed in the block."""
    return lambda x: body(op.nn.relu(x))


def written(mod: IRModule) -> list[str]:
    """Operators of main with the types of their results, in order; "item" of a tuple."""
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not isinstance(value.ty, relax.TupleType):
                name = op_name(value).rsplit(".", 1)[-1] or "item"
                found.append(f"{name}:{value.ty.dtype}")
    return found


def check(body: Body, expected: list[str]) -> None:
    """The pass gives the expected operators and the same bits; a second run changes nothing."""
    before = module(body, X)
    after = RAISE(before)
    assert written(after) == expected
    same_bits(before, after)
    assert_structural_equal(RAISE(after), after)


def same_bits(before: IRModule, after: IRModule) -> None:
    x = np.random.default_rng(0).standard_normal(X[0]).astype(np.float32)
    for got, wanted in zip(run(after, [x]), run(before, [x]), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got.view(np.uint8), wanted.view(np.uint8))


def turn(x: relax.Expr) -> relax.Expr:
    return op.permute_dims(x, [0, 2, 1])


def flat(x: relax.Expr) -> relax.Expr:
    return op.reshape(x, (8, 6))


R32, C16 = "relu:float32", "astype:bfloat16"


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            after_relu(lambda x: narrow(flat(turn(x)))),
            [R32, C16, "permute_dims:bfloat16", "reshape:bfloat16"],
            id="above reshape and permutation",
        ),
        pytest.param(
            after_relu(lambda x: both(turn(x))),
            [R32, "permute_dims:float32", C16],
            id="a permutation is done once",
        ),
        pytest.param(
            after_relu(lambda x: both(flat(x))),
            [R32, "reshape:float32", C16, "reshape:bfloat16"],
            id="a reshape is done in both types",
        ),
        pytest.param(
            after_relu(lambda x: [narrow(x), op.negative(x), narrow(turn(x))]),
            [R32, C16, "negative:float32", "permute_dims:bfloat16"],
            id="one cast for all, next to what computes the value",
        ),
        pytest.param(
            lambda x: narrow(op.repeat(turn(x), 3, 1)),
            [C16, "permute_dims:bfloat16", "repeat:bfloat16"],
            id="of an input",
        ),
        pytest.param(
            lambda x: narrow(op.strided_slice(x, [1], [0], [1])),
            ["strided_slice:float32", C16],
            id="not all of an input for a part of it",
        ),
        pytest.param(
            after_relu(lambda x: narrow(op.exp(turn(x)))),
            [R32, "permute_dims:float32", "exp:float32", C16],
            id="not above arithmetic",
        ),
    ],
)
def test_where_casts_go(body: Body, expected: list[str]) -> None:
    check(body, expected)


def parts_of(x: relax.Expr) -> list[relax.Expr]:
    parts = op.split(op.nn.relu(x), 2, 2)
    return [relax.TupleGetItem(parts, i) for i in range(2)]


def test_above_a_split_of_which_all_parts_are_cast() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        first, second = parts_of(x)
        return [narrow(turn(first)), narrow(second)]

    check(body, [R32, C16, "item:bfloat16", "item:bfloat16", "permute_dims:bfloat16"])


def test_below_a_split_of_which_a_part_stays() -> None:
    def body(x: relax.Expr) -> list[relax.Expr]:
        first, second = parts_of(x)
        return [narrow(first), narrow(second), op.exp(second)]

    check(body, [R32, "item:float32", C16, "item:float32", C16, "exp:float32"])


def test_casts_from_other_types_stay() -> None:
    mod = module(lambda x: narrow(flat(op.astype(x, "int32"))), X)
    assert_structural_equal(RAISE(mod), mod)


IMAGE = ((1, 4, 6, 3), "float32")
KERNEL = np.random.default_rng(1).standard_normal((3, 3, 3, 3)).astype(ml_dtypes.bfloat16)


def conv(x: relax.Expr) -> relax.Expr:
    """A convolution whose image is rounded to bfloat16."""
    weight = relax.const(KERNEL, "bfloat16")
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    return op.nn.conv2d(narrow(x), weight, padding=1, out_dtype="float32", **layouts)


def largest(x: relax.Expr) -> relax.Expr:
    return op.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1), layout="NHWC")


def copies(x: relax.Expr) -> relax.Expr:
    return op.image.resize2d(x, (8, 12), layout="NHWC", method="nearest_neighbor")


CONV, BACK = "conv2d:float32", "astype:float32"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(
            after_relu(lambda x: conv(largest(x))), [R32, C16, "max_pool2d:bfloat16", CONV],
            id="above a pool",
        ),
        pytest.param(
            after_relu(lambda x: conv(copies(x))), [R32, C16, "resize2d:bfloat16", CONV],
            id="above copies of pixels",
        ),
        pytest.param(
            lambda x: conv(op.concat([op.nn.relu(x), op.exp(x)], 1)),
            [R32, "exp:float32", C16, C16, "concat:bfloat16", CONV],
            id="above a concat",
        ),
        pytest.param(
            after_relu(lambda x: op.add(conv(x), x)), [R32, C16, BACK, CONV, "add:float32"],
            id="a residual is read as it is stored",
        ),
        pytest.param(
            after_relu(lambda x: op.add(conv(largest(x)), largest(x))),
            [R32, C16, "max_pool2d:bfloat16", BACK, CONV, "add:float32"],
            id="a residual of a pool",
        ),
        pytest.param(
            after_relu(lambda x: [op.nn.relu(conv(x)), x]), [R32, C16, CONV, R32],
            id="an output stays",
        ),
        pytest.param(
            lambda x: conv(op.permute_dims(x, [0, 2, 1, 3])), ["permute_dims:float32", C16, CONV],
            id="a permuted input has no store to be rounded in",
        ),
    ],
)  # fmt: skip
def test_images(body: Body, expected: list[str]) -> None:
    after = RAISE(module(body, IMAGE))
    assert written(after) == expected
    assert_structural_equal(RAISE(after), after)


def test_images_keep_their_values() -> None:
    """Values stay, except that the residual is rounded, as if the model itself had rounded it."""

    def model(x: relax.Expr) -> relax.Expr:
        x = op.nn.relu(x)
        return conv(op.concat([largest(op.add(conv(x), x)), x], 1))

    def rounded(x: relax.Expr) -> relax.Expr:
        x = op.astype(narrow(op.nn.relu(x)), "float32")
        return conv(op.concat([largest(op.add(conv(x), x)), x], 1))

    image = np.random.default_rng(0).standard_normal(IMAGE[0]).astype(np.float32)
    (got,) = run(RAISE(module(model, IMAGE)), [image])
    (wanted,) = run(module(rounded, IMAGE), [image])
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_keep_every_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def body(x: relax.Expr) -> list[relax.Expr]:
        values = [(x, list(X[0]))]
        rounded = []
        for _ in range(10):
            y, shape = values[rng.integers(max(0, len(values) - 3), len(values))]
            kind = rng.integers(5)
            if kind == 0:
                order = [int(axis) for axis in rng.permutation(len(shape))]
                values.append((op.permute_dims(y, order), [shape[axis] for axis in order]))
            elif kind == 1:
                shape = [2, 24] if len(shape) == 3 else [2, 6, 4]
                values.append((op.reshape(y, shape), shape))
            elif kind == 2:
                rounded.append(narrow(y))
            elif kind == 3 and shape[-1] % 2 == 0:
                part = relax.TupleGetItem(op.split(y, 2, -1), int(rng.integers(2)))
                twice = op.repeat(part, 2, len(shape) - 1)
                values.append((twice, shape))
            else:
                values.append((op.nn.relu(op.negative(y)), shape))
        return [*rounded, narrow(values[-1][0]), values[-2][0]]

    before = module(body, X)
    same_bits(before, RAISE(before))
