"""Regions with dynamic sizes: their kernels, and the static regions at some sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from relay_passes.lower.kernel_pipelines import made_for
from tests.guard import guarded
from tests.stand_ins import running
from tests.tir_schedules.run_region import dtype_named, machine_for, packed
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.size import SymbolicSize, evaluated
from tir_schedules.core.template import template_for
from tvm_hybrid.runtime.feeds import tensor_of

BATCH, LENGTH = SymbolicSize.of("batch"), SymbolicSize.of("length")


def at_sizes(region: Region, values: Mapping[str, int]) -> Region:
    """The region where the symbols have these values."""

    def tensor(each: Tensor) -> Tensor:
        shape = tuple(evaluated(size, values) for size in each.shape)
        return Tensor(shape, each.dtype, each.constant)

    def attribute(value: Attribute) -> Attribute:
        if not isinstance(value, tuple):
            return value
        return tuple(evaluated(n, values) if isinstance(n, int) else n for n in value)  # type: ignore[return-value]

    return region.replace(
        inputs=tuple(map(tensor, region.inputs)),
        operands=tuple(map(tensor, region.operands)),
        output=tensor(region.output),
        attrs={name: attribute(value) for name, value in region.attrs.items()},
        parts=tuple(at_sizes(part, values) for part in region.parts),
    )


def dynamic_region(region: Region) -> Region:
    """A region with one or two dynamic leading dimensions."""
    *lead, _ = region.inputs[0].shape
    symbols = (BATCH, LENGTH)[: len(lead)]

    def tensor(each: Tensor) -> Tensor:
        shape, rank = list(each.shape), len(lead) + 1
        for axis, (size, symbol) in enumerate(zip(lead, symbols, strict=True), len(shape) - rank):
            if axis >= 0 and shape[axis] == size != 1:
                shape[axis] = symbol
        return Tensor(tuple(shape), each.dtype, each.constant)

    return region.replace(
        inputs=(tensor(region.inputs[0]), *region.inputs[1:]),
        operands=tuple(map(tensor, region.operands)),
        output=tensor(region.output),
    )


class DynamicKernel:
    """The kernel of a region with dynamic sizes."""

    def __init__(
        self, region: Region, isa: str, threads: int = 1, config: Config | None = None
    ) -> None:
        machine = machine_for(isa, threads)
        template = template_for(region.op)
        assert template.rejection(region, machine.isa) is None
        self.region, self.isa = region, machine.isa
        self.config = config or template.default_config(region, machine)
        function = made_for(template.build(region, self.config, machine.isa), threads)
        named = function.with_attr("global_symbol", "kernel")
        self.kernel = running.compiled(named, isa)["kernel"]

    def run(
        self,
        values: Mapping[str, int],
        arrays: Sequence[np.ndarray],
        at_end: bool = True,
        stored_shape: tuple[int, ...] | None = None,
    ) -> np.ndarray:
        """The output at given sizes, with every buffer placed against an unmapped page."""
        output = at_sizes(self.region, values).output
        shape = output.shape if stored_shape is None else stored_shape
        result = guarded(np.zeros(shape, dtype_named(output.dtype)), at_end)
        result[...] = 85 if result.dtype.kind in "iub" else np.nan
        inputs: list[Any] = packed(self.region, self.config, self.isa, arrays)
        self.kernel(*(tensor_of(guarded(x, at_end)) for x in inputs), tensor_of(result))
        return result
