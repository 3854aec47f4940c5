"""Products of tensors with a scale per row by 8-bit weights become integer products."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.decisions import DecisionLog
from relay_passes.quantize.row_scales import row_scales
from tests.relay_passes.graphs import module, run
from tests.relay_passes.quantized import assert_becomes, assert_stays, constant, dequantize

op = relax.op
F = "float32"
RNG = np.random.default_rng(5)
W = RNG.integers(-128, 127, (6, 4), np.int8, endpoint=True)
STEPS = np.asarray([0.1, 0.2, 0.7, 0.3], np.float32)
Q, ROWS = ((2, 3, 6), "int8"), ((2, 3, 1), F)


def weight(values: np.ndarray = W, zero: int = 0) -> relax.Expr:
    dtype = str(values.dtype)
    return dequantize(relax.const(values), STEPS, [zero] * 4, dtype, 1)


def rows(q: relax.Expr, scale: relax.Expr, zero: relax.Expr | None = None) -> relax.Expr:
    wide = op.astype(q, F)
    return op.multiply(wide if zero is None else op.subtract(wide, zero), scale)


def scaled(total: relax.Expr, scale: relax.Expr) -> relax.Expr:
    return op.multiply(op.multiply(op.astype(total, F), relax.const(STEPS)), scale)


def product(q: relax.Expr, w: np.ndarray = W) -> relax.Expr:
    return op.matmul(op.astype(q, "int32"), op.astype(relax.const(w), "int32"), "int32")


def test_a_scale_for_every_row() -> None:
    before = module(lambda q, s: op.matmul(rows(q, s), weight()), Q, ROWS)
    after = module(lambda q, s: scaled(product(q), s), Q, ROWS)
    assert_becomes(before, row_scales()(), after)


def test_a_zero_point_for_every_row() -> None:
    def wanted(q: relax.Expr, s: relax.Expr, z: relax.Expr) -> relax.Expr:
        sums = constant(W.sum(axis=0, dtype=np.int32), "int32")
        term = op.multiply(op.astype(z, "int32"), sums)
        return scaled(op.subtract(product(q), term), s)

    before = module(lambda q, s, z: op.matmul(rows(q, s, z), weight()), Q, ROWS, ROWS)
    assert_becomes(before, row_scales()(), module(wanted, Q, ROWS, ROWS))


def test_rows_that_are_reshaped() -> None:
    def wanted(q: relax.Expr, s: relax.Expr) -> relax.Expr:
        emit = relax.BlockBuilder.current().emit  # in this order
        flat, column = emit(op.reshape(q, (6, 6))), emit(op.reshape(s, (6, 1)))
        return scaled(product(flat), column)

    before = module(lambda q, s: op.matmul(op.reshape(rows(q, s), (6, 6)), weight()), Q, ROWS)
    assert_becomes(before, row_scales()(), module(wanted, Q, ROWS))


def test_zero_points_of_the_weight() -> None:
    """The term of a row's zero point sums the weight minus the weight's zero point."""
    values = RNG.integers(0, 255, (6, 4), np.uint8, endpoint=True)
    before = module(lambda q, s, z: op.matmul(rows(q, s, z), weight(values, 99)), Q, ROWS, ROWS)
    q, s = RNG.integers(-128, 127, Q[0], np.int8), RNG.random(ROWS[0], np.float32)
    z = RNG.integers(-128, 127, ROWS[0]).astype(np.float32)
    after = row_scales()()(before)
    assert 'out_dtype="int32"' in after["main"].script()
    found, wanted = run(after, [q, s, z])[0], run(before, [q, s, z])[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-2)


LONG = np.full((70_000, 4), -128, np.int8)


@pytest.mark.parametrize(
    ("values", "depth", "axis", "reason"),
    [
        (LONG, 70_000, 1, "more than 32 bits"),
        (np.full((4, 4), 3, np.int8), 4, 0, "another axis than columns"),
    ],
)
def test_what_stays(values: np.ndarray, depth: int, axis: int, reason: str) -> None:
    def body(q: relax.Expr, s: relax.Expr) -> relax.Expr:
        w = op.dequantize(
            relax.const(values), relax.const(STEPS), constant([0] * 4, "int8"), axis, F
        )
        return op.matmul(rows(q, s), w)

    mod = module(body, ((3, depth), "int8"), ((3, 1), F))
    assert_stays(mod, row_scales()())
    log: DecisionLog = []
    row_scales(log)()(mod)
    assert [(each.op, each.taken) for each in log] == [("matmul", False)]
    assert reason in log[0].reason


def test_rows_that_are_cut_stay() -> None:
    """Each row of the product has elements of two rows with different scales."""
    cut = dequantize(relax.const(W.reshape(3, 8)), [0.1] * 8, [0] * 8, "int8", 1)
    mod = module(lambda q, s: op.matmul(op.reshape(rows(q, s), (12, 3)), cut), Q, ROWS)
    assert_stays(mod, row_scales()())


def test_a_scale_along_the_sum_stays() -> None:
    mod = module(lambda q, s: op.matmul(rows(q, s), weight()), Q, ((2, 3, 6), F))
    assert_stays(mod, row_scales()())
