"""Weight only: rewrites products with a dequantised constant so that it stays at 8 bits.

Before

    lv = R.dequantize(const_w, s, z, axis=1)            # int8 [K, N], s: f32 [N]
    lv1 = R.matmul(x, lv)                               # x: f32

After

    lv = R.astype(R.reshape(const_w, [1, K, N]), "float32")
    lv1 = R.multiply(R.subtract(lv, z'), s')            # z', s': f32 [1, 1, N]; no z' if it is 0
    lv2 = R.matmul(x, R.reshape(lv1, [K, N]))

A weight with K / b blocks, each with its own scales, has the same form; here b is K. A scale that
differs along K would mean blocks of one row and as many scales as weights, so such weights stay as
they are. The weight's value is the same, bit for bit.
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from microkernels.base.arrays import RANGES
from relay_passes.ir.graph import DataflowGraph, op_name, static_tensor
from relay_passes.ir.quantization import Quantized, read_dequantize
from relay_passes.ir.rewrite import Bindings, value_pass


def weight_only_matmul() -> ir.transform.Pass:
    """The pass; it needs A-normal form, and comes after `integer_matmul`."""
    return value_pass("tvm_hybrid.weight_only_matmul", _by_blocks)


def _by_blocks(graph: DataflowGraph, block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The product with its weight written as blocks; None for anything else."""
    weight = _weight(graph, call)
    return None if weight is None else relax.op.matmul(call.args[0], _emit(block, weight))


def _weight(graph: DataflowGraph, call: relax.Expr) -> Quantized | None:
    """The quantised constant weight of a f32 matmul; None if it has none, or per row."""
    if op_name(call) != "relax.matmul" or str(call.ty.dtype) != "float32":
        return None
    weight = read_dequantize(graph.definition(call.args[1]))
    if weight is None or weight.data_dtype not in RANGES or weight.dtype != "float32":
        return None
    tensor = static_tensor(weight.data)
    if tensor is None or not tensor.constant or len(tensor.shape) != 2:
        return None
    constant = weight.quantization.known is not None
    return weight if constant and weight.quantization.axis in (None, 1) else None


def _emit(block: Bindings, weight: Quantized) -> relax.Expr:
    known = weight.quantization.known
    assert known is not None
    scale, zero_point = (array.astype(np.float32).reshape(1, 1, -1) for array in known)
    rows, columns = map(int, weight.data.value.shape)
    integers = block.emit(relax.op.reshape(weight.data, (1, rows, columns)))
    value = block.emit(relax.op.astype(integers, "float32"))
    if zero_point.any():
        value = block.emit(relax.op.subtract(value, _row(zero_point, columns)))
    value = block.emit(relax.op.multiply(value, _row(scale, columns)))
    return block.emit(relax.op.reshape(value, (rows, columns)))


def _row(array: np.ndarray, columns: int) -> relax.Expr:
    """A constant [1, 1, N]."""
    return relax.const(np.ascontiguousarray(np.broadcast_to(array, (1, 1, columns))))
