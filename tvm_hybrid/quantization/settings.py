"""How a model is quantised for our kernels.

Products are of uint8 by int8. Weights are int8 without zero points, with a scale for each column or
output channel: that costs nothing, the scale is part of the epilogue. Activations are uint8 with a
zero point, whose share of the sums is computed once. The form is QDQ, which says where values
are rounded; biases are int32 in the steps of the sums.

Where convolutions are, what lies between them stays in 8 bits too, since memory is what residual
additions and pools cost. A transformer's activations and norms stay float32: they are part of the
kernels around them there, and are what quantisation hurts most.

Weights of 7 bits let CPUs without VNNI add pairs of products in 16 bits without saturation, which
takes three instructions instead of four; with VNNI they gain nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from microkernels.base.errors import QuantizeError
from microkernels.isa import Isa
from relay_passes.pipeline_options import check_option

MODES = ("static", "dynamic", "weights")
RANGES = ("auto", "full", "reduced")
CALIBRATIONS = ("minmax", "entropy", "percentile")
BITS = (4, 8)
PRODUCTS = ("MatMul", "Gemm")
CONVOLUTIONS = ("Conv", "ConvTranspose")
# They are part of the quantisation behind a product, whose range begins at 0 then.
RECTIFIERS = ("Relu", "Clip")
BETWEEN = (
    *("Add", "Mul", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool"),
    *("Concat", "Split", "Pad", "Resize", "Reshape", "Transpose", "Squeeze", "Unsqueeze"),
)
_VNNI = frozenset({"avx512vnni", "avxvnni"})
QUANTIZED = frozenset(
    {
        *("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm"),
        *("MatMulInteger", "ConvInteger", "MatMulNBits", "DynamicQuantizeMatMul"),
        *("MatMulIntegerToFloat", "DynamicQuantizeLSTM"),
    }
)


@dataclass(frozen=True)
class Settings:
    """What the quantiser is asked for.

    Attributes
    ----------
    mode : {"static", "dynamic", "weights"}
    operators : tuple of str
        The operators that are quantised.
    exclude : tuple of str
        Names of nodes that stay as they are.
    reduced : bool
        Whether weights have 7 bits.
    calibration : {"minmax", "entropy", "percentile"}
        How the range of an activation follows from the samples; static alone.
    bits, block : int
        Bits of a weight, and how many share a scale; weights alone.
    """

    mode: str
    operators: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    reduced: bool = False
    calibration: str = "minmax"
    bits: int = 4
    block: int = 32

    def __str__(self) -> str:
        if self.mode == "weights":
            return f"MatMulNBits, {self.bits} bits, a scale for each {self.block} weights"
        form = f"QDQ, {self.calibration}" if self.mode == "static" else "dynamic"
        kinds = ", ".join(self.operators)
        bits = 7 if self.reduced else 8
        return f"{form}, uint8 x int8 of {bits} bits by column; {kinds}"


def settings_for(
    model: onnx.ModelProto,
    isa: Isa,
    *,
    mode: str,
    bits: int,
    block: int,
    weight_range: str,
    calibration: str,
    operators: Sequence[str] | None,
    exclude: Sequence[str],
) -> Settings:
    """The settings for a model and an instruction set; arguments are those of `quantize`.

    Raises
    ------
    QuantizeError
        If the model is quantised already, has no node that is to be excluded or none to quantise.
    CompileError
        If an option is not one of those that there are.
    """
    check_option("mode", mode, MODES)
    check_option("weight_range", weight_range, RANGES)
    check_option("calibration", calibration, CALIBRATIONS)
    if bits not in BITS:
        raise QuantizeError(f"weights have 4 or 8 bits, not {bits}")
    if block < 16 or block & (block - 1):
        raise QuantizeError(f"a block is a power of two from 16 up, not {block}")
    nodes = model.graph.node
    done = next((node for node in nodes if node.op_type in QUANTIZED), None)
    if done is not None:
        raise QuantizeError(
            f"the model is quantised already: it has {done.op_type} {done.name!r}; give the "
            "float32 model"
        )
    unknown = sorted(set(exclude) - {node.name for node in nodes})
    if unknown:
        raise QuantizeError(
            f"there is no node {', '.join(map(repr, unknown))} to exclude; "
            "`tvm-hybrid explain` lists the nodes"
        )
    present = {node.op_type for node in nodes}
    wanted = tuple(operators) if operators else _operators(mode, present)
    if not present & {*wanted}:
        raise QuantizeError(
            f"nothing to quantise: the model has no {' or '.join(wanted)} "
            f"(it has {', '.join(sorted(present)) or 'no nodes'})"
        )
    if mode == "static" and not operators:
        wanted += tuple(name for name in RECTIFIERS if name in present and name not in wanted)
    reduced = weight_range == "reduced" or (
        weight_range == "auto" and mode != "weights" and not _VNNI & {*isa.features}
    )
    return Settings(
        mode, wanted, tuple(exclude), reduced, calibration=calibration, bits=bits, block=block
    )


def _operators(mode: str, present: set[str]) -> tuple[str, ...]:
    if mode in ("weights", "dynamic") or not present & {*CONVOLUTIONS}:
        return PRODUCTS
    return tuple(name for name in (*CONVOLUTIONS, *PRODUCTS, *BETWEEN) if name in present)
