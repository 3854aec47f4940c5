"""Integers minus their zero points: as operators, as constants, and their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from relay_passes.ir.quantization import (
    Quantized,
    along_axis,
    centred,
    known_centred,
    known_value,
    largest,
    largest_sums,
    read_dequantize,
)
from relay_passes.ir.rewrite import Bindings

Q = np.array([[0, 255, 7], [128, 3, 250]], np.uint8)
SCALES = np.array([0.5, 0.25, 2.0], np.float32)
ZEROS = np.array([128, 0, 7], np.uint8)


def dequantized(scale: np.ndarray, zero: np.ndarray, q: relax.Expr | None = None) -> Quantized:
    data = relax.const(Q) if q is None else q
    call = relax.op.dequantize(data, relax.const(scale), relax.const(zero), axis=1)
    found = read_dequantize(relax.BlockBuilder().normalize(call))
    assert found is not None
    return found


def test_what_constants_stand_for_is_computed() -> None:
    quantized = dequantized(SCALES, ZEROS)
    centred_q = Q.astype(np.int32) - ZEROS
    np.testing.assert_array_equal(known_centred(quantized), centred_q)
    np.testing.assert_array_equal(known_value(quantized), centred_q.astype(np.float32) * SCALES)


def test_values_that_are_not_constant_are_not_known() -> None:
    q = relax.Var("q", relax.TensorType(Q.shape, "uint8"))
    quantized = dequantized(SCALES, ZEROS, q)
    assert known_centred(quantized) is None and known_value(quantized) is None


@pytest.mark.parametrize(("zero", "operators"), [(None, 1), (0, 1), (7, 2)])
def test_a_zero_point_of_0_takes_no_operator(zero: int | None, operators: int) -> None:
    block = Bindings()
    q = relax.Var("q", relax.TensorType(Q.shape, "uint8"))
    result = centred(block.emit, q, None if zero is None else relax.const(zero, "uint8"))
    assert len(block.bindings) == operators and str(result.ty.dtype) == "int32"


def test_bounds_hold() -> None:
    constant = dequantized(np.float32(1), np.uint8(100))
    assert largest(constant) == 155
    q = relax.Var("q", relax.TensorType(Q.shape, "uint8"))
    unknown = dequantized(np.float32(1), np.uint8(200), q)
    assert largest(unknown) == 200
    weights = np.array([[1, -2], [3, 4]], np.int32)
    np.testing.assert_array_equal(largest_sums(unknown, weights, 1), [800, 1200])


def test_parameters_broadcast_along_their_axis() -> None:
    assert along_axis(SCALES, 3, 1).shape == (1, 3, 1)
    assert along_axis(SCALES[:1], 3, 1).shape == ()
