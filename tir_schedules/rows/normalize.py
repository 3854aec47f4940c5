"""Templates "softmax", "log_softmax", "layer_norm", "rms_norm", with an epilogue in registers.

    softmax       y = exp(x - max) / sum(exp(x - max))
    log_softmax   y = x - max - log(sum(exp(x - max)))
    layer_norm    y = (x - mean) / sqrt(variance + epsilon) * gamma + beta
    rms_norm      y = x / sqrt(mean(x * x) + epsilon) * weight

Softmax runs along any one axis (`axis`); the norms run over all axes from `axis` on.
`normalize_rows` handles contiguous rows, `normalize_columns` inner axes. The threads of one
parallel region share the rows, or strips of columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.registry import tile_kernels_for
from microkernels.vector.expressions import Expr, Index, materialise
from tir_schedules.core import blocking, emission, extents, template
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.emission import branch
from tir_schedules.core.region import Region
from tir_schedules.core.size import SAMPLE, SymbolicSize, is_dynamic
from tir_schedules.cost import cost, parallel
from tir_schedules.epilogue.epilogue import Epilogue

from .normalize_rows import ColumnStrip, DynamicColumns, Rows
from .normalize_view import NORM_OPS, SOFTMAX_OPS, View, dynamic_view, view_of

_ALIASING = 4096  # bytes: at multiples of this distance, a load waits for an earlier store
_FLOAT_BYTES = 4
_CHAINS = 8  # sums that hide the latency of an addition

OUTPUT_DTYPES = ("float32", "bfloat16", "uint8", "int8")  # and float16 for tiles that read it


class NormalizeConfig(Config, frozen=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    rows : int
        Rows that are interleaved; 1 for an inner axis.
    unroll : int
        Vectors in one iteration along a row, or side by side for an inner axis.
    keep : bool
        Whether a row stays in registers between its reductions and the store.
    chunk : int
        Vectors after which statistics are merged, for rows beyond cache.
    threads : int
        Threads that share the rows.
    alone_rows : int
        If rows or columns are dynamic, up to this number of them one thread runs all.
    """

    rows: int
    unroll: int
    keep: bool
    chunk: int
    threads: int = 1
    alone_rows: int = 0


def view(region: Region) -> View:
    """The view of a region.

    Raises
    ------
    ConfigError
        If the template does not build the region.
    """
    result = view_of(region)
    if isinstance(result, str):
        raise ConfigError(f"{result}, in {region.key}")
    return result


def default_config(region: Region, machine: Machine) -> NormalizeConfig:
    """A configuration by closed formula; no tuning is needed."""
    dynamic_rows, dynamic_length = region.is_dynamic, is_dynamic((view(region).n,))
    region = region.sampled()
    seen, lanes = view(region), machine.isa.f32_lanes
    vectors = math.ceil(seen.n / lanes)
    work = seen.outer * vectors if seen.inner == 1 else region.inputs[0].size // lanes
    threads = parallel.threads_worth(machine, cost.norm_us(work, machine))
    line = vectors if seen.inner == 1 else seen.n / lanes
    alone = parallel.alone_below(machine, cost.norm_us(line, machine)) if dynamic_rows else 0
    if seen.inner > 1:
        unroll = min(4, math.ceil(seen.inner / lanes))
        return NormalizeConfig(1, unroll, False, 1 << 20, threads, alone)
    # A few vectors stay in registers; more are as fast from L1, and compile sooner.
    keep = vectors <= 4 and not dynamic_length
    rows = min(_rows_in_flight(region, vectors, 4 * seen.n), seen.outer)
    unroll = min(_CHAINS // rows, vectors)
    fits = machine.l2_bytes // 2 // (4 * lanes * rows)
    chunk = vectors if vectors <= fits else machine.l1_bytes // 2 // (4 * lanes * rows)
    return NormalizeConfig(rows, unroll, keep, chunk, threads, alone)


def _rows_in_flight(region: Region, vectors: int, pitch: int) -> int:
    """Returns how many rows at once hide the latency of their reductions."""
    # Rows a multiple of `_ALIASING` apart, of x and of the result, share one L1 set of 8 ways, and
    # loads wait for stores to addresses with equal low bits: on Zen 4, two rows of 3072 numbers
    # took up to 1.2 (rms_norm) and 1.5 (softmax) times as long as one after the other. The two sums
    # of layer_norm hide less: there one row took 1.1 times as long as each of two.
    if pitch % _ALIASING == 0:
        return 2 if region.op == "layer_norm" else 1
    # Long rows have enough work.
    if region.op not in NORM_OPS:
        return 4 if vectors <= 16 else 2
    return 6 if vectors <= 32 else 4


def check(region: Region, config: NormalizeConfig, isa: Isa) -> None:
    """Refuses a configuration that is not legal.

    Raises
    ------
    ConfigError
        If a field is out of range; the message names it.
    """
    check_numbers(region, config, {"rows": 16, "unroll": 32, "chunk": 1 << 30, "threads": 4096})
    if config.keep:
        seen = view(region)
        vectors = math.ceil(seen.n / isa.f32_lanes)
        if seen.inner > 1 or config.rows * vectors > 256 or config.chunk < vectors:
            raise ConfigError(
                f"{config.rows} rows of {vectors} vectors cannot be kept, for {region.key}"
            )


def share_rows(loops: Rows, count: int, config: NormalizeConfig) -> None:
    """Emits all rows, in one parallel region over the configuration's threads."""
    if isinstance(count, SymbolicSize):
        total = extents.as_expr(extents.extent(count))
        few = _few(loops.view, total, config)
        with emission.dynamic_tasks(config.threads, few) as (task, tasks):
            for_rows(loops, *emission.share_of(total, task, tasks), config)
        return
    rows = blocking.shares(count, min(config.threads, count))
    with emission.task_loop(sum(group.count for group in rows)) as task:
        emission.for_share(rows, task, lambda first, size: for_rows(loops, first, size, config))


def _few(seen: View, rows: Expr, config: NormalizeConfig) -> Expr:
    """Whether `rows` rows, or columns, are too few for several threads."""
    if not is_dynamic((seen.n,)):
        return rows <= config.alone_rows
    # `alone_rows` counts rows of the sample's length.
    return rows * extents.extent(seen.n) <= config.alone_rows * SAMPLE


def for_rows(loops: Rows, first: Expr, rows: Index, config: NormalizeConfig) -> None:
    """Emits `rows` rows from `first` on, in the calling thread.

    If their number is dynamic, the last rows run singly, and so do all rows a multiple of
    `_ALIASING` apart: code for other numbers of rows is not worth its size.
    """
    if isinstance(rows, int):
        groups = blocking.balanced(rows, config.rows)
        emission.for_groups(groups, lambda row, many: loops.block(first + row, many))
        return
    if config.rows == 1:
        with I.serial(rows) as number:
            loops.block(first + number, 1)
        return
    blocks = I.floordiv(rows, config.rows)
    if is_dynamic((loops.view.n,)):
        pitch = extents.as_expr(extents.extent(loops.view.n)) * _FLOAT_BYTES
        blocks = tirx.Select(I.floormod(pitch, _ALIASING) == 0, tirx.const(0, "int32"), blocks)
    whole = materialise(blocks)
    with I.serial(whole) as number:
        loops.block(first + number * config.rows, config.rows)
    vectors = _CHAINS if is_dynamic((loops.view.n,)) else math.ceil(loops.view.n / loops.lanes)
    single = replace(loops, unroll=max(loops.unroll, min(_CHAINS, vectors)))
    with I.serial(rows - whole * config.rows) as left:
        single.block(first + whole * config.rows + left, 1)


def _share_strips(strip: ColumnStrip, outer: int, config: NormalizeConfig) -> None:
    """Every thread gets a share of the (outer index, strip) pairs."""
    vectors = math.ceil(strip.view.inner / strip.lanes)  # the last one may be partial
    groups = blocking.balanced(vectors, config.unroll)
    cut = strip.view.inner % strip.lanes
    strips = sum(group.count for group in groups)
    items = blocking.shares(outer * strips, min(config.threads, outer * strips))

    def item(index: Expr) -> None:
        number, at = I.floormod(index, strips), I.floordiv(index, strips)
        larger, last = groups[0], groups[-1]
        if len(groups) == 1 and not (last.count > 1 and cut):
            strip.block(at, number * larger.size, larger.size, cut)
            return

        def whole() -> None:
            strip.block(at, number * larger.size, larger.size, 0)

        def others() -> None:
            if len(groups) == 1 or last.count == 1:
                whole()
                return
            start = last.start + (number - larger.count) * last.size
            branch(number < larger.count, whole, lambda: strip.block(at, start, last.size, 0))

        begin = tirx.const(vectors - last.size, "int32")
        branch(number == strips - 1, lambda: strip.block(at, begin, last.size, cut), others)

    def part(start: Expr, size: int) -> None:
        groups = blocking.balanced(size, 1)
        emission.for_groups(groups, lambda offset, _one: item(start + offset))

    with emission.task_loop(sum(group.count for group in items)) as task:
        emission.for_share(items, task, part)


class Normalize(template.Template[NormalizeConfig]):
    """One of the normalisations, with an epilogue in registers."""

    config_type = NormalizeConfig
    any_sizes = True
    default_config = staticmethod(default_config)
    check = staticmethod(check)

    def __init__(self, op: str) -> None:
        self.name = op

    def space(self, region: Region, machine: Machine) -> Iterator[NormalizeConfig]:
        """The default, then other numbers of rows and vectors, held in registers or not."""
        default = default_config(region, machine)
        yield default
        region = region.sampled()
        seen = view(region)
        vectors = math.ceil(seen.n / machine.isa.f32_lanes)
        for rows in (1, 2, 3, 4, 6, 8) if seen.inner == 1 else (1,):
            for unroll in (1, 2, 4, 8):
                for keep in (False, True):
                    holds = not keep or (seen.inner == 1 and rows * vectors <= 64)
                    numbers = {"rows": rows, "unroll": unroll, "keep": keep}
                    config = msgspec.structs.replace(default, **numbers)
                    if holds and rows <= seen.outer and config != default:
                        yield config

    def build(self, region: Region, config: NormalizeConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel: x, weights, operands, output."""
        check(region, config, isa)
        seen = view(region)
        with emission.kernel_function(region.op) as builder:
            pairs = zip(("X", "gamma", "beta"), region.inputs, strict=False)
            inputs = [emission.tensor_parameter(*each) for each in pairs]
            operands = emission.operand_parameters(region)
            output = emission.tensor_parameter("Y", region.output)
            if region.is_dynamic:
                extents.read_extents()
                seen = dynamic_view(seen)
            x = extents.reshaped(inputs[0], region.inputs[0], seen.shape)
            further = zip(inputs[1:], region.inputs[1:], strict=True)
            weights = [extents.reshaped(*each, (seen.n,)) for each in further]
            views = extents.operand_views(operands, region, seen.region)
            out = extents.reshaped(output, region.output, seen.shape)
            epilogue = Epilogue(seen.region, views)
            if seen.inner == 1:
                numbers = isa.f32_lanes, config.unroll, config.keep, config.chunk
                loops = Rows(seen, *numbers, x, weights, out, epilogue)
                share_rows(loops, seen.outer, config)
            elif region.is_dynamic:
                columns = DynamicColumns(seen, isa.f32_lanes, config.unroll, x, out, epilogue)
                columns.share(config.threads, lambda number: _few(seen, number, config))
            else:
                strip = ColumnStrip(seen, isa.f32_lanes, config.unroll, x, out, epilogue)
                _share_strips(strip, seen.outer, config)
        return builder.get()

    def kernel_name(self, region: Region, config: NormalizeConfig, isa: Isa) -> str:
        """The loops and the ISA, such as "avx512_rows_softmax"."""
        level = isa.vector_level
        where = "rows" if view(region).inner == 1 else "columns"
        return f"{level}_{where}_{region.op}"

    def flops(self, region: Region) -> int:
        """Operations, with an exponential as one: 5 for each number of softmax, 7 of layer_norm."""
        steps = {"softmax": 5, "log_softmax": 5, "layer_norm": 7, "rms_norm": 4}
        return steps[region.op] * region.inputs[0].size

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The result in float64, without the epilogue."""
        x = inputs[0].astype(np.float64)
        axis = region.integer("axis")
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if region.op in SOFTMAX_OPS:
                shifted = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
                total = np.exp(shifted).sum(axis=axis, keepdims=True)
                if region.op == "softmax":
                    return np.exp(shifted) / total
                return shifted - np.log(total)
            axes = tuple(range(axis, x.ndim))
            if 0 in x.shape:
                return x
            if region.op == "layer_norm":
                x = x - x.mean(axis=axes, keepdims=True)
            variance = np.square(x).mean(axis=axes, keepdims=True)
            result = x / np.sqrt(variance + region.real("epsilon"))
            for weight, combine in zip(inputs[1:], (np.multiply, np.add), strict=False):
                result = combine(result, weight.astype(np.float64).reshape(x.shape[axis:]))
            return result

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        for tensor in region.inputs:
            if tensor.dtype != "float32":
                return f"a tensor of type {tensor.dtype}"
        tiles = tile_kernels_for(isa, "float16", "float16")
        half = tiles and region.output.dtype == "float16"
        if not half and region.output.dtype not in OUTPUT_DTYPES:
            return f"output of type {region.output.dtype}"
        x = region.inputs[0]
        if x.size == 0:
            return "a dimension is 0"
        if region.output.shape != x.shape:
            return f"output of shape {region.output.shape}, not {x.shape}"
        seen = view_of(region)
        if isinstance(seen, str):
            return seen
        if seen.inner > 1 and region.output.dtype != "float32":
            return f"output of type {region.output.dtype} along an inner axis"
        for weight in region.inputs[1:]:
            if weight.size != seen.n:
                return f"a weight of {weight.size} numbers for {seen.n}"
        return None

    def at_run_time(self, region: Region, config: NormalizeConfig) -> str:
        """What is decided at run time, for `explain`."""
        seen = view(region)
        alone = f"; up to {config.alone_rows} rows: one thread" if config.threads > 1 else ""
        if seen.inner != 1:
            return f"strips of {config.unroll} vectors of columns, then single ones{alone}"
        length = "; how long rows are" if is_dynamic((seen.n,)) else ""
        return f"blocks of {config.rows} rows, then single ones{alone}{length}"


for _op in (*SOFTMAX_OPS, *NORM_OPS):
    template.register_template(Normalize(_op))
