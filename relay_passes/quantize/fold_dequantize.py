"""Fold: dequantises biases and other small constants at compile time; weights stay 8 bits.

Before

    lv = R.dequantize(const_b, s, z)                    # int32 [N]
    lv1 = R.add(x, lv)

After

    lv1 = R.add(x, const_b')                            # f32 [N]
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.graph import DataflowGraph
from relay_passes.ir.quantization import Quantized, known_value, read_dequantize
from relay_passes.ir.rewrite import Bindings, value_pass


def fold_dequantize() -> ir.transform.Pass:
    """The pass; it folds constants of one axis or none, and those of 32 bits."""
    return value_pass("tvm_hybrid.fold_dequantize", _folded)


def _folded(_graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    read = _small_constant(call)
    value = None if read is None else known_value(read)
    return None if value is None else relax.const(value)


def _small_constant(call: relax.Expr) -> Quantized | None:
    """What a dequantisation that is to be folded reads; None if it is to stay."""
    read = read_dequantize(call)
    if read is None or not isinstance(read.data, ir.GenericConst) or read.dtype != "float32":
        return None
    small = read.data.ty.ndim <= 1 or read.data_dtype == "int32"
    return read if small else None
