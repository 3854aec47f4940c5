"""The product or convolution of a program, as far as a schedule has to know it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer

from microkernels.base.errors import ConfigError
from tir_schedules.generic.expressions import const_int, substitute

from .workload import LAYOUT_FREE, anchor_block

Block = Any
_WEIGHT = 1  # its second input


@dataclass(frozen=True)
class ProgramAnchor:
    """The only block of a program with a reduction.

    Attributes
    ----------
    block : SBlockRV
        The block.
    name : str
        Its name.
    leading : int
        Axes before rows and columns: batches, or images and their lines.
    m, n, k : int
        Rows, columns and steps; of a convolution the positions of a line, and channels.
    products : int
        How many products of these sizes there are: batches, or lines times taps.
    dtypes : tuple of str
        Of the first input, the second one and the result.
    stride : int
        Positions between the windows of neighbouring rows; 1 for a product.
    padded : bool
        Whether another block writes an input.
    constant : bool
        Whether the second input is a constant that may be packed beforehand.
    may_pad : tuple of bool
        Whether rows, columns and steps may be padded.
    """

    block: Block
    name: str
    leading: int
    m: int
    n: int
    k: int
    products: int
    dtypes: tuple[str, str, str]
    stride: int
    padded: bool
    constant: bool
    may_pad: tuple[bool, bool, bool]


def read_anchor(schedule: Schedule) -> ProgramAnchor:
    """The anchor of a program that `workload_of` wrote, or one like it.

    Raises
    ------
    ConfigError
        If it has none, or several, or one that is no product and no convolution of all channels.
    """
    name = anchor_block(schedule)
    if name is None:
        raise ConfigError("not one block with a reduction")
    block = schedule.get_sblock(name)
    found = schedule.get(block)
    spatial, reduction = _axes(found.iter_vars)
    if len(found.reads) != 2:
        raise ConfigError(f"a block that reads {len(found.reads)} tensors")
    m, n, k = (_extent(axis) for axis in (spatial[-2], spatial[-1], reduction[-1]))
    others = (*spatial[:-2], *reduction[:-1])
    einsum = len(reduction) == 1
    tensors = (found.reads[0], found.reads[1], found.writes[0])
    a, b, c = (str(region.source.ty.dtype) for region in tensors)
    constant = _is_free(schedule, found.reads[_WEIGHT].source)
    return ProgramAnchor(
        block=block,
        name=name,
        leading=len(spatial) - 2,
        m=m,
        n=n,
        k=k,
        products=math.prod(map(_extent, others)),
        dtypes=(a, b, c),
        stride=1 if einsum else _window_stride(found, spatial, reduction),
        padded=bool(schedule.get_producers(block)),
        constant=constant,
        may_pad=_may_pad(b, einsum, constant),
    )


def _axes(found: Sequence[tirx.IterVar]) -> tuple[list[tirx.IterVar], list[tirx.IterVar]]:
    """The block's spatial and reduction axes, which come in this order."""
    axes = list(found)
    spatial = [axis for axis in axes if axis.iter_type == tirx.IterVar.DataPar]
    reduction = [axis for axis in axes if axis.iter_type == tirx.IterVar.CommReduce]
    if len(spatial) < 2 or not reduction or axes != [*spatial, *reduction]:
        raise ConfigError(f"{len(spatial)} axes and {len(reduction)} reductions")
    return spatial, reduction


def _extent(axis: tirx.IterVar) -> int:
    extent = const_int(axis.dom.extent)
    if extent is None:
        raise ConfigError(f"{axis.dom.extent} passes, known at run time only")
    return extent


def _window_stride(block: Any, spatial: list[tirx.IterVar], reduction: list[tirx.IterVar]) -> int:
    """Positions between the windows of neighbouring rows.

    Raises
    ------
    ConfigError
        If the anchor is no convolution of all channels.
    """
    read = block.reads[0].region
    position, channel = (read[index].min for index in (-2, -1))
    at: dict[tirx.Var, Any] = {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in reduction}
    at[spatial[-2].var] = tirx.const(1, spatial[-2].var.ty.dtype)
    stride = const_int(Analyzer().simplify(substitute(position, at)))
    if not stride:
        raise ConfigError("a block that is neither a product nor a convolution")
    if not Analyzer().can_prove_equal(channel, reduction[-1].var):
        raise ConfigError("groups of channels")
    return stride


def _is_free(schedule: Schedule, weight: tirx.Buffer) -> bool:
    """Whether a program says that its weight is a constant that may be packed beforehand."""
    function = schedule.mod["main"]
    free = [int(index) for index in function.attrs.get(LAYOUT_FREE, ())]
    return any(function.params[index].same_as(weight) for index in free)


def _may_pad(weight_dtype: str, einsum: bool, constant: bool) -> tuple[bool, bool, bool]:
    """Whether rows, columns and steps may be padded.

    Padded copies of bfloat16 do not survive TVM's lowering (its bfloat16 legalisation gives them
    another type, but not what is read from them as bits); only what a constant weight's packing
    pads leaves the program before.
    """
    if weight_dtype == "bfloat16":
        return False, einsum and constant, False
    return einsum, einsum, einsum
