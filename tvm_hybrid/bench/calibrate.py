"""Measures this machine, and writes a description like those of `microkernels/machines`.

    clock_scalar             additions that wait for each other: see `core_loops`
    clock_512, clock_256     from the peak of f32 products and the described FMA ports
    clock_tiles              from the peak of 8-bit products on AMX tiles, if there are any
    fma_latency              FMAs that wait for each other
    load_rate_512 or _256    loads of an array that fits into L1
    l2_rate                  loads of an array that fits into L2
    l3_rate, memory_rate     a row times a weight that fits into L3, and one four times as large
    fork_us                  a parallel loop with a task for each thread, less one such task alone

Numbers that cannot be measured are inherited from the description that is shipped for this CPU. So
are numbers from a manual or a data sheet, because a measurement of them would include a loop.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import tvm
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from microkernels.base.host_cpu import host_cpu
from microkernels.machines.description import Description, Number, describe
from microkernels.machines.machine import Machine
from microkernels.registry import all_microkernels
from microkernels.vector.expressions import parameter
from tir_schedules.core.emission import kernel_function, task_loop
from tir_schedules.cost.cost import has_tiles

from ..api import compile as compile_module
from ..report.kernel_speed import measure_kernels, peak_gops, types_of
from ..report.timing import time_calls
from ..runtime.threads import use_threads
from ..targets.resolve import host_target
from .core_loops import ADDITION_CYCLES, dependent_additions, dependent_fmas, loads

STATED = ("manual", "data sheet")  # kinds of numbers that calibration does not replace
ROUNDS = 7
CORE_ROUNDS = 50  # calls, each of a tenth of a millisecond
FORKS = 200
ROWS_OF_WEIGHT = 2048
LINE = 16  # 64-bit numbers, so that threads write to separate cache lines
TASK_STEPS = 6000  # of two cycles or, through memory, some more
LEAST_FORK = 0.01  # microseconds, a lower bound because the measurement may be noise
LARGEST = 1 << 30
TILE_OPERATIONS = 2 * 16 * 16 * 64  # operations of a product of two tiles of bytes


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """The measured numbers of a machine.

    Attributes
    ----------
    name : str
        LLVM's name of the CPU.
    title : str
        CPU, date and number of threads.
    inherits : str
        The description that has all other numbers.
    numbers : dict
        Measured numbers by name, as in a description.
    """

    name: str
    title: str
    inherits: str
    numbers: dict[str, Number]

    def to_json(self) -> str:
        """Formats the description as a file."""
        fields = {"title": self.title, "inherits": self.inherits, "numbers": self.numbers}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"


def calibrate(threads: int) -> Calibration:
    """Measures this idle machine on one thread and on `threads` cores, in some seconds."""
    name = host_cpu()
    shipped = describe(name)
    numbers = {
        number: found
        for number, found in measure_numbers(threads).items()
        if shipped.numbers[number].kind not in STATED
    }
    today = datetime.datetime.now(datetime.timezone.utc).date()
    title = f"{name}, measured on {today} on {threads} threads"
    return Calibration(name=name, title=title, inherits=shipped.name, numbers=numbers)


def measure_numbers(threads: int) -> dict[str, Number]:
    """Measures all measurable numbers, also those that the description takes from a manual."""
    shipped = describe(host_cpu())
    machine = Machine.from_target(host_target())
    counts = sorted({1, threads})
    numbers = _core(machine)
    if has_tiles(machine):
        each = TILE_OPERATIONS / machine.tile_core.tdp
        numbers["clock_tiles"] = _clock("uint8", each, "8-bit")
    # A weight that fits easily into L3, while the part of each thread is much larger than its L2.
    within = ((count, min(machine.l3_bytes // 2, 4 * machine.l2_bytes * count)) for count in counts)
    numbers["l3_rate"] = _curve([(count, _reading(count, size)) for count, size in within])
    beyond = min(4 * machine.l3_bytes, LARGEST)
    numbers["memory_rate"] = _curve([(count, _reading(count, beyond)) for count in counts])
    if threads > 1:
        numbers["fork_us"] = _forks(threads, shipped)
    return numbers


def _core(machine: Machine) -> dict[str, Number]:
    """Measures a core's clocks, the latency of an FMA, and load rates from L1 and L2."""
    lanes, found = machine.isa.f32_lanes, machine.description
    call, steps = dependent_additions()
    clocks = [ADDITION_CYCLES * rate for rate in _rates(call, steps)]
    numbers = {"clock_scalar": _best(clocks, "additions that wait for each other")}
    # Clocks follow from the described FMA ports and cycles of a tile product.
    if lanes == 16:
        rate = 2 * 8 * found.at("fma_rate_256")
        narrow = [one for one in all_microkernels() if one.isa_name == "avx2"
                  and types_of(one).startswith("float32")]  # fmt: skip
        peaks = (max(measure_kernels(narrow).peaks.values()) for _ in range(3))
        clocks = [1e3 * peak / rate for peak in peaks]
        numbers["clock_256"] = _best(clocks, "peak of f32 products on 256 bits")
    clock = _clock("float32", 2 * lanes * machine.fma_rate, "f32")
    numbers[f"clock_{32 * lanes}"] = clock
    call, steps = dependent_fmas(lanes)
    cycles = [clock.at(1) / rate for rate in _rates(call, steps)]
    numbers["fma_latency"] = Number(
        round(min(cycles), 1),
        "measured",
        "FMAs that wait for each other",
        _spread([1 / each for each in cycles]),
    )
    for number, size, unit in (
        (f"load_rate_{32 * lanes}", machine.l1_bytes // 2, 1),
        ("l2_rate", machine.l2_bytes // 2, 4 * lanes),
    ):
        call, steps = loads(size, lanes)
        rates = [unit * rate / clock.at(1) for rate in _rates(call, steps)]
        numbers[number] = _best(rates, f"loads of {size >> 10} KB again and again", digits=2)
    return numbers


def _rates(call: Callable[[], object], steps: int) -> list[float]:
    """Steps per microsecond in each of several calls."""
    return [steps / time for time in _times(call, 1, CORE_ROUNDS)]


def _best(values: Sequence[float], source: str, digits: int | None = None) -> Number:
    """Makes a number of the largest of several measurements."""
    return Number(round(max(values), digits), "measured", source, _spread(values))


def _clock(dtype: str, each: float, what: str) -> Number:
    """MHz at which `each` operations a cycle give the measured peak."""
    clocks = [1e3 * peak_gops(dtype) / each for _ in range(3)]
    return _best(clocks, f"peak of {what} products")


def _reading(threads: int, size: int) -> list[float]:
    """Bytes per microsecond that threads read together of a weight of `size` bytes."""
    columns = size // 4 // ROWS_OF_WEIGHT
    weight = relax.const(np.ones((ROWS_OF_WEIGHT, columns), np.float32))
    x = relax.Var("x", relax.TensorType((1, ROWS_OF_WEIGHT), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            # The product with one row takes no longer than reading the weight.
            result = builder.emit_output(relax.op.matmul(x, weight))
        builder.emit_func_output(result)
    executable = compile_module(builder.get(), num_threads=threads, records=[])
    run = executable.new_machine()["main"]
    row = tvm.runtime.tensor(np.ones((1, ROWS_OF_WEIGHT), np.float32))
    return [size / time for time in _times(lambda: run(row), threads)]


def _forks(threads: int, shipped: Description) -> Number:
    """Scales the described fork times to the measured one on `threads` threads."""
    # The thread that starts a loop takes back tasks that no worker has begun. So tasks take some
    # microseconds: a loop of empty tasks would be over before a worker sees it.
    parallel, alone = _loop(threads), _loop(1)
    lines = tvm.runtime.tensor(np.ones(threads * LINE, np.int64))
    line = tvm.runtime.tensor(np.ones(LINE, np.int64))
    # In turns, because the difference is small compared with both times.
    forked, plain = [], []
    for _ in range(ROUNDS):
        forked += _times(lambda: [parallel(lines) for _ in range(FORKS)], threads, 1)
        plain += _times(lambda: [alone(line) for _ in range(FORKS)], threads, 1)
    least = min(plain)
    each = [max((time - least) / FORKS, LEAST_FORK) for time in forked]
    scale = min(each) / shipped.at("fork_us", threads)
    curve = shipped.numbers["fork_us"].value
    assert isinstance(curve, tuple)  # no single number gives 0 for one thread and more for two
    scaled = tuple((count, round(value * scale, 3)) for count, value in curve)
    source = f"a parallel loop on {threads} threads; other numbers in proportion to {shipped.name}"
    return Number(scaled, "measured", source, _spread([1 / one for one in each]))


def _curve(points: Sequence[tuple[int, list[float]]]) -> Number:
    """Makes a number of the best rates by threads, with the spread of the worst point."""
    value = tuple((count, round(max(rates))) for count, rates in points)
    error = max(_spread(rates) for _, rates in points)
    return Number(value, "measured", "products of a row with a weight", error)


def _spread(values: Sequence[float]) -> float:
    """Relative distance of the median from the best."""
    best = max(values)
    return round(abs(1 - statistics.median(values) / best), 3)


def _times(call: Callable[[], object], threads: int, rounds: int = ROUNDS) -> list[float]:
    """Microseconds of calls on `threads` threads, after a warm-up call."""
    use_threads(threads)
    call()
    return [1e6 * time for _ in range(rounds) for time in time_calls(call, 0.0)]


def _loop(threads: int) -> Callable[..., object]:
    """Compiles a loop with a task for each thread: dependent additions in a separate line."""
    use_threads(threads)  # must come before TVM passes its thread pool to the code
    with kernel_function("lines") as builder:
        out = parameter("out", (threads * LINE,), "int64")
        with task_loop(threads) as task, I.serial(TASK_STEPS):
            value = out[task * LINE] ^ tirx.const(0x5A5A5A5A5A5A, "int64")
            I.buffer_store(out, value + tirx.const(0x1234567, "int64"), [task * LINE])
    function = builder.get().with_attr("global_symbol", "lines")
    code: Callable[..., object] = tvm.compile(function, target=host_target())["lines"]
    return code
