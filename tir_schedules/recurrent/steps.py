"""The loops of a recurrent kernel: steps, panels of hidden values, tiles of sequences.

    for each step
        round h to levels, if products are of 8 bits
        for each product of a step (a GRU has two)
            for each panel of hidden values
                for each tile of sequences: multiply h by the panel, starting with the input part
                    for each sequence, each vector of hidden values: the cell

States are kept twice: a step reads one copy and writes the other. For products of bfloat16, h is
rounded where it is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.kernels.byte_pairs import halves_tile
from microkernels.microkernel import Microkernel, whole_loop
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, Index, bind, constant, ramp, reinterpret, splat
from microkernels.vector.memory import PREFETCH_LLVM_IR, prefetch
from tir_schedules.core.emission import opaque_block

from .activations import Cell, vector_mathematics
from .config import Levels, Panels, ReadSums, loaded
from .problem import RecurrentProblem
from .weight import RestsOf

MOST_WRITTEN = 4
"""Most vectors of several static rows whose cells LLVM may unroll. With more, products lose their
registers to the cells: as a loop, an RNN of 8 sequences takes 0.62 of the time. Two rows by two
vectors of a GRU take 1.05 to 1.10 of the time as a loop."""

EmitTile = Callable[[Index, int], None]
FinishTile = Callable[[Index, Index], None]
CellBody = Callable[["_Tiles", Expr, Expr, Expr, Expr], None]
"""(tile, its first sequence, row of the tile, unit, first hidden value) -> None."""
ForTiles = Callable[[EmitTile, FinishTile], None]
ReadWeight = Callable[[Expr, Panels, Expr, int, Index], Expr]


class Buffers:
    """The parameters by name, and what the kernel allocates.

    Attributes
    ----------
    states : sequence of Buffer
        h, and of an LSTM c: [2, directions, batch, hidden].
    kept : sequence of Buffer
        For a GRU that resets before it multiplies: z, and the reset h.
    rounded : sequence of Buffer
        For products of bfloat16: h, [2, directions, batch, steps of K * kr], and for a GRU that
        resets before it multiplies the reset h, without the first axis; both as bits.
    levels : Levels or None
        Levels of states, for products of 8 bits.
    sums : Buffer
        Accumulators of a tile; each task allocates its own.
    """

    sums: Expr

    def __init__(
        self,
        problem: RecurrentProblem,
        kernel: Microkernel,
        batch: Index,
        parameters: dict[str, Expr],
        read_sums: ReadSums | None = None,
    ) -> None:
        self.parameters, shape = parameters, (problem.directions, batch, problem.hidden)
        self.states: list[Expr] = [
            I.sblock_alloc_buffer((2, *shape), problem.dtype) for _ in range(problem.states)
        ]
        self.levels, self.rounded, self.kept = None, list[Expr](), list[Expr]()
        if problem.quantized:
            self.levels = Levels(problem, kernel, batch, parameters["scales"], read_sums)
        if kernel.a_dtype == "bfloat16":
            width = kernel.steps(problem.hidden) * kernel.kr
            whole = (problem.directions, batch, width)
            shapes = [(2, *whole), whole] if problem.cell == "gru" else [(2, *whole)]
            self.rounded += [I.sblock_alloc_buffer(each, "uint16") for each in shapes]
        if problem.cell == "gru":
            self.kept += [I.sblock_alloc_buffer(shape, problem.dtype) for _ in range(2)]


@dataclass(frozen=True)
class Steps:
    """All steps of some sequences in one direction.

    Attributes
    ----------
    read_weight : callable
        (direction, panels, number of the panel, vector, step of K) -> the weight's vector.
    side : Expr
        The direction, counted from 0.
    steps : Expr
        Number of steps.
    named : callable
        Gives an index a name.
    rests : RestsOf or None
        The products that pairs of bytes cannot add.
    prefetches : bool
        Whether a tile prefetches the input parts of the next one.
    """

    problem: RecurrentProblem
    kernel: Microkernel
    buffers: Buffers
    panels: Sequence[Panels]
    read_weight: ReadWeight
    side: Expr
    steps: Expr
    named: Callable[[Expr], Expr]
    rests: RestsOf | None = None
    prefetches: bool = False

    @cached_property
    def cell(self) -> Cell:
        """Computes states from gates, over vectors."""
        return Cell(self.problem, vector_mathematics(self.problem.dtype))

    def emit(self, first: Expr, rows: Index, for_tiles: ForTiles) -> None:
        """Emits the steps of the sequences from `first` on; `for_tiles` cuts the sequences."""
        self._begin(first, rows)
        with I.serial(self.steps) as step, opaque_block("step"):
            backward = self.steps - 1 - step
            time = backward if self.problem.direction == "reverse" else step
            if self.problem.direction == "bidirectional":
                time = tirx.Select(tirx.EQ(self.side, 0), step, backward)
            step_of = _TimeStep(self, self.named(time), self.named(step % 2))
            levels, state = self.buffers.levels, self.buffers.states[0]
            if levels is not None:
                # The levels of each sequence's h.
                with I.serial(rows) as i, opaque_block("round"):
                    at = self.side, self.named(first + i)
                    levels.round(at, lambda columns: state[(step_of.now, *at, columns)])
            for number, panels in enumerate(self.panels):
                with I.serial(panels.count) as panel, opaque_block("panel"):
                    place = self.named(tirx.Min(panel * panels.width, panels.hidden - panels.width))
                    tiles = _Tiles(number, panel, place, first, rows)
                    for_tiles(partial(step_of.multiply, tiles), partial(step_of.finish, tiles))
        self._end(first, rows)

    def _each_vector(self, first: Expr, rows: Index, body: Callable[[Expr, Expr], None]) -> None:
        """Runs `body(sequence, vector's columns)` for all hidden values; the last may overlap."""
        lanes, hidden = self.kernel.lanes, self.problem.hidden
        with I.serial(rows) as row, I.serial(-(-hidden // lanes)) as vector, opaque_block("state"):
            start = tirx.Min(vector * lanes, hidden - lanes)
            body(first + row, ramp(self.named(start), lanes))

    def _begin(self, first: Expr, rows: Index) -> None:
        """Stores the initial states."""
        zero = constant(0, self.problem.dtype, self.kernel.lanes)

        def begin(row: Expr, columns: Expr) -> None:
            for name, state in zip(("hidden", "memory"), self.buffers.states, strict=False):
                given = self.buffers.parameters.get(name)
                value = zero if given is None else given[self.side, row, columns]
                I.buffer_store(state, value, [0, self.side, row, columns])
                if name == "hidden":
                    self.round(0, [0, self.side, row], columns, value)

        self._pad(first, rows)
        self._each_vector(first, rows, begin)

    def round(self, number: int, row: Sequence[Index], columns: Expr, value: Expr) -> None:
        """Stores a vector for products of bfloat16; does nothing for other products."""
        if self.buffers.rounded:
            bits = bfloat16.narrow(bind(value))
            I.buffer_store(self.buffers.rounded[number], bits, [*row, columns])

    def _pad(self, first: Expr, rows: Index) -> None:
        """Stores zeros after rounded states, for the last step of K."""
        hidden = self.problem.hidden
        padding = self.kernel.steps(hidden) * self.kernel.kr - hidden
        if not self.buffers.rounded or not padding:
            return
        zero = constant(0, "uint16", 1)
        with I.serial(rows) as i, opaque_block("pad"):
            row = self.named(first + i)
            for column in range(hidden, hidden + padding):
                for number, buffer in enumerate(self.buffers.rounded):
                    for half in ([],) if number else ([0], [1]):
                        I.buffer_store(buffer, zero, [*half, self.side, row, column])

    def _end(self, first: Expr, rows: Index) -> None:
        """Stores the final states, after those of all steps."""
        if not self.problem.shown:
            return

        def end(row: Expr, columns: Expr) -> None:
            for number, state in enumerate(self.buffers.states):
                value = state[self.steps % 2, self.side, row, columns]
                place = [self.steps + number, self.side, row, columns]
                I.buffer_store(self.buffers.parameters["output"], value, place)

        self._each_vector(first, rows, end)


@dataclass(frozen=True)
class _Tiles:
    """The tiles of one panel.

    Attributes
    ----------
    product : int
        The number of the product in the step.
    panel : Expr
        The number of the panel.
    place : Expr
        Its first hidden value.
    first : Expr
        The first sequence.
    sequences : Expr or int
        Number of sequences.
    """

    product: int
    panel: Expr
    place: Expr
    first: Expr
    sequences: Index


@dataclass(frozen=True)
class _TimeStep:
    """One step of a sequence.

    Attributes
    ----------
    time : Expr
        Its place in the sequence.
    now : Expr
        0 or 1: which copy of the states it reads.
    """

    of: Steps
    time: Expr
    now: Expr

    def multiply(self, tiles: _Tiles, begin: Index, rows: int) -> None:
        """Emits the sums of a tile: input parts, or biases, and products."""
        of, product, place, row = self.of, tiles.product, tiles.place, tiles.first + begin
        panels, lanes, levels = of.panels[product], of.kernel.lanes, of.buffers.levels

        def start(i: Index, vector: int) -> Expr:
            unit, gate = divmod(vector, len(panels.gates))
            columns = place + unit * lanes
            if levels is not None:
                first = panels.gates[gate] * panels.hidden + columns
                return levels.start((of.side, row + i), first)
            if self._apart(panels.gates[gate]):
                bias = of.buffers.parameters.get("bias")
                zero = constant(0, of.problem.dtype, lanes)
                return zero if bias is None else bias[of.side, ramp(columns, lanes)]
            return self._part(row + i, panels.gates[gate], columns)

        # A GRU's second product multiplies the reset h.
        state = of.buffers.kept[1] if product else of.buffers.states[0]
        index = [of.side] if product else [self.now, of.side]

        def operand(i: int, ks: Sequence[Index]) -> Expr:
            if levels is not None:
                return levels.operand((of.side, row + i), ks[0] * of.kernel.kr)
            if of.buffers.rounded:
                bits = of.buffers.rounded[1 if product else 0]
                place = [*index, row + i, ks[0] * of.kernel.kr]
                return loaded(of.kernel.a_operand(bits, place, 0))
            return splat(state[(*index, row + i, ks[0])], lanes)

        def weight(j: int, ks: Sequence[Index]) -> Expr:
            return of.read_weight(of.side, panels, tiles.panel, j, ks[0])

        def accumulate(kernel: Microkernel) -> None:
            kernel.accumulate(tile, range(rows), (panels.steps,), operand, weight)

        if of.prefetches:
            self._prefetch(tiles, row, rows)
        tile = of.kernel.begin(rows, panels.vectors, start)
        if of.rests is None:
            accumulate(of.kernel)
        else:
            with I.If(of.rests.fit):
                with I.Then():
                    accumulate(of.kernel)
                    assert levels is not None
                    # The products that pairs of bytes cannot add.
                    with I.serial(of.rests.count) as entry:
                        for j in range(tile.vectors):
                            number = of.side * panels.count + tiles.panel
                            at, vector = map(bind, of.rests.entry(number, entry, j))
                            for i in range(tile.rows):
                                level = levels.operand((of.side, row + i), at)
                                of.kernel.update(tile, i, j, level, vector)
                with I.Else():
                    accumulate(halves_tile(of.kernel))
        for i in range(rows):
            for j in range(panels.vectors):
                I.buffer_store(of.buffers.sums, tile.value(i, j), [i, ramp(j * lanes, lanes)])

    def _prefetch(self, tiles: _Tiles, row: Expr, rows: int) -> None:
        """Prefetches the input parts of the next rows, or of the next panel's first rows."""
        of, panels = self.of, self.of.panels[tiles.product]
        last = row + rows >= tiles.first + tiles.sequences
        following = tirx.Min(tiles.place + panels.width, panels.hidden - panels.width)
        row = of.named(tirx.Select(last, tiles.first, row + rows))
        place = of.named(tirx.Select(last, following, tiles.place))
        # Rows of parts are often a multiple of 4 KB apart, where no CPU prefetches by itself. With
        # 32 sequences of 256 values and weights of 8 bits, an LSTM takes 0.77 to 0.97 of the time.
        with llvm_functions(PREFETCH_LLVM_IR):
            for i in range(rows):
                for unit in range(panels.units):
                    for gate in panels.gates:
                        if not self._apart(gate):
                            column = self._column(gate) + place + unit * of.kernel.lanes
                            prefetch(of.buffers.parameters["part"][self.time, row + i, column])

    def finish(self, tiles: _Tiles, begin: Index, rows: Index) -> None:
        """Emits a tile's cells from its sums, with a loop for each function that waits for another.

        A vector's chain of functions is longer than a CPU looks ahead. A vector of an LSTM's cells
        takes 132 cycles on Zen 4 in three loops, 158 to 179 if one loop has all gates and c.
        """
        loops: dict[str, tuple[CellBody, ...]] = {
            "lstm": (self._begin_lstm, self._remember, self._show),
            "gru_linear": (self._begin_gru, self._cell),
        }
        of, panels, row = self.of, self.of.panels[tiles.product], tiles.first + begin
        many = isinstance(rows, int) and rows > 1 and rows * panels.units > MOST_WRITTEN
        for body in loops.get(of.problem.cell, (self._cell,)):
            if many:
                # In an inner loop, LLVM would prefer constants of cells to accumulators.
                with whole_loop(rows * panels.units, hidden=True) as number, opaque_block("cell"):
                    i = of.named(I.floordiv(number, panels.units))
                    unit = of.named(number - i * panels.units)
                    body(tiles, row, i, unit, of.named(tiles.place + unit * of.kernel.lanes))
                continue
            with I.serial(rows) as i, I.serial(panels.units) as unit, opaque_block("cell"):
                body(tiles, row, i, unit, of.named(tiles.place + unit * of.kernel.lanes))

    def _cell(self, tiles: _Tiles, first: Expr, i: Expr, unit: Expr, columns: Expr) -> None:
        """A vector of the next states, except of an LSTM; for a GRU's first product, z and r."""
        of, cell, row = self.of, self.of.cell, first + i
        sums = self._gates(tiles, first, i, unit, columns)
        index = [of.side, row, ramp(columns, of.kernel.lanes)]
        if of.problem.cell == "rnn":
            self._store([cell.activate(0, sums[0])], row, columns)
            return
        if of.problem.cell == "gru_linear":
            before = self._state(0, row, columns)
            candidate = self._part(row, 2, columns) + sums[1] * sums[2]
            self._store([cell.gru(sums[0], candidate, before)], row, columns)
            return
        if tiles.product:
            before = self._state(0, row, columns)
            update = bind(of.buffers.kept[0][tuple(index)])
            self._store([cell.gru(update, sums[0], before)], row, columns)
            return
        update, reset = (cell.activate(0, gate) for gate in sums)
        values = update, bind(reset * self._state(0, row, columns))
        for buffer, value in zip(of.buffers.kept, values, strict=True):
            I.buffer_store(buffer, value, index)
        of.round(1, index[:2], index[2], values[1])

    def _begin_lstm(self, tiles: _Tiles, first: Expr, i: Expr, unit: Expr, columns: Expr) -> None:
        """The functions of an LSTM's gates."""
        gates = self._gates(tiles, first, i, unit, columns)
        memory, peepholes = self._state(1, first + i, columns), self._peepholes(columns)
        self._keep(tiles, i, unit, self.of.cell.lstm_gates(gates, memory, peepholes))

    def _begin_gru(self, tiles: _Tiles, first: Expr, i: Expr, unit: Expr, columns: Expr) -> None:
        """z and r."""
        gates = self._gates(tiles, first, i, unit, columns)[:2]
        self._keep(tiles, i, unit, [self.of.cell.activate(0, gate) for gate in gates])

    def _remember(self, tiles: _Tiles, first: Expr, i: Expr, unit: Expr, columns: Expr) -> None:
        """An LSTM's next c, and the value of its output gate in the place of the next h."""
        of, row = self.of, first + i
        gates = self._totals(tiles, i, unit)
        if of.buffers.levels is not None:
            gates = [reinterpret(of.problem.dtype, total) for total in gates]
        found = of.cell.lstm_memory(gates, self._state(1, row, columns), self._peepholes(columns))
        index = [1 - self.now, of.side, row, ramp(columns, of.kernel.lanes)]
        for state, value in zip(of.buffers.states, found, strict=True):
            I.buffer_store(state, value, index)

    def _show(self, _: _Tiles, first: Expr, i: Expr, _unit: Expr, columns: Expr) -> None:
        """An LSTM's next states, from the results of `_remember`."""
        of, row = self.of, first + i
        index = (1 - self.now, of.side, row, ramp(columns, of.kernel.lanes))
        shows, following = (bind(state[index]) for state in of.buffers.states)
        self._store([of.cell.lstm_shown(shows, following), following], row, columns)

    def _totals(self, tiles: _Tiles, i: Expr, unit: Expr) -> list[Expr]:
        """The vectors of a tile's sums for one cell."""
        lanes, count = self.of.kernel.lanes, len(self.of.panels[tiles.product].gates)
        vectors = (unit * count + number for number in range(count))
        return [bind(self.of.buffers.sums[i, ramp(each * lanes, lanes)]) for each in vectors]

    def _gates(self, tiles: _Tiles, first: Expr, i: Expr, unit: Expr, columns: Expr) -> list[Expr]:
        """The gates of a cell; float sums contain the input part already."""
        of, row, totals = self.of, first + i, self._totals(tiles, i, unit)
        levels = of.buffers.levels
        if levels is None:
            return [bind(total) for total in totals]
        found = []
        for total, gate in zip(totals, of.panels[tiles.product].gates, strict=True):
            number = levels.number(total, (of.side, row), gate * of.problem.hidden + columns)
            found.append(bind(self._part(row, gate, columns) + number))
        return found

    def _keep(self, tiles: _Tiles, i: Expr, unit: Expr, values: list[Expr]) -> None:
        """Stores vectors in the place of a cell's first sums."""
        of, lanes = self.of, self.of.kernel.lanes
        count = len(of.panels[tiles.product].gates)
        for number, value in enumerate(values):
            kept = value if of.buffers.levels is None else reinterpret("int32", value)
            place = ramp((unit * count + number) * lanes, lanes)
            I.buffer_store(of.buffers.sums, kept, [i, place])

    def _peepholes(self, columns: Expr) -> list[Expr]:
        """An LSTM's weights of c for i, o and f, if it has them."""
        of, weights = self.of, self.of.buffers.parameters.get("peepholes")
        if weights is None:
            return []
        places = (columns + gate * of.problem.hidden for gate in range(3))
        return [weights[of.side, ramp(each, of.kernel.lanes)] for each in places]

    def _store(self, states: list[Expr], row: Expr, columns: Expr) -> None:
        """Stores the next states, and the layer's result of this step."""
        of, lanes = self.of, self.of.kernel.lanes
        lengths = of.buffers.parameters.get("lengths")
        shown = bind(states[0])
        if lengths is not None:
            within = splat(self.time < lengths[row], lanes)
            states = [
                bind(tirx.Select(within, new, self._state(number, row, columns)))
                for number, new in enumerate((shown, *states[1:]))
            ]
            shown = tirx.Select(within, shown, constant(0, of.problem.dtype, lanes))
        else:
            states = [shown, *states[1:]]
        index = [of.side, row, ramp(columns, lanes)]
        for buffer, value in zip(of.buffers.states, states, strict=True):
            I.buffer_store(buffer, value, [1 - self.now, *index])
        of.round(0, [1 - self.now, *index[:2]], index[2], states[0])
        I.buffer_store(of.buffers.parameters["output"], shown, [self.time, *index])

    def _state(self, number: int, row: Expr, columns: Expr) -> Expr:
        """A vector of a state before this step."""
        state, columns = self.of.buffers.states[number], ramp(columns, self.of.kernel.lanes)
        return bind(state[self.now, self.of.side, row, columns])

    def _apart(self, gate: int) -> bool:
        """Whether a gate's input part is kept apart from its product."""
        return self.of.problem.cell == "gru_linear" and gate == 2

    def _part(self, row: Expr, gate: int, columns: Expr) -> Expr:
        """The input part of a gate."""
        place = ramp(self._column(gate) + columns, self.of.kernel.lanes)
        return self.of.buffers.parameters["part"][self.time, row, place]

    def _column(self, gate: int) -> Expr:
        """The first column of a gate's input parts."""
        return (self.of.side * self.of.problem.gates + gate) * self.of.problem.hidden
