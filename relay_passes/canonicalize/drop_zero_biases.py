"""Drops biases of zeros.

Before

    lv = R.matmul(x, w)
    gv = R.add(lv, R.zeros([64]))                   # a constant

After

    gv = R.matmul(x, w)

torch's ONNX exporter writes one at each convolution that has no bias. No sum of a product is -0.0,
as all of them begin with 0.0: what is dropped would not change it.
"""

from __future__ import annotations

from tvm import ir, relax

from relay_passes.ir.algebra import uniform_constant
from relay_passes.ir.convolution import is_convolution
from relay_passes.ir.graph import DataflowGraph, is_call, same_shape
from relay_passes.ir.rewrite import Bindings, value_pass


def drop_zero_biases() -> ir.transform.Pass:
    """The pass; it needs A-normal form."""
    return value_pass("tvm_hybrid.drop_zero_biases", _product)


def _product(graph: DataflowGraph, _block: Bindings, call: relax.Expr) -> relax.Expr | None:
    """The product that zeros are added to; None if a value is no such sum."""
    if not is_call(call, "relax.add"):
        return None
    for value, bias in (call.args, reversed(call.args)):
        product = graph.definition(value)
        if product is None or not (is_call(product, "relax.matmul") or is_convolution(product)):
            continue
        if uniform_constant(bias) == 0 and same_shape(value, call):
            return value
    return None
