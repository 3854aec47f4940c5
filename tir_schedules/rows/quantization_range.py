"""Template "quantization_range": scale and zero point of DynamicQuantizeLinear.

    x f32, any shape  ->  f32[2] = (scale, zero point)

    scale = (max(0, max(x)) - min(0, min(x))) / 255
    zero point = saturate(round_half_even(-min(0, min(x)) / scale))     to 0..255

This is ONNX's formula, computed in f32. An input of zeros has scale 1 and zero point 0, as in ONNX
Runtime. With the attribute "least_scale" no scale is smaller than that number, as in torch; an
input of zeros then has that scale. The zero point is an integer stored as f32, so that one output
holds both. NaNs are ignored.

The reduction reads x once, with several independent minima and maxima to hide their latency.
Threads share large inputs and combine their results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, Index, bind, materialise, parameter, splat
from microkernels.vector.ieee import ROUND
from tir_schedules.core import blocking, emission, extents, loop_nest, template
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.region import Region, Tensor
from tir_schedules.cost.parallel import LEAST_MOVED, threads_worth
from tir_schedules.epilogue.epilogue import Columns, load_vector

LARGEST = 255.0
LEAST_SCALE = "least_scale"
VECTOR_CYCLES = 4.5  # for a vector from beyond L2
OWN_UNROLL = 8  # independent minima and maxima without a configuration


class RangeConfig(Config, frozen=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    unroll : int
        Vectors in one iteration; as many minima and maxima.
    threads : int
        Threads that share the work.
    """

    unroll: int
    threads: int = 1


Load = Callable[[Columns], Expr]


class _Extremes:
    """Minima and maxima in vectors, and the loops that find them.

    Parameters
    ----------
    lanes, slots : int
        Lanes of a vector register; number of independent minima and maxima.
    load : callable
        Columns, all of which exist -> f32 vector, or f32 for a single column.
    """

    def __init__(self, lanes: int, slots: int, load: Load) -> None:
        self.lanes, self.slots, self.load = lanes, slots, load
        self.totals = [
            (loop_nest.LaneTotals(lanes, 0.0, slots), each) for each in (tirx.Min, tirx.Max)
        ]

    def vectors(self, first: Index, count: Index) -> None:
        """Takes in `count` vectors from the vector `first` on."""
        slots, known = self.slots, isinstance(count, int)
        steps = count // slots if known else materialise(I.floordiv(count, slots))
        with I.serial(steps) as step:
            for slot in range(slots):
                self.take((first + (step * slots + slot)) * self.lanes, slot)
        if known:
            for slot in range(count % slots):
                self.take((first + (steps * slots + slot)) * self.lanes, slot)
            return
        with I.serial(count - steps * slots) as left:
            self.take((first + (steps * slots + left)) * self.lanes, 0)

    def last(self, size: Expr) -> tuple[Expr, Expr]:
        """Takes in the last vector of `size` numbers, or all if they are fewer; gives `total`."""
        with I.If(size >= self.lanes):
            with I.Then(), emission.opaque_block("last"):
                self.take(size - self.lanes, 0)
            with I.Else(), I.serial(size) as number, emission.opaque_block("single"):
                self._store(splat(self.load(Columns(number, 1, 1)), self.lanes), 0)
        return self.total()

    def take(self, start: Index, slot: int) -> None:
        """Takes in a vector."""
        self._store(self.load(Columns(start, self.lanes, self.lanes)), slot)

    def _store(self, value: Expr, slot: int) -> None:
        value = bind(value)
        # In this order an x86 minimum drops a NaN in `value`.
        for found, combine in self.totals:
            found.store(combine(value, found[slot]), slot)

    def total(self) -> tuple[Expr, Expr]:
        """(smallest, largest) as scalars."""
        low, high = (found.total(combine) for found, combine in self.totals)
        return low, high


def emit_extremes(lanes: int, size: Index, unroll: int, load: Load) -> tuple[Expr, Expr]:
    """The loop: (smallest, largest) of 0 and `size` numbers, as scalar expressions.

    Vectors are taken several at a time, then singly; the last one overlaps the one before it.
    Fewer numbers than a vector has are taken one by one. (LLVM 22 makes a masked load unmasked if a
    Select keeps the existing lanes, and it faults.)

    Parameters
    ----------
    lanes : int
        Lanes of a vector register.
    size : Expr or int
        How many numbers.
    unroll : int
        Number of independent minima and maxima.
    load : callable
        See `_Extremes`.
    """
    if not isinstance(size, int):
        found = _Extremes(lanes, unroll, load)
        vectors = materialise(I.floordiv(size, lanes))
        found.vectors(tirx.const(0, "int32"), vectors)
        return found.last(size)
    lanes = lanes if size >= lanes else 1
    count, cut = divmod(size, lanes)
    found = _Extremes(lanes, max(1, min(unroll, count)), load)
    found.vectors(0, count)
    if cut:
        found.take(size - lanes, count % found.slots)
    return found.total()


def least_scale_of(region: Region) -> float | None:
    """Smallest scale that a region allows; None if it rejects only scale 0."""
    return float(region.real(LEAST_SCALE)) if LEAST_SCALE in region.attrs else None


def emit_parameters(low: Expr, high: Expr, least: float | None) -> tuple[Expr, Expr]:
    """(scale, zero point) as f32 scalars, for the extremes of numbers and 0."""
    distance = materialise((high - low) / tirx.const(LARGEST, "float32"))
    zero = tirx.const(0.0, "float32")
    chosen: Expr
    if least is None:
        chosen = tirx.Select(tirx.EQ(distance, zero), tirx.const(1.0, "float32"), distance)
    else:
        chosen = tirx.Max(distance, tirx.const(least, "float32"))
    scale = materialise(chosen)
    exact = (zero - low) / scale
    # Within these bounds the sum below is exact up to the wanted rounding; a NaN, which comes from
    # infinite numbers, becomes 0.
    bounded = materialise(tirx.Min(tirx.Max(exact, zero), tirx.const(LARGEST, "float32")))
    rounding = tirx.const(ROUND, "float32")
    return scale, materialise(materialise(bounded + rounding) - rounding)


def emit_own_range(lanes: int, tensor: Tensor, buffer: Expr, least: float | None = None) -> Expr:
    """Scale and zero point of a whole tensor, in a f32[2] buffer of the calling thread.

    For a kernel that quantises its input.
    """
    found = I.sblock_alloc_buffer((2,), "float32")
    load = _loader(extents.as_elements(buffer, tensor), 0)
    with emission.opaque_block("range"):
        extremes = emit_extremes(lanes, extents.extent(tensor.size), OWN_UNROLL, load)
        _keep(found, [], emit_parameters(*extremes, least))
    return found


def _keep(buffer: Expr, place: Sequence[Expr], values: Iterable[Expr]) -> None:
    for index, value in enumerate(values):
        I.buffer_store(buffer, value, [*place, index])


def _loader(x: Expr, start: Index) -> Callable[[Columns], Expr]:
    """Loads vectors of x from `start` on."""
    return lambda columns: load_vector(
        x, "float32", (), Columns(start + columns.start, columns.lanes, columns.valid)
    )


def _extremes(x: Expr, size: Index, config: RangeConfig, lanes: int) -> tuple[Expr, Expr]:
    """The extremes of all elements, combined from those of every thread's share."""
    load, unroll, tasks = _loader(x, 0), config.unroll, config.threads
    if isinstance(size, int):
        tasks = min(tasks, max(1, size // lanes))
    if tasks == 1:
        return emit_extremes(lanes, size, unroll, load)
    parts = I.sblock_alloc_buffer((tasks, 2), "float32")

    vectors = emission.named(size // lanes)
    with emission.task_loop(tasks) as task:

        def share(start: Expr, count: int) -> None:
            loader = _loader(x, start * lanes)
            _keep(parts, [task], emit_extremes(lanes, count * lanes, unroll, loader))

        if isinstance(vectors, int):
            emission.for_share(blocking.shares(vectors, tasks), task, share)
        else:
            found = _Extremes(lanes, unroll, load)
            found.vectors(*emission.share_of(vectors, task, tasks))
            _keep(parts, [task], found.total())
    with nullcontext() if isinstance(size, int) else emission.opaque_block("all"):
        # The last vector covers the tail.
        if isinstance(size, int):
            rest = emit_extremes(lanes, lanes, 1, _loader(x, size - lanes))
        else:
            rest = _Extremes(lanes, 1, load).last(size)
        totals = I.sblock_alloc_buffer((2,), "float32")
        _keep(totals, [], rest)
        with I.serial(tasks) as task:
            both = zip((tirx.Min, tirx.Max), (0, 1), strict=True)
            _keep(totals, [], (combine(totals[at], parts[task, at]) for combine, at in both))
    return bind(totals[0]), bind(totals[1])


def dynamic_range(x: np.ndarray, least: float | None = None) -> np.ndarray:
    """Scale and zero point by numpy, in f32: as in ONNX or, with a least scale, as in torch."""
    x = x.astype(np.float32)
    zero = np.float32(0)
    low, high = np.fmin(zero, np.fmin.reduce(x, None)), np.fmax(zero, np.fmax.reduce(x, None))
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (high - low) / np.float32(LARGEST)
        if least is not None:
            scale = np.maximum(scale, np.float32(least))
        elif scale == 0:
            scale = np.float32(1)
        zero_point = np.rint(np.clip((zero - low) / scale, 0, LARGEST))
    return np.array([scale, zero_point], np.float32)


class QuantizationRange(template.Template[RangeConfig]):
    """Scale and zero point of DynamicQuantizeLinear."""

    name = "quantization_range"
    config_type = RangeConfig
    any_sizes = True

    def at_run_time(self, region: Region, config: RangeConfig) -> str:
        """What is decided at run time, for `explain`."""
        return "whole vectors, then a tail"

    def default_config(self, region: Region, machine: Machine) -> RangeConfig:
        """A configuration by closed formula; no tuning is needed."""
        vectors = math.ceil(region.inputs[0].size / machine.isa.f32_lanes)
        us = vectors * VECTOR_CYCLES / machine.cycles_per_us
        threads = threads_worth(machine, us, LEAST_MOVED)
        return RangeConfig(unroll=min(4, vectors), threads=threads)

    def space(self, region: Region, machine: Machine) -> Iterator[RangeConfig]:
        """The default, then other numbers of vectors in one iteration."""
        return self.default_config(region, machine).varied("unroll", (1, 2, 4, 8))

    def check(self, region: Region, config: RangeConfig, isa: Isa) -> None:
        """Refuses a configuration that is not legal.

        Raises
        ------
        ConfigError
            If a field is out of range; the message names it.
        """
        check_numbers(region, config, {"unroll": 16, "threads": 4096})

    def build(self, region: Region, config: RangeConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel: x, output."""
        self.check(region, config, isa)
        source = region.inputs[0]
        with emission.kernel_function(region.op) as builder:
            given = emission.tensor_parameter("X", source)
            y = parameter("Y", (2,), "float32")
            extents.read_extents()
            x = extents.as_elements(given, source)
            with emission.opaque_block("range"):
                extremes = _extremes(x, extents.extent(source.size), config, isa.f32_lanes)
                _keep(y, [], emit_parameters(*extremes, least_scale_of(region)))
        return builder.get()

    def flops(self, region: Region) -> int:
        """A minimum and a maximum for every number."""
        return 2 * region.inputs[0].size

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """Scale and zero point by numpy; exact."""
        return dynamic_range(inputs[0], least_scale_of(region))

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        if len(region.inputs) != 1 or region.inputs[0].dtype != "float32":
            return f"inputs {', '.join(map(str, region.inputs))}, not one of type float32"
        if region.inputs[0].size == 0:
            return "a dimension is 0"
        if (region.output.shape, region.output.dtype) != ((2,), "float32"):
            return f"output {region.output}, not float32[2]"
        return "an epilogue" if region.epilogue else None


QUANTIZATION_RANGE = template.register_template(QuantizationRange())
