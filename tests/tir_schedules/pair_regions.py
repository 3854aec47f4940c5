"""Depthwise convolutions and the matmuls that read them, as merged regions for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.tir_schedules.chain_regions import INPUT, ChainBuilder
from tests.tir_schedules.conv_regions import WEIGHTS
from tests.tir_schedules.depthwise_regions import depthwise
from tests.tir_schedules.integer_regions import matmul_region
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.size import SymbolicSize

CLIP = (("maximum", 0.0), ("minimum", 6.0))


def activated(region: Region, output: str, scale: float = 0.0, clip: bool = True) -> Region:
    """Bias and relu6; to 8 bits it is quantised with scale 1/32 and zero point 3.

    An integer result is first multiplied by `scale`.
    """
    bias = Tensor(region.output.shape[-1:], "float32")
    steps: list[EpilogueOp] = []

    def add(op: str, *args: int, **fields: Any) -> int:
        steps.append(EpilogueOp(op, args, **fields))
        return 1 + len(steps)

    value = 0
    if scale:
        value = add("multiply", add("cast", 0), add("constant", value=scale))
    value = add("add", value, 1)
    for op, limit in CLIP if clip else ():
        value = add(op, value, add("constant", value=limit))
    if output in ("uint8", "int8"):
        zero = add("constant", value=3.0)
        add("quantize", value, add("constant", value=1 / 32), zero, dtype=output)
    shape = region.output.shape
    return region.replace(operands=(bias,), epilogue=tuple(steps), output=Tensor(shape, output))


def pair(
    extents: tuple[int, ...],
    channels: int,
    n: int,
    kernel: tuple[int, ...] = (3, 3),
    dtype: str = "float32",
    residual: bool = False,
    last: str | None = None,
    clip: bool = True,
    **fields: Any,
) -> Region:
    """relu6(depthwise(x) + b) @ w + b', with the inner tensor and the result in x's type."""
    integer = dtype in ("uint8", "int8")
    if integer:
        fields = {"a_zero_point": 5, **fields}
    first = depthwise(extents, channels, kernel, dtype=dtype, **fields)
    first = activated(first, dtype, 2e-3 if integer else 0.0, clip)
    lead = first.output.shape[:-1]
    last = last or dtype
    if integer:
        second = matmul_region(lead, channels, n, dtype, a_zero=3)
    else:
        second = Region(
            op="matmul",
            inputs=(Tensor((*lead, channels), dtype), Tensor((channels, n), WEIGHTS[dtype], True)),
            output=Tensor((*lead, n), "float32"),
        )
    second = activated(second, last, 1e-3 if integer else 0.0, clip=False)
    if residual:
        steps = len(second.epilogue)
        moved = tuple(
            EpilogueOp(s.op, tuple(a + (a > 1) for a in s.args), s.value, s.dtype)
            for s in second.epilogue
        )
        second = second.replace(
            operands=(*second.operands, Tensor(second.output.shape, "float32")),
            epilogue=(*moved, EpilogueOp("add", (2 + steps, 2))),
        )
    chain = ChainBuilder([first.inputs[0]])
    chain.add(second, chain.add(first, INPUT))
    return chain.region().replace(op="depthwise_pointwise")


def dynamic_region(region: Region, axes: Sequence[int]) -> Region:
    """The pair with symbols for some axes of x, and other symbols for the result."""
    x, made = region.inputs[0], region.parts[0].output

    def of(tensor: Tensor) -> Tensor:
        """The tensor with symbols in its shape."""
        if tensor.shape[:-1] not in (x.shape[:-1], made.shape[:-1]):
            return tensor
        name = "x" if tensor.shape[:-1] == x.shape[:-1] else "y"
        shape = tuple(
            SymbolicSize.of(f"{name if axis else 'x'}{axis}") if axis in axes else size
            for axis, size in enumerate(tensor.shape)
        )
        return Tensor(shape, tensor.dtype, tensor.constant)

    def of_all(part: Region) -> Region:
        return part.replace(
            inputs=tuple(map(of, part.inputs)),
            operands=tuple(map(of, part.operands)),
            output=of(part.output),
        )

    return of_all(region).replace(parts=tuple(map(of_all, region.parts)))


def symbols(region: Region) -> Mapping[str, int]:
    """The values of all symbols for a static pair."""
    found = {f"y{axis}": size for axis, size in enumerate(region.parts[0].output.shape)}
    return found | {f"x{axis}": size for axis, size in enumerate(region.inputs[0].shape)}
