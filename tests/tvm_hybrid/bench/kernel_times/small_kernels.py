"""Small TIR functions, and how to read them."""

from __future__ import annotations

from collections.abc import Callable

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import isa_named
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr, constant, parameter, ramp, splat
from tests.microkernels.isa_targets import MCPU, target_of
from tir_schedules.core.config import Config
from tir_schedules.core.emission import kernel_function, task_loop
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tvm_hybrid.bench.kernel_times.nodes import KernelLoops
from tvm_hybrid.bench.kernel_times.read import read

LANES = 16


def machine(threads: int = 1, isa: str = "avx512") -> Machine:
    return Machine(MCPU[isa], isa_named(isa), threads)


def program_of(function: tirx.PrimFunc, isa: str = "avx512") -> KernelLoops:
    return read(function, target_of(isa), isa_named(isa).vector_bits)


def built(region: Region, config: Config, isa: str = "avx512") -> KernelLoops:
    """Builds a template's kernel."""
    return program_of(template_for(region.op).build(region, config, isa_named(isa)), isa)


def written(size: int, body: Callable[[Expr, Expr], None]) -> tirx.PrimFunc:
    """A function of x and y, each with `size` f32 elements."""
    with kernel_function("kernel") as builder:
        x, y = (parameter(name, (size,), "float32") for name in "xy")
        body(x, y)
    function: tirx.PrimFunc = builder.get()
    return function


def sums(rows: int, columns: int, tasks: int = 1) -> tirx.PrimFunc:
    """y[row] = the sum of x[row, column] * 2 over the columns, in vectors along the rows."""

    def body(x: Expr, y: Expr) -> None:
        total = rows * tasks
        with task_loop(tasks) as task, I.serial(rows // LANES) as i:
            at = task * rows + i * LANES
            acc = I.sblock_alloc_buffer((LANES,), "float32")
            I.buffer_store(acc, constant(0.0, "float32", LANES), [ramp(0, LANES)])
            with I.serial(columns) as k:
                value = x[ramp(k * total + at, LANES)] * constant(2.0, "float32", LANES)
                I.buffer_store(acc, acc[ramp(0, LANES)] + value, [ramp(0, LANES)])
            I.buffer_store(y, acc[ramp(0, LANES)], [ramp(at, LANES)])

    return written(rows * tasks * columns, body)


def scaled(size: int) -> tirx.PrimFunc:
    """y = x * x[0]."""

    def body(x: Expr, y: Expr) -> None:
        with I.serial(size // LANES) as i:
            first = splat(x[0], LANES)
            I.buffer_store(y, x[ramp(i * LANES, LANES)] * first, [ramp(i * LANES, LANES)])

    return written(size, body)


def triangle(size: int) -> tirx.PrimFunc:
    """y[row] += x[column] for each column up to the row."""

    def body(x: Expr, y: Expr) -> None:
        with I.serial(size) as row, I.serial(row + 1) as column:
            at = ramp(row * LANES, LANES)
            I.buffer_store(y, y[at] + x[ramp(column * LANES, LANES)], [at])

    return written(size * LANES, body)
