"""AMX fp16: TDPFP16PS. Subnormal operands count; sums are those of TDPBF16PS, in f32."""

from __future__ import annotations

from tvm import tirx

from microkernels.vector.expressions import Expr, cast, lanes_of

from .amx_family import register_amx_blocks


def _dot_by_widening(accumulator: Expr, a: Expr, b: Expr) -> Expr:
    """Two f32 products a lane, of the even and of the odd numbers of the pairs."""
    for parity in range(2):
        lanes = [tirx.const(2 * lane + parity, "int32") for lane in range(lanes_of(accumulator))]
        x, y = (cast("float32", tirx.Shuffle([pairs], lanes)) for pairs in (a, b))
        accumulator = accumulator + x * y
    return accumulator


register_amx_blocks(
    "fp16",
    "float16",
    "float16",
    "float32",
    "tdpfp16ps",
    _dot_by_widening,
    isa_name="amx_fp16",
)
