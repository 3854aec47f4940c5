"""Template "recurrent": all steps of an LSTM, GRU or RNN, in one direction or in both.

    part [steps, batch, directions * gates * hidden], weight [directions, gates * hidden, hidden];
    optional: h, c [directions, batch, hidden], bias [directions, hidden] of a GRU's third gate,
    peepholes [directions, 3 * hidden], lengths [batch], scales [directions, gates * hidden] of a
    weight of 8 bits
        ->  [steps + states, directions, batch, hidden]: h of all steps, then the final h and c

The input parts are what x and the other biases add to the gates. Directions and sequences are
independent of each other; threads share them. The weight is packed in panels with all gates of some
hidden values, so that a tile has whole cells.
"""

from __future__ import annotations

import json

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import blocking, emission, template
from tir_schedules.core.extents import allocated, as_expr, extent, read_extents
from tir_schedules.core.region import Region, Tensor
from tir_schedules.rows.quantization_range import LARGEST, dynamic_range

from . import config as configs
from .activations import ARRAYS, Cell
from .config import Panels, RecurrentConfig
from .problem import RECURRENT, RecurrentProblem, misfit
from .steps import Buffers, EmitTile, FinishTile, ForTiles, Steps
from .weight import WEIGHT, RecurrentWeight, RestsOf, large_pairs

RECURRENT_ATTRS = "tvm_hybrid.recurrent"
"""Attribute of `plain_function`: the attributes of its region, as JSON."""


def plain_function(region: Region) -> tirx.PrimFunc:
    """The meaning of a region as scalar code, which reads the weight unpacked.

    TVM's own passes can compile it, as no size and no index is read from memory.
    """
    problem = RecurrentProblem.of(region)
    name = "scalar_u8s8s32_4x4" if problem.quantized else "scalar_f32_4x4"
    config = RecurrentConfig(kernel=name, rows=1, units=1)
    kernel, panels = configs.kernel_of(problem, config), configs.panels_of(problem, config)
    with emission.kernel_function(region.op) as builder:
        parameters = _parameters(region, problem, region.inputs[1])
        steps, batch = (ex.cast("int32", size) for size in parameters["part"].shape[:2])

        def read(side: Expr, panels: Panels, panel: Expr, vector: int, k: Index) -> Expr:
            row = panels.gates[vector] * problem.hidden + panel
            return ex.cast(kernel.b_dtype, parameters["weight"][side, row, k])

        def each(multiply: EmitTile, finish: FinishTile) -> None:
            with I.serial(batch) as row, emission.opaque_block("sequence"):
                multiply(row, 1)
                finish(row, 1)

        buffers = Buffers(problem, kernel, batch, parameters)
        with I.serial(problem.directions) as side, emission.opaque_block("direction"):
            width = max(map(len, problem.products))
            buffers.sums = I.sblock_alloc_buffer((1, width), kernel.acc_dtype)
            own = Steps(problem, kernel, buffers, panels, read, side, steps, ex.bind)
            own.emit(tirx.const(0, "int32"), batch, each)
    attrs = json.dumps(dict(region.attrs), sort_keys=True)
    function = builder.get().without_attr(emission.EXACT_BUFFERS).without_attr("global_symbol")
    return function.with_attr(RECURRENT_ATTRS, attrs).with_attr("tirx.is_scheduled", True)


def _parameters(region: Region, problem: RecurrentProblem, stored: Tensor) -> dict[str, Expr]:
    """The parameters of the function under construction, for a weight stored as `stored`."""
    names = ("part", "weight", *problem.given, "output")
    tensors = (region.inputs[0], stored, *region.inputs[2:], region.output)
    return dict(zip(names, map(emission.tensor_parameter, names, tensors), strict=True))


def _known(total: int, most: int) -> ForTiles:
    """Returns a function that emits the tiles of a static number of sequences."""
    tall, *others = blocking.balanced(total, most)

    def run(multiply: EmitTile, finish: FinishTile) -> None:
        def tile(start: Index, size: int) -> None:
            multiply(start, size)
            finish(start, size)

        if not others:
            emission.for_groups((tall,), tile)
            return
        # One loop has tiles of both heights: a single tile outside of the loop would lose its
        # registers to constants of the cells, which LLVM keeps for the inner loop.
        with I.serial(tall.count + others[0].count) as number, emission.opaque_block("piece"):
            start = ex.materialise(number * others[0].size + tirx.Min(number, tall.count))
            rows = ex.materialise(tirx.Select(number < tall.count, tall.size, others[0].size))
            emission.choose(rows, [others[0].size, tall.size], lambda size: multiply(start, size))
            finish(start, rows)

    return run


def _dynamic(total: Expr, most: int, vectors: int) -> ForTiles:
    heights = blocking.tail_heights(most, vectors)
    return lambda multiply, finish: emission.for_tiles(total, heights, multiply, finish)


def _rounded(states: np.ndarray) -> np.ndarray:
    """Each row rounded to 8 bits in float32, so that numbers near a tie go as in the kernel."""
    states = states.astype(np.float32)
    scale, zero_point = np.array([dynamic_range(row) for row in states]).T[..., None]
    return np.clip(np.rint(states / scale), -zero_point, LARGEST - zero_point) * scale


class Recurrent(template.Template[RecurrentConfig]):
    """All steps of an LSTM, GRU or RNN."""

    name = RECURRENT
    config_type = RecurrentConfig
    any_sizes = True
    default_config = staticmethod(configs.default_config)
    space = staticmethod(configs.space)
    check = staticmethod(configs.check)
    estimate = staticmethod(configs.estimate)

    @staticmethod
    def packing(
        region: Region, config: RecurrentConfig, isa: Isa, index: int
    ) -> RecurrentWeight | None:
        """Panels of the weight; other constants stay as they are."""
        return RecurrentWeight(region, config, isa) if index == WEIGHT else None

    def reject(self, region: Region, isa: Isa) -> str | None:
        """Why the template cannot build a region, or None."""
        if not region.inputs[1].constant:
            return "a weight of bytes that is not known before a run"
        return misfit(region)

    def at_run_time(self, region: Region, config: RecurrentConfig) -> str:
        """What is decided at run time, for `explain`."""
        return f"steps; tiles of up to {config.rows} sequences"

    def build(self, region: Region, config: RecurrentConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel: input parts, packed weight, optional inputs, output."""
        weight = RecurrentWeight(region, config, isa)
        problem, kernel, panels = weight.problem, weight.kernel, weight.panels
        size = sum(each.size for each in panels)
        vectors = max(each.vectors for each in panels)
        stored = Tensor(weight.shape, kernel.b_dtype)
        with emission.kernel_function(region.op) as builder:
            parameters = _parameters(region, problem, stored)
            read_extents()
            batch, sides = extent(problem.batch), problem.directions
            known = batch if isinstance(batch, int) else None
            parts = configs.parts_of(problem, config.threads, known)

            def packed(side: Expr, panels: Panels, panel: Expr, vector: int, k: Index) -> Expr:
                width = kernel.lanes * kernel.kr
                step = side * size + panels.start
                step = step + (panel * panels.steps + k) * (panels.vectors * width)
                place = step + vector * width
                return configs.loaded(kernel.b_operand(parameters["weight"], place, 0))

            def sums_of(side: Expr, column: Expr) -> Expr:
                column = side * (problem.gates * problem.hidden) + column
                place = weight.sums_at + 4 * column
                found = parameters["weight"][ex.ramp(place, 4 * kernel.lanes)]
                return ex.reinterpret_group("int32", found, kernel.lanes)

            buffers = Buffers(problem, kernel, allocated(problem.batch), parameters, sums_of)
            with emission.task_loop(sides * parts, threads=config.threads) as task:
                side = ex.materialise(I.floordiv(task, parts))
                share = ex.materialise(task - side * parts)
                shape = config.rows, vectors * kernel.lanes
                buffers.sums = I.sblock_alloc_buffer(shape, kernel.acc_dtype)
                loops = problem, kernel, buffers, panels, packed, side
                rests = None if weight.large is None else RestsOf(weight, parameters["weight"])
                count, prefetches = as_expr(extent(problem.steps)), config.rows > 1
                steps = Steps(*loops, count, ex.materialise, rests, prefetches)
                if known is None:
                    first, rows = emission.share_of(as_expr(batch), share, parts)
                    steps.emit(first, rows, _dynamic(rows, config.rows, vectors))
                elif known:

                    def some(first: Expr, rows: int) -> None:
                        steps.emit(first, rows, _known(rows, config.rows))

                    emission.for_share(blocking.shares(known, parts), share, some)
        return builder.get()

    def kernel_name(self, region: Region, config: RecurrentConfig, isa: Isa) -> str:
        """The microkernel, with the tile that runs."""
        return configs.kernel_of(RecurrentProblem.of(region), config).name

    def flops(self, region: Region) -> int:
        """Multiplications and additions of the recurrence."""
        problem = RecurrentProblem.of(region)
        sequences = problem.steps * problem.batch * problem.directions
        return 2 * sequences * problem.gates * problem.hidden**2

    def reference(self, region: Region, inputs: list[np.ndarray]) -> np.ndarray:
        """The result in float64."""
        problem = RecurrentProblem.of(region)
        part, recurrence = (array.astype(np.float64) for array in inputs[:2])
        optional = dict(zip(problem.given, inputs[2:], strict=True))
        if problem.quantized:
            recurrence = recurrence * optional["scales"][..., None]
        steps, batch, _ = part.shape
        sides, hidden = problem.directions, problem.hidden
        output = np.zeros((steps + problem.shown, sides, batch, hidden))
        cell = Cell(problem, ARRAYS)
        lengths = optional.get("lengths", np.full(batch, steps))
        for side in range(sides):
            states = [np.zeros((batch, hidden)) for _ in range(problem.states)]
            for number, name in enumerate(("hidden", "memory")[: problem.states]):
                if name in optional:
                    states[number] = optional[name][side].astype(np.float64)
            gates = np.split(recurrence[side], problem.gates)
            bias = optional["bias"][side] if "bias" in optional else 0
            peepholes = np.split(optional["peepholes"][side], 3) if "peepholes" in optional else []
            backward = problem.direction == "reverse" or side == 1
            for step in range(steps)[:: -1 if backward else 1]:
                own = part[step].reshape(batch, sides, problem.gates * hidden)[:, side]
                given = np.split(own, problem.gates, axis=1)
                h = _rounded(states[0]) if problem.quantized else states[0]
                if problem.cell == "rnn":
                    new = [cell.activate(0, given[0] + h @ gates[0].T)]
                elif problem.cell == "lstm":
                    sums = [x + h @ w.T for x, w in zip(given, gates, strict=True)]
                    new = list(cell.lstm(sums, states[1], peepholes))
                else:
                    z, r = (cell.activate(0, given[n] + h @ gates[n].T) for n in (0, 1))
                    linear = problem.cell == "gru_linear"
                    inner = r * (h @ gates[2].T + bias) if linear else (r * h) @ gates[2].T
                    new = [cell.gru(z, given[2] + inner, h)]
                within = (step < lengths)[:, None]
                states = [np.where(within, *pair) for pair in zip(new, states, strict=True)]
                output[step, side] = np.where(within, states[0], 0)
            for number in range(problem.shown):
                output[steps + number, side] = states[number]
        return output

    def by_values(self, region: Region, config: RecurrentConfig) -> str:
        """What the weight's values decide, for `explain`."""
        if large_pairs(RecurrentProblem.of(region), config) is None:
            return ""
        return "pairs of bytes if few of the weight's pairs are large, else bytes as words"


RECURRENT_TEMPLATE = template.register_template(Recurrent())
