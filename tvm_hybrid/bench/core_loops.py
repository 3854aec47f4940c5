"""Loops that measure one core: dependent operations, and loads from a cache.

additions     v = (v ^ c) + k, two cycles each: the clock of code without vectors
FMAs          v = v * a + b on whole vectors, each waiting for the previous one: their latency
loads         sums of the vectors of an array that fits into a cache: bandwidth of the cache
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.kernels.f32 import multiply_add
from microkernels.vector.expressions import constant, parameter, ramp
from tir_schedules.core.emission import kernel_function, opaque_block

from ..targets.resolve import host_target

STEPS = 8  # unrolled steps of a chain, so that its branch costs nothing
SUMS = 16  # independent sums, so that additions do not wait for each other
ADDITION_CYCLES = 2
_MOST = 400_000  # approximate cycles or vectors of a call: less than a tenth of a millisecond

Call = Callable[[], object]


def dependent_additions() -> tuple[Call, int]:
    """Makes a call, and counts its dependent steps of `ADDITION_CYCLES`."""
    rounds = _MOST // STEPS // ADDITION_CYCLES
    with kernel_function("additions") as builder:
        out = parameter("out", (1,), "int64")
        with opaque_block("chain"):
            value = I.sblock_alloc_buffer((1,), "int64")
            I.buffer_store(value, out[0], [0])
            with I.serial(rounds), opaque_block("round"):
                for step in range(STEPS):
                    turned = value[0] ^ tirx.const(0x5A5A5A5A5A5A + step, "int64")
                    I.buffer_store(value, turned + tirx.const(0x1234567 + step, "int64"), [0])
            I.buffer_store(out, value[0], [0])
    function = _compiled(builder.get(), "additions")
    number = tvm.runtime.tensor(np.zeros(1, np.int64))
    return lambda: function(number), rounds * STEPS


def dependent_fmas(lanes: int) -> tuple[Call, int]:
    """Makes a call, and counts its dependent FMAs of vectors."""
    rounds = _MOST // STEPS // 4
    whole = ramp(0, lanes)
    with kernel_function("fmas") as builder:
        out = parameter("out", (lanes,), "float32")
        with opaque_block("chain"):
            value = I.sblock_alloc_buffer((lanes,), "float32")
            I.buffer_store(value, out[whole], [whole])
            with I.serial(rounds), opaque_block("round"):
                for step in range(STEPS):
                    factor = constant(0.5 + step / 64, "float32", lanes)
                    added = constant(0.25, "float32", lanes)
                    I.buffer_store(value, multiply_add(added, value[whole], factor), [whole])
            I.buffer_store(out, value[whole], [whole])
    function = _compiled(builder.get(), "fmas")
    numbers = tvm.runtime.tensor(np.ones(lanes, np.float32))
    return lambda: function(numbers), rounds * STEPS


def loads(size: int, lanes: int) -> tuple[Call, int]:
    """Makes a call, and counts the vectors that it loads from an array of `size` bytes."""
    step = SUMS * lanes
    count = max(size // 4 // step, 1)
    repeats = max(_MOST // (count * SUMS), 1)
    with kernel_function("loads") as builder:
        given = parameter("given", (count * step,), "float32")
        out = parameter("out", (step,), "float32")
        with opaque_block("all"):
            sums = [I.sblock_alloc_buffer((lanes,), "float32") for _ in range(SUMS)]
            for each in sums:
                I.buffer_store(each, constant(0.0, "float32", lanes), [ramp(0, lanes)])
            with I.serial(repeats), I.serial(count) as at, opaque_block("step"):
                for number, each in enumerate(sums):
                    loaded = given[ramp(at * step + number * lanes, lanes)]
                    I.buffer_store(each, each[ramp(0, lanes)] + loaded, [ramp(0, lanes)])
            for number, each in enumerate(sums):
                I.buffer_store(out, each[ramp(0, lanes)], [ramp(number * lanes, lanes)])
    function = _compiled(builder.get(), "loads")
    array = tvm.runtime.tensor(np.ones(count * step, np.float32))
    result = tvm.runtime.tensor(np.zeros(step, np.float32))
    return functools.partial(function, array, result), repeats * count * SUMS


def _compiled(function: tirx.PrimFunc, name: str) -> Callable[..., object]:
    code: Callable[..., object] = tvm.compile(
        function.with_attr("global_symbol", name), target=host_target()
    )[name]
    return code
