"""Reads a block that puts a number around a tensor, for what several blocks are together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, tirx

from relay_passes.ir.graph import is_call
from tir_schedules.generic.nest import Nest
from tir_schedules.tensorize.contraction import RefusedError

from .emission import Emission
from .tir_values import read_block


@dataclass(frozen=True)
class Padding:
    """A tensor with a number around it.

    Attributes
    ----------
    source : tirx.Var
        The tensor.
    widths : tuple of int
        How many numbers there are before and after each dimension.
    number : float
        0 if there is none.
    """

    source: tirx.Var
    widths: tuple[int, ...]
    number: float


def padding_of(nest: Nest) -> Padding | None:
    """What a block puts around a tensor; None if it does something else."""
    sources = {load.source for load in nest.reads()}
    if len(sources) != 1:
        return None
    (source,) = sources
    shape = list(source.shape)
    scratch, tensor = Emission(), relax.Var("x", relax.TensorType(shape, str(source.dtype)))
    try:
        value = read_block(scratch, {source: tensor}, nest)
    except RefusedError:
        return None
    if value.same_as(tensor):
        return Padding(source, (0,) * (2 * len(shape)), 0.0)
    call = scratch.definition(value)
    if not is_call(call, "relax.nn.pad") or not call.args[0].same_as(tensor):
        return None
    return Padding(source, tuple(map(int, call.attrs.pad_width)), float(call.attrs.pad_value))


def only_reader(nests: Sequence[Nest], position: int) -> int | None:
    """The only block that reads what one writes."""
    buffer = nests[position].stores[0].buffer
    readers = [
        number
        for number, nest in enumerate(nests)
        if number != position and any(load.source.same_as(buffer) for load in nest.reads())
    ]
    return readers[0] if len(readers) == 1 and readers[0] > position else None
