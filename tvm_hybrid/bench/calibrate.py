"""Measures this machine, and describes it as `microkernels/machines` describes other ones.

    clock_scalar             additions that wait for each other: see `core_loops`
    clock_512, clock_256     from the peak of f32 products: what the description says of FMA ports
    clock_tiles              from that of 8-bit products on AMX tiles, if there are any
    fma_latency              FMAs that wait for each other
    load_rate_512 or _256    loads of an array that fits into L1
    l2_rate                  loads of one that fits into L2
    l3_rate, memory_rate     a row by a weight that is in L3, and by one that is four times as large
    fork_us                  a parallel loop with a task for each thread, less one such task alone

What is not measured is inherited from the description that is shipped for this CPU; so is what a
manual or a data sheet says, as a measurement of it includes a loop.
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

STATED = ("manual", "data sheet")  # kinds that calibration leaves as they are
ROUNDS = 7
CORE_ROUNDS = 50  # of calls of a tenth of a millisecond
FORKS = 200
ROWS_OF_WEIGHT = 2048
LINE = 16  # numbers of 64 bits, so that threads write lines of their own
TASK_STEPS = 6000  # of two cycles or, through memory, some more
LEAST_FORK = 0.01  # microseconds; what is measured may be noise
LARGEST = 1 << 30
TILE_OPERATIONS = 2 * 16 * 16 * 64  # of a product of two tiles of bytes


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured.

    Attributes
    ----------
    name : str
        LLVM's name of the CPU.
    title : str
        What, where and when.
    inherits : str
        The description that states the rest.
    numbers : dict
        By name, as in a description.
    """

    name: str
    title: str
    inherits: str
    numbers: dict[str, Number]

    def to_json(self) -> str:
        """The description as a file has it."""
        fields = {"title": self.title, "inherits": self.inherits, "numbers": self.numbers}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n"


def calibrate(threads: int) -> Calibration:
    """Measures this machine on one thread and on so many, in some seconds; it has to be idle.

    Parameters
    ----------
    threads : int
        On cores of their own.
    """
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
    """All numbers that can be measured, whatever the description says of them."""
    shipped = describe(host_cpu())
    machine = Machine.from_target(host_target())
    counts = sorted({1, threads})
    numbers = _core(machine)
    if has_tiles(machine):
        each = TILE_OPERATIONS / machine.tile_core.tdp
        numbers["clock_tiles"] = _clock("uint8", each, "8-bit")
    # A weight that is well within L3, and of which each thread's part is well beyond L2.
    within = ((count, min(machine.l3_bytes // 2, 4 * machine.l2_bytes * count)) for count in counts)
    numbers["l3_rate"] = _curve([(count, _reading(count, size)) for count, size in within])
    beyond = min(4 * machine.l3_bytes, LARGEST)
    numbers["memory_rate"] = _curve([(count, _reading(count, beyond)) for count in counts])
    if threads > 1:
        numbers["fork_us"] = _forks(threads, shipped)
    return numbers


def _core(machine: Machine) -> dict[str, Number]:
    """Clocks of a core, the latency of an FMA, and what it loads from L1 and L2."""
    lanes, found = machine.isa.f32_lanes, machine.description
    call, steps = dependent_additions()
    clocks = [ADDITION_CYCLES * rate for rate in _rates(call, steps)]
    numbers = {"clock_scalar": _best(clocks, "additions that wait for each other")}
    # By the ports that the description states, and the cycles that it states of a tile product.
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
    """Steps of a call a microsecond, of several calls."""
    return [steps / time for time in _times(call, 1, CORE_ROUNDS)]


def _best(values: Sequence[float], source: str, digits: int | None = None) -> Number:
    """The largest of several measurements."""
    return Number(round(max(values), digits), "measured", source, _spread(values))


def _clock(dtype: str, each: float, what: str) -> Number:
    """MHz at which `each` operations a cycle reach the peak that is measured."""
    clocks = [1e3 * peak_gops(dtype) / each for _ in range(3)]
    return _best(clocks, f"peak of {what} products")


def _reading(threads: int, size: int) -> list[float]:
    """Bytes a microsecond that threads read together of a weight of so many bytes.

    By the product that one row has with it, which takes no longer than reading it.
    """
    columns = size // 4 // ROWS_OF_WEIGHT
    weight = relax.const(np.ones((ROWS_OF_WEIGHT, columns), np.float32))
    x = relax.Var("x", relax.TensorType((1, ROWS_OF_WEIGHT), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, weight))
        builder.emit_func_output(result)
    executable = compile_module(builder.get(), num_threads=threads, records=[])
    run = executable.new_machine()["main"]
    row = tvm.runtime.tensor(np.ones((1, ROWS_OF_WEIGHT), np.float32))
    return [size / time for time in _times(lambda: run(row), threads)]


def _forks(threads: int, shipped: Description) -> Number:
    """As the description says, but scaled to what so many threads take here.

    Tasks take some microseconds: a thread that starts a loop takes back the tasks that no worker
    has begun, so that a loop of empty tasks is over before a worker has seen it.
    """
    parallel, alone = _loop(threads), _loop(1)
    lines = tvm.runtime.tensor(np.ones(threads * LINE, np.int64))
    line = tvm.runtime.tensor(np.ones(LINE, np.int64))
    # In turns: the difference is small beside both.
    forked, plain = [], []
    for _ in range(ROUNDS):
        forked += _times(lambda: [parallel(lines) for _ in range(FORKS)], threads, 1)
        plain += _times(lambda: [alone(line) for _ in range(FORKS)], threads, 1)
    least = min(plain)
    each = [max((time - least) / FORKS, LEAST_FORK) for time in forked]
    scale = min(each) / shipped.at("fork_us", threads)
    curve = shipped.numbers["fork_us"].value
    assert isinstance(curve, tuple)  # nothing takes 0 for one thread and more for two
    scaled = tuple((count, round(value * scale, 3)) for count, value in curve)
    source = f"a parallel loop on {threads} threads; other numbers in proportion to {shipped.name}"
    return Number(scaled, "measured", source, _spread([1 / one for one in each]))


def _curve(points: Sequence[tuple[int, list[float]]]) -> Number:
    """The best rates by threads, and how far apart the rates of the worst measured point are."""
    value = tuple((count, round(max(rates))) for count, rates in points)
    error = max(_spread(rates) for _, rates in points)
    return Number(value, "measured", "products of a row with a weight", error)


def _spread(values: Sequence[float]) -> float:
    """How far the median is from the best."""
    best = max(values)
    return round(abs(1 - statistics.median(values) / best), 3)


def _times(call: Callable[[], object], threads: int, rounds: int = ROUNDS) -> list[float]:
    """Microseconds of some calls on so many threads, after one that does not count."""
    use_threads(threads)
    call()
    return [1e6 * time for _ in range(rounds) for time in time_calls(call, 0.0)]


def _loop(threads: int) -> Callable[..., object]:
    """A task for each thread, of additions that wait for each other, in a line of its own."""
    use_threads(threads)  # before TVM tells the code where its pool is
    with kernel_function("lines") as builder:
        out = parameter("out", (threads * LINE,), "int64")
        with task_loop(threads) as task, I.serial(TASK_STEPS):
            value = out[task * LINE] ^ tirx.const(0x5A5A5A5A5A5A, "int64")
            I.buffer_store(out, value + tirx.const(0x1234567, "int64"), [task * LINE])
    function = builder.get().with_attr("global_symbol", "lines")
    code: Callable[..., object] = tvm.compile(function, target=host_target())["lines"]
    return code
