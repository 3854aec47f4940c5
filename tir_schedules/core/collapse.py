"""Collapses dimensions to the fewest under which a tensor and its operands broadcast alike.

    output (2, 128, 384), operands (2, 128, 384) and ()     ->  output (98304,)
    output (2, 128, 384), operand (384,)                    ->  output (256, 384)
    output (1, 64, 56, 56), operand (64, 1, 1)              ->  output (64, 3136), operand (64, 1)

Neighbouring dimensions become one if every operand either has both or broadcasts over both. Memory
does not change. An operand of which an "item" step reads a single element stays as it is. The
attribute "row" gives a number of elements; dimensions are not merged across rows of that many.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .region import Region, Tensor


def broadcasts(shape: Sequence[int], output: Sequence[int]) -> bool:
    """Whether a tensor broadcasts to an output, and not the other way round."""
    if len(shape) > len(output):
        return False
    aligned = output[len(output) - len(shape) :]
    return all(extent in (1, full) for extent, full in zip(shape, aligned, strict=True))


def item_operands(region: Region) -> set[int]:
    """Numbers of the operands of which single elements are read."""
    return {step.args[0] - 1 for step in region.epilogue if step.op == "item"}


def collapsed(region: Region) -> Region:
    """The region with as few dimensions as possible; its output has at least one.

    Parameters
    ----------
    region : Region
        Elementwise: its first input has the shape of the output, every operand broadcasts to it.
    """
    output = region.output.shape
    listed = item_operands(region)
    padded = {
        number: (1,) * (len(output) - len(tensor.shape)) + tensor.shape
        for number, tensor in enumerate(region.operands)
        if number not in listed
    }
    groups: list[list[int]] = []
    kinds: list[list[bool]] = []
    row = region.attrs.get("row")
    for axis, extent in enumerate(output):
        kind = [shape[axis] == 1 for shape in padded.values()]
        if extent == 1:
            continue
        if kinds and kind == kinds[-1] and math.prod(output[axis:]) != row:
            groups[-1].append(axis)
        else:
            groups.append([axis])
            kinds.append(kind)

    def merged(shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(math.prod(shape[axis] for axis in group) for group in groups)

    def seen(number: int, tensor: Tensor) -> Tensor:
        if number in listed:
            return tensor
        shape = () if tensor.size == 1 else merged(padded[number])
        return Tensor(shape, tensor.dtype, tensor.constant)

    x = region.inputs[0]
    flat = merged(output) or (1,)
    return region.replace(
        inputs=(Tensor(flat, x.dtype, x.constant), *region.inputs[1:]),
        output=Tensor(flat, region.output.dtype),
        operands=tuple(seen(number, tensor) for number, tensor in enumerate(region.operands)),
    )
