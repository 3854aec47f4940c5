"""Fold: dequantises biases and other small constants at compile time; weights stay 8 bits.

Before

    lv = R.dequantize(const_b, s, z)                    # int32 [N]
    lv1 = R.add(x, lv)

After

    lv1 = R.add(x, const_b')                            # f32 [N]
"""

from __future__ import annotations

import numpy as np
from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph
from relay_passes.ir.quantization import Quantized, read_dequantize
from relay_passes.ir.rewrite import Bindings, value_pass


def fold_dequantize() -> ir.transform.Pass:
    """The pass; it folds constants of one axis or none, and those of 32 bits."""
    return value_pass("tvm_hybrid.fold_dequantize", _folded)


def _folded(_graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    read = _small_constant(call)
    return None if read is None else relax.const(_value(read))


def _small_constant(call: relax.Expr) -> Quantized | None:
    """What a dequantisation that is to be folded reads; None if it is to stay."""
    read = read_dequantize(call)
    if read is None or not isinstance(read.data, ir.GenericConst) or read.dtype != "float32":
        return None
    small = read.data.ty.ndim <= 1 or read.data_dtype == "int32"
    return read if small and read.quantization.known is not None else None


def _value(read: Quantized) -> np.ndarray:
    """What a constant stands for, rounded where the operator rounds."""
    known = read.quantization.known
    assert known is not None
    integers = read.data.value.numpy()
    shape = [1] * integers.ndim
    if read.quantization.axis is not None:
        shape[read.quantization.axis] = -1
    scale, zero_point = (x.reshape(shape) if x.size != 1 else x.reshape(()) for x in known)
    return (integers.astype(np.int32) - zero_point.astype(np.int32)).astype(np.float32) * scale
