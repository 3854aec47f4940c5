"""Case: everything that the candidates of one region share, as it is sent to worker processes."""

from __future__ import annotations

import gc
import importlib
import json
import math
import mmap
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from relay_passes.lower.codegen import kernel_context
from relay_passes.lower.kernel_pipelines import made_for, pipeline_for
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, all_templates, template_for

from ...runtime.feeds import tensor_of
from ..verification.bounds import element_type
from ..verification.chain_bounds import known_case
from .sampling import Effort, interruptions_of, sample_in_turns

LARGEST_ROTATION = 256 << 20


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A region and how to measure its candidates.

    Attributes
    ----------
    region : Region
        What is computed.
    module : str
        Python module that defines the template, and registers it when imported.
    isa : str
        Instruction set to build for.
    target : str
        TVM target as JSON.
    threads : int
        Threads that the kernels use.
    footprint_bytes : int
        Bytes of all constants of the model: kernels read their constants from this much memory in
        turn.
    seed : int
        Seed of the arguments.
    """

    region: Region
    module: str
    isa: str
    target: str
    threads: int
    footprint_bytes: int = 0
    seed: int = 0

    @staticmethod
    def of(
        region: Region,
        template: Template[Any],
        machine: Machine,
        target: str,
        footprint_bytes: int = 0,
        seed: int = 0,
    ) -> Case:
        """Makes the case of a region for a machine and its number of threads."""
        return Case(
            region=region,
            module=type(template).__module__,
            isa=machine.isa.name,
            target=target,
            threads=machine.threads,
            # More than twice the L3 makes no measurable difference.
            footprint_bytes=min(footprint_bytes, 2 * machine.l3_bytes, LARGEST_ROTATION),
            seed=seed,
        )

    def template(self) -> Template[Any]:
        """The region's template; imports its module if necessary."""
        if self.region.op not in {template.name for template in all_templates()}:
            importlib.import_module(self.module)
        return template_for(self.region.op)


def compiled(function: tirx.PrimFunc, name: str, threads: int, target: Target) -> Any:
    """Compiles a kernel as in a model, with the given function name."""
    with kernel_context([function]):
        named = made_for(function.with_attr("global_symbol", name), threads)
        return tvm.compile(named, target, tir_pipeline=pipeline_for(threads))


class PreparedCase:
    """A case with its arguments and exact result, for measuring candidates one after the other."""

    def __init__(self, case: Case, template: Template[Any]) -> None:
        self.region, self.template, self.threads = case.region, template, case.threads
        self.footprint_bytes = case.footprint_bytes
        self.isa, self.target = isa_named(case.isa), Target(json.loads(case.target))
        self.arrays, self.expected = known_case(case.region, template, case.seed)

    def compile(self, config: Config, name: str) -> tuple[Any, dict[int, np.ndarray]]:
        """Builds a candidate: its code, and its packed constants by argument number."""
        function = self.template.build(self.region, config, self.isa)
        code = compiled(function, name, self.threads, self.target)
        constants = {}
        for i, tensor in enumerate(self.region.inputs):
            if tensor.constant:
                array = self.arrays[i]
                packed = self.template.packed_input(self.region, config, self.isa, i)
                if packed is not None:
                    array = packed.pack(array)
                constants[i] = np.ascontiguousarray(array)
        return code, constants


SAMPLE_SECONDS = 1e-3
SLICES = 4
"""Parts of a sample: the fastest counts, as interruptions only ever make a part longer."""

LONG_CALL = 2e-3
"""Seconds; for a longer call, the initial state of the caches does not matter."""

MOST_COPIES = 256
_LINE, _PAGE = 64, 4096
_OWN_PAGES = 128 << 10  # malloc gives a block of this size pages of its own


class Rotation:
    """Memory with many copies of a kernel's constants, reused by the next kernel.

    In a model, other layers' weights pass through the caches between two runs of a kernel. So every
    call reads another copy, and a cycle over all copies reads as many bytes as the model has. The
    copies lie as separate tensors would: one cache line past the beginning of a page, in pages of
    ordinary size. `bytes` is the size of a cycle.

    Attributes
    ----------
    next : int
        Number of the next copy to read. The next kernel continues there: if it began with the first
        copy, it would find in the caches what the previous kernel left.
    """

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self.next = 0
        self._memory: np.ndarray | None = None
        self._held: list[tuple[str, int]] = []

    def copies(self, arrays: Sequence[np.ndarray]) -> list[list[Any]]:
        """Makes tensors of these arrays, copy by copy.

        Only the first copy needs right values, as results from the others are ignored. The others
        keep an earlier kernel's values if these have equal types and sizes.
        """
        size = sum(array.nbytes for array in arrays)
        if not size:
            return [[tensor_of(array) for array in arrays]]
        count = max(1, min(MOST_COPIES, math.ceil(self.bytes / size)))
        units = [_PAGE if array.nbytes >= _OWN_PAGES else _LINE for array in arrays]
        strides = [-(-a.nbytes // unit) * unit for a, unit in zip(arrays, units, strict=True)]
        size = count * sum(strides) + _LINE
        if self._memory is None or len(self._memory) < size:
            self._memory, self._held = None, []  # freed first
            self._memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        held = [(str(array.dtype), array.nbytes) for array in arrays]
        rows, offset = [], _LINE
        for copy in range(count):
            row = []
            for array, stride in zip(arrays, strides, strict=True):
                place = self._memory[offset : offset + array.nbytes].view(array.dtype)
                place = place.reshape(array.shape)
                if copy == 0 or held != self._held:
                    place[...] = array
                row.append(tensor_of(place))
                offset += stride
            rows.append(row)
        self._held = held
        return rows


class Sampled(ABC):
    """Something that is timed in samples of about a millisecond."""

    calls = 0
    short = True

    @abstractmethod
    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        """Times this many calls."""

    def warm_up(self, clock: Callable[[], float]) -> None:
        """Runs calls until it is known how many of them make a sample."""
        if self.calls:
            self.seconds(1, clock)
            return
        calls = 1
        while True:
            taken = self.seconds(calls, clock)
            if taken >= SAMPLE_SECONDS / 2 or calls >= 1 << 16:
                break
            calls *= 2
        self.short = taken < calls * LONG_CALL
        self.calls = max(1, round(calls * SAMPLE_SECONDS / max(taken, SAMPLE_SECONDS / 8)))

    def sample(self, clock: Callable[[], float]) -> float:
        """Seconds of one call: the mean of the fastest of `SLICES` parts of a sample."""
        if self.short:  # refill the caches that the other contestant used
            self.seconds(1, clock)
        slices = min(SLICES, self.calls)
        calls = self.calls // slices
        return min(self.seconds(calls, clock) for _ in range(slices)) / calls


class Kernel(Sampled):
    """Compiled code with its arguments.

    Parameters
    ----------
    function : callable
        The code.
    arrays : sequence of numpy.ndarray
        All arguments but the output, constants unpacked.
    constants : mapping
        Number of an argument -> packed constant that replaces it, of which there are copies.
    blank : numpy.ndarray
        Initial content of the output; see `never_right`.
    rotation : Rotation
        Memory of the constants; a kernel made with it earlier must not be run any more.
    common : Rotation
        Memory of the other arguments and the output. Kernels that are compared share it, so that
        all have equally lucky or unlucky pages in the caches.
    """

    def __init__(
        self,
        function: Callable[..., object],
        arrays: Sequence[np.ndarray],
        constants: Mapping[int, np.ndarray],
        blank: np.ndarray,
        rotation: Rotation,
        common: Rotation,
    ) -> None:
        self.function, self.rotation = function, rotation
        copies = rotation.copies(list(constants.values()))
        others = [i for i in range(len(arrays)) if i not in constants]
        [[*shared, self.output]] = common.copies([*(arrays[i] for i in others), blank])
        self.arguments = []
        for copy in copies:
            row = dict(zip((*others, *constants), (*shared, *copy), strict=True))
            self.arguments.append((*(row[i] for i in range(len(arrays))), self.output))

    def run(self) -> np.ndarray:
        """Calls the code once and returns the output."""
        self.function(*self.arguments[0])
        output: np.ndarray = self.output.numpy()
        return output

    def seconds(self, calls: int, clock: Callable[[], float]) -> float:
        """Times this many calls."""
        function, rows, first = self.function, self.arguments, self.rotation.next
        order = [rows[(first + i) % len(rows)] for i in range(calls)]
        self.rotation.next += calls
        start = clock()
        for row in order:
            function(*row)
        return clock() - start


def time_in_turns(
    kernel: Sampled, other: Sampled | None, effort: Effort, threads: int
) -> tuple[list[float], list[float]]:
    """Samples both in turns in this process, without garbage collection, in microseconds.

    Serial code is timed by its CPU time, which other processes do not disturb.
    """
    clock = time.thread_time if threads == 1 else time.perf_counter
    collecting = gc.isenabled()
    gc.disable()
    try:
        for contestant in (other, kernel):
            if contestant is not None:
                contestant.warm_up(clock)
        return sample_in_turns(kernel, other, effort, clock, interruptions_of(threads))
    finally:
        if collecting:
            gc.enable()


def never_right(region: Region, expected: np.ndarray) -> np.ndarray:
    """Makes an output buffer whose every element is wrong, so that unwritten elements show."""
    dtype = element_type(region.output.dtype)
    if dtype.kind == "b":
        return np.ascontiguousarray(expected == 0)
    if dtype.kind not in "iu":
        return np.full(expected.shape, np.nan, dtype)
    # Flip the top bit: half the value range away, beyond any tolerance.
    half = np.array(1 << 8 * dtype.itemsize - 1, np.dtype(f"u{dtype.itemsize}"))
    return np.ascontiguousarray((expected.astype(dtype).view(half.dtype) ^ half).view(dtype))
