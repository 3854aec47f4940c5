"""Template "elementwise": an epilogue applied to a tensor, for operators between other regions.

    y = epilogue(x)        such as quantize(dequantize(a) + dequantize(b)), or a quantisation alone

x is float32, bfloat16, or an integer that is held as int32 lanes. Dimensions are collapsed first
(`collapse`), mostly to one long row. The loops go over full vectors (`elementwise_loops`; for sizes
that are known at run time only, `open_elementwise`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from tvm import tirx

from microkernels.base.integers import RANGES
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from tir_schedules.core.collapse import broadcasts, collapsed, item_operands
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.emission import kernel_function, operand_parameters, tensor_parameter
from tir_schedules.core.extents import read_extents
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, register_template
from tir_schedules.cost.parallel import LEAST_MOVED, alone_below, threads_worth
from tir_schedules.epilogue.epilogue import Epilogue, rows_and_columns
from tir_schedules.epilogue.packed_bytes import LANES as PACKED_LANES

from .elementwise_loops import Loops
from .normalize_view import reshaped
from .open_elementwise import OpenLoops

OPERATION_CYCLES = 0.925  # of one operator, for a vector
X_DTYPES = ("float32", "bfloat16", "uint8", "int8", "int32")


class ElementwiseConfig(Config, frozen=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    unroll : int
        Vectors in one iteration.
    threads : int
        Threads that share the work.
    alone : int
        Up to so many numbers of open sizes, one thread does all.
    """

    unroll: int
    threads: int = 1
    alone: int = 0


class Elementwise(Template[ElementwiseConfig]):
    """An epilogue applied to a tensor."""

    name = "elementwise"
    config_type = ElementwiseConfig

    def default_config(self, region: Region, machine: Machine) -> ElementwiseConfig:
        """A configuration by closed formula; no tuning is needed."""
        open_sizes = region.is_open
        region = region.sampled()
        rows, n = rows_and_columns(collapsed(region).output)
        lanes = machine.isa.f32_lanes
        cost = Epilogue(region, ()).cost
        packed = region.output.dtype in RANGES and lanes == PACKED_LANES  # four at a time
        unroll = 4 if cost <= 12 or (packed and cost <= 32) else 2 if cost <= 24 else 1
        cycles = rows * math.ceil(n / lanes) * (2 + cost) * OPERATION_CYCLES
        us = cycles / machine.cycles_per_us
        if open_sizes:  # the sizes that arrive decide whether threads are worth it
            alone = alone_below(machine, us / (rows * n), LEAST_MOVED)
            return ElementwiseConfig(min(unroll, max(1, n // lanes)), machine.threads, alone)
        threads = threads_worth(machine, us, LEAST_MOVED)
        return ElementwiseConfig(unroll=min(unroll, max(1, n // lanes)), threads=threads)

    def space(self, region: Region, machine: Machine) -> Iterator[ElementwiseConfig]:
        """The default, then other numbers of vectors in one iteration."""
        default = self.default_config(region, machine)
        yield default
        for unroll in (1, 2, 4, 8):
            if unroll != default.unroll:
                yield ElementwiseConfig(unroll, default.threads, default.alone)

    def check(self, region: Region, config: ElementwiseConfig, isa: Isa) -> None:
        """Refuses a configuration that is not legal.

        Raises
        ------
        ConfigError
            Saying which field is out of range.
        """
        check_numbers(region, config, {"unroll": 32, "threads": 4096})

    def build(self, region: Region, config: ElementwiseConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel: x, operands, output."""
        self.check(region, config, isa)
        flat = collapsed(region)
        rows, n = rows_and_columns(flat.output)
        with kernel_function(region.op) as builder:
            source = region.inputs[0]
            x = tensor_parameter("X", source)
            given = operand_parameters(region)
            y = tensor_parameter("Y", region.output)
            if region.is_open:
                read_extents()
            operands = [
                reshaped(buffer, tensor, seen.shape)
                for buffer, tensor, seen in zip(given, region.operands, flat.operands, strict=True)
            ]
            kind = OpenLoops if region.is_open else Loops
            loops = kind(
                n,
                isa.f32_lanes,
                config.unroll,
                source.dtype,
                reshaped(x, source, (rows, n)),
                reshaped(y, region.output, (rows, n)),
                Epilogue(flat, operands),
            )
            if isinstance(loops, OpenLoops):
                loops.share_open(rows, config.threads, config.alone)
            else:
                loops.share(rows, config.threads)
        return builder.get()

    def flops(self, region: Region) -> int:
        """One operation for every number and step."""
        steps = [step for step in region.epilogue if step.op != "constant"]
        return region.output.size * len(steps)

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The anchor's result, which is its input; exact."""
        x = inputs[0]
        return x.astype(np.int64 if x.dtype.kind in "iu" else np.float32)

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        if len(region.inputs) != 1:
            return f"{len(region.inputs)} inputs"
        x = region.inputs[0]
        if x.dtype not in X_DTYPES:
            return f"a tensor of type {x.dtype}"
        if x.size == 0:
            return "a dimension is 0"
        if x.shape != region.output.shape:
            return f"output of shape {region.output.shape}, not {x.shape}"
        listed = item_operands(region)
        for number, operand in enumerate(region.operands):
            if number not in listed and not broadcasts(operand.shape, x.shape):
                return f"operand {operand} does not broadcast to {x}"
        return None

    def opens(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region with open sizes; it builds every one."""
        return None

    def at_run_time(self, region: Region, config: ElementwiseConfig) -> str:
        """What is decided at run time, for `explain`."""
        alone = f"; up to {config.alone} numbers: one thread" if config.threads > 1 else ""
        return f"{config.unroll} vectors side by side, then single ones{alone}"


ELEMENTWISE = register_template(Elementwise())
