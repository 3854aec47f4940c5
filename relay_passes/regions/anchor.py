"""Anchor: the operator from which a region grows, as a matcher describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm import relax

from relay_passes.ir.graph import DataflowGraph, region_tensor
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Tensor


@dataclass(frozen=True)
class Anchor:
    """A call that a template can build.

    Attributes
    ----------
    position : int
        Where its binding stands in the block.
    op : str
        The template's name.
    inputs : tuple of relax.Expr
        What the kernel reads, in the template's order.
    attrs : dict
        For the region.
    output : Tensor
        The anchor's result.
    absorbed : tuple of int
        Positions of bindings between `inputs` and the call.
    otherwise : str
        Another template, for what the first one rejects; "" if there is none.
    open_weight : int or None
        Which of the inputs is packed as a constant is, although its value is given at run time.
    """

    position: int
    op: str
    inputs: tuple[relax.Expr, ...]
    output: Tensor
    attrs: dict[str, Attribute] = field(default_factory=dict)
    absorbed: tuple[int, ...] = ()
    otherwise: str = ""
    open_weight: int | None = None

    def region(self) -> Region | None:
        """The region without an epilogue; None if a shape is not known."""
        tensors = [region_tensor(expr) for expr in self.inputs]
        if any(tensor is None for tensor in tensors):
            return None
        inputs = tuple(
            Tensor(tensor.shape, tensor.dtype, tensor.constant or number == self.open_weight)
            for number, tensor in enumerate(tensors)
            if tensor is not None
        )
        return Region(op=self.op, inputs=inputs, output=self.output, attrs=self.attrs)


Matcher = Callable[[DataflowGraph, int, relax.Call], "Anchor | str | None"]
