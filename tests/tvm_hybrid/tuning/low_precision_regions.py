"""8-bit integer and bfloat16 regions, one of every kind that the tuner may meet."""

from __future__ import annotations

from tests.tir_schedules.integer_regions import matmul_region
from tir_schedules.core.attributes import Numbers
from tir_schedules.core.region import EpilogueOp, Region, Tensor

F32 = "float32"
QUANTIZE = (
    EpilogueOp("constant", value=0.02),
    EpilogueOp("constant", value=131.0),
    EpilogueOp("quantize", (0, 1, 2), dtype="uint8"),
)
SCALES = Tensor((33,), F32)
DEQUANTIZE = (EpilogueOp("cast", (0,)), EpilogueOp("multiply", (2, 1)))
OWN_RANGE = (
    EpilogueOp("cast", (0,)),
    EpilogueOp("range", value=0.0),
    EpilogueOp("multiply", (4, 1)),
    EpilogueOp("multiply", (3, 5)),
    EpilogueOp("add", (6, 2)),
    EpilogueOp("gelu", (7,)),
)
ITEM = (
    EpilogueOp("cast", (0,)),
    EpilogueOp("item", (1,), value=0.0),
    EpilogueOp("multiply", (4, 2)),
    EpilogueOp("multiply", (3, 5)),
)
RESIDUAL_REQUANTIZED = (
    EpilogueOp("cast", (0,)),
    EpilogueOp("multiply", (3, 1)),
    EpilogueOp("constant", value=0.037),
    EpilogueOp("constant", value=12.0),
    EpilogueOp("dequantize", (2, 5, 6)),
    EpilogueOp("add", (4, 7)),
    EpilogueOp("constant", value=0.05),
    EpilogueOp("constant", value=101.0),
    EpilogueOp("quantize", (8, 9, 10), dtype="uint8"),
)
GELU_REQUANTIZED = (
    *DEQUANTIZE,
    EpilogueOp("gelu", (3,)),
    EpilogueOp("constant", value=0.017),
    EpilogueOp("constant", value=9.0),
    EpilogueOp("quantize", (4, 5, 6), dtype="uint8"),
)


def product(
    a: str,
    b: str,
    out: str,
    axes: Numbers = (0, 1, 3, 2),
    steps: tuple[EpilogueOp, ...] = (),
    **attrs: str | int,
) -> Region:
    """The first product of attention; B [1, 2, 21, 18] is read transposed."""
    return Region(
        op="batch_matmul",
        inputs=(Tensor((1, 2, 13, 18), a), Tensor((1, 2, 21, 18), b)),
        output=Tensor((1, 2, 13, 21), out),
        attrs={"b_axes": axes, **attrs},
        epilogue=steps,
    )


def weight_only(bits: int, zeros: bool) -> Region:
    """[5, 70] times a weight quantised in blocks of 32."""
    per_block = (Tensor((3, 1, 40), F32, True),) * (2 if zeros else 1)
    return Region(
        op="weight_only_matmul",
        inputs=(Tensor((5, 70), F32), Tensor((70, 40), "uint8", True), *per_block),
        output=Tensor((5, 40), F32),
        attrs={"bits": bits, "block": 32} | ({} if zeros else {"zero_point": 2 ** (bits - 1)}),
    )


def elementwise(x: str, out: str, steps: tuple[EpilogueOp, ...], *operands: Tensor) -> Region:
    """An elementwise region on a tensor of [3, 37]."""
    return Region(
        op="elementwise",
        inputs=(Tensor((3, 37), x),),
        operands=operands,
        output=Tensor((3, 37), out),
        epilogue=steps,
    )


REGIONS: dict[str, Region] = {
    "u8 s8": matmul_region((9,), 70, 33),
    "s8 u8, zero points": matmul_region((9,), 70, 33, "int8", "uint8", -17, 99),
    "zero points at run time and of columns": matmul_region(
        (7,), 65, 33, "uint8", "uint8", "input", "input"
    ),
    "range at run time": matmul_region(
        (2, 5),
        64,
        33,
        a_zero="range",
        operands=(Tensor((2,), F32), SCALES),
        output=Tensor((2, 5, 33), F32),
        epilogue=ITEM,
    ),
    "requantised with a residual": matmul_region(
        (9,),
        70,
        33,
        a_zero=3,
        operands=(SCALES, Tensor((9, 33), "int8")),
        output=Tensor((9, 33), "uint8"),
        epilogue=RESIDUAL_REQUANTIZED,
    ),
    "requantised after a function": matmul_region(
        (40,),
        70,
        33,
        a_zero=120,
        operands=(SCALES,),
        output=Tensor((40, 33), "uint8"),
        epilogue=GELU_REQUANTIZED,
    ),
    "quantised by the kernel": matmul_region(
        (9,),
        70,
        33,
        "int8",
        "int8",
        5,
        0,
        0.037,
        operands=(SCALES,),
        epilogue=DEQUANTIZE,
        output=Tensor((9, 33), F32),
    ),
    "quantised by a range": matmul_region((9,), 70, 33, "uint8", "int8", "range", 0, "range"),
    "dynamic": matmul_region(
        (9,),
        70,
        33,
        a_zero="dynamic",
        quantized="dynamic",
        operands=(SCALES, SCALES),
        output=Tensor((9, 33), F32),
        epilogue=OWN_RANGE,
    ),
    "reshaped": matmul_region(
        (6,),
        70,
        33,
        operands=(SCALES,),
        output=Tensor((2, 3, 33), "bfloat16"),
        epilogue=(*DEQUANTIZE, EpilogueOp("cast", (3,), dtype="bfloat16")),
    ),
    "batches of integers": product("uint8", "uint8", "int32", a_zero_point=118, b_zero_point=127),
    "bfloat16 by constant": Region(
        op="matmul",
        inputs=(Tensor((9, 70), F32), Tensor((70, 33), "bfloat16", True)),
        operands=(SCALES,),
        output=Tensor((9, 33), "bfloat16"),
        epilogue=(
            EpilogueOp("add", (0, 1)),
            EpilogueOp("gelu", (2,)),
            EpilogueOp("cast", (3,), dtype="bfloat16"),
        ),
    ),
    "batches rounded to bfloat16": product(F32, F32, F32, rounded="bfloat16"),
    "batches, one of them bfloat16": product("bfloat16", F32, "bfloat16", rounded="bfloat16"),
    "quantise": elementwise(F32, "uint8", QUANTIZE),
    "quantise by operands": elementwise(
        F32,
        "int8",
        (EpilogueOp("quantize", (0, 1, 2), dtype="int8"),),
        Tensor((37,), F32),
        Tensor((37,), "int8"),
    ),
    "quantise by a range": elementwise(
        F32,
        "uint8",
        (
            EpilogueOp("item", (1,), value=0.0),
            EpilogueOp("item", (1,), value=1.0),
            EpilogueOp("quantize", (0, 2, 3), dtype="uint8"),
        ),
        Tensor((2,), F32),
    ),
    "dequantise by operands": elementwise(
        "uint8", F32, (EpilogueOp("dequantize", (0, 1, 2)),), Tensor((), F32), Tensor((), "uint8")
    ),
    "round to bfloat16": elementwise(
        F32, "bfloat16", (EpilogueOp("cast", (0,), dtype="bfloat16"),)
    ),
    "range": Region(
        op="quantization_range", inputs=(Tensor((5, 37), F32),), output=Tensor((2,), F32)
    ),
    "float product, quantised": Region(
        op="matmul",
        inputs=(Tensor((9, 70), F32), Tensor((70, 33), F32, True)),
        output=Tensor((9, 33), "uint8"),
        epilogue=QUANTIZE,
    ),
    "softmax, quantised": Region(
        op="softmax",
        inputs=(Tensor((4, 37), F32),),
        output=Tensor((4, 37), "uint8"),
        attrs={"axis": 1},
        epilogue=(
            EpilogueOp("constant", value=1 / 1023),
            EpilogueOp("constant", value=0.0),
            EpilogueOp("quantize", (0, 1, 2), dtype="uint8"),
        ),
    ),
    "layer_norm, bfloat16": Region(
        op="layer_norm",
        inputs=(Tensor((4, 37), F32), Tensor((37,), F32, True), Tensor((37,), F32, True)),
        output=Tensor((4, 37), "bfloat16"),
        attrs={"axis": 1, "epsilon": 1e-5},
        epilogue=(EpilogueOp("cast", (0,), dtype="bfloat16"),),
    ),
    "layer_norm, quantised": Region(
        op="layer_norm",
        inputs=(Tensor((4, 37), F32), Tensor((37,), F32, True), Tensor((37,), F32, True)),
        output=Tensor((4, 37), "uint8"),
        attrs={"axis": 1, "epsilon": 1e-5},
        epilogue=QUANTIZE,
    ),
    "weight of 4 bits": weight_only(4, zeros=False),
    "weight of 8 bits, zero points": weight_only(8, zeros=True),
}
