"""Predicts how long a stream of tile instructions takes.

The model is a scoreboard: instructions enter the reorder buffer in order, start when their operands
are ready and their port is free, and leave in order. A port serves its instructions in program
order.

Throughputs and latencies are those of a machine's description.
Assumed: tiles are renamed, so that a load need not wait for the last product that reads the tile; a
tile load takes an entry for each row, a tile store two, and both as long as if the tile were full;
vector loads see a stored tile as they see any stored vector; loaded accumulators were stored long
ago; prefetching hides latencies beyond L1, so that only bandwidth counts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .instructions import TileBlock, TileInstruction
from .tile_shapes import LAYOUTS, ROWS

TILE_BYTES = 1024
LEVELS = ("L1", "L2", "L3", "memory")
_STORED = 8  # the memory of accumulator c is "register" _STORED + c
# How many tiles of K are simulated; longer sums are extrapolated from the last half of them.
_SIMULATED = 24


@dataclass(frozen=True)
class Core:
    """Cycles that a core needs for each kind of work.

    Attributes
    ----------
    clock : float
        Cycles a microsecond while it multiplies tiles.
    tdp, tdp_latency : float
        A dot product: until the next one can start; until its result is there.
    load, load_latency : float
        A tile load from L1, likewise.
    zero_latency : float
        `tilezero`; it needs no port.
    store, store_latency : float
        A tile store; the latency is until vector loads see it.
    configure, release : float
        `ldtilecfg` and `tilerelease`.
    block : float
        Time of a block besides its instructions, such as the jump at the end of its loop.
    rates : tuple of float
        Bytes a cycle from L2, L3 and memory.
    entries, entries_a_cycle : int
        The reorder buffer, and how fast it fills.
    vector_latency : float
        One operation on a vector of 64 bytes; two start in a cycle, and one store.
    """

    clock: float
    tdp: float
    tdp_latency: float
    load: float
    load_latency: float
    zero_latency: float
    store: float
    store_latency: float
    configure: float
    release: float
    block: float
    rates: tuple[float, float, float]
    entries: int
    entries_a_cycle: int
    vector_latency: float


ALL_L1: Mapping[str, str] = MappingProxyType({"A": "L1", "B": "L1", "C": "L1"})


class Scoreboard:
    """The state of a core between two instructions; see the module's description.

    Parameters
    ----------
    core : Core
        Its numbers.
    levels : mapping
        Where tiles of A, B and C are loaded from: one of `LEVELS`.
    """

    def __init__(self, core: Core, levels: Mapping[str, str]) -> None:
        self.core, self.levels = core, levels
        self.ready: dict[int, float] = {}
        self.free: dict[str, float] = {}
        self.retired = 0.0
        self.entered = 0.0
        self.in_flight: list[tuple[float, int]] = []
        self.oldest = self.used = 0

    def run(self, stream: Iterable[TileInstruction]) -> None:
        """Executes tile instructions."""
        core = self.core
        for name, target, sources, operand in stream:
            if name == "tdp":
                end = self._issue(1, sources, {"tmul": core.tdp}, core.tdp_latency)
            elif name == "tileloadd":
                ports = {"load": core.load}  # every level on a tile's way is occupied
                passed = LEVELS[1 : 1 + LEVELS.index(self.levels[operand])]
                for level, rate in zip(passed, core.rates, strict=False):
                    ports[level] = TILE_BYTES / rate
                end = self._issue(ROWS, (), ports, core.load_latency)
            elif name == "tilestored":
                end = self._issue(2 * ROWS, sources, {"store": core.store}, core.store_latency)
                target = _STORED + sources[0]
            else:
                end = self._issue(1, (), {}, core.zero_latency)
            assert target is not None
            self.ready[target] = end

    def run_epilogue(self, block: TileBlock, operations: int) -> None:
        """Reads stored accumulators, applies `operations` to each vector, stores the results."""
        core = self.core
        latency = (operations + 2) * core.vector_latency
        ports = {"vector": operations / 2, "store": 1.0}
        columns = LAYOUTS[block.layout][1]
        for i in range(block.row_tiles):
            for _ in range(ROWS):
                for j in range(block.column_tiles):
                    self._issue(operations + 2, (_STORED + i * columns + j,), ports, latency)

    def _issue(
        self, entries: int, sources: Sequence[int], ports: Mapping[str, float], latency: float
    ) -> float:
        """Schedules an instruction; returns when its result is available."""
        self.entered += entries / self.core.entries_a_cycle
        while self.used + entries > self.core.entries:
            left, freed = self.in_flight[self.oldest]
            self.oldest += 1
            self.used -= freed
            self.entered = max(self.entered, left)
        start = max([self.entered, *(self.ready.get(source, 0.0) for source in sources)])
        start = max([start, *(self.free.get(port, 0.0) for port in ports)])
        for port, cycles in ports.items():
            self.free[port] = start + cycles
        end = start + max([latency, *ports.values()])
        self.retired = max(self.retired, end)
        self.in_flight.append((self.retired, entries))
        self.used += entries
        return end


def block_cycles(
    block: TileBlock, core: Core, levels: Mapping[str, str] = ALL_L1, epilogue: int | None = None
) -> float:
    """Predicted cycles of one block in a row of equal blocks, which overlap at their ends.

    Parameters
    ----------
    block : TileBlock
        The block.
    core : Core
        The core that executes it.
    levels : mapping
        Where tiles of A, B and C are loaded from: one of `LEVELS`.
    epilogue : int or None
        Operations on every vector of results, which is then stored a second time; None if the
        accumulators stay where the tile stores have put them.
    """
    return _block_cycles(block, tuple(levels[operand] for operand in "ABC"), epilogue, core)


@functools.lru_cache(maxsize=4096)
def _block_cycles(
    block: TileBlock, levels: tuple[str, ...], epilogue: int | None, core: Core
) -> float:
    if block.steps > _SIMULATED:
        shorter = [
            _block_cycles(replace(block, steps=steps), levels, epilogue, core)
            for steps in (_SIMULATED // 2, _SIMULATED)
        ]
        pace = (shorter[1] - shorter[0]) / (_SIMULATED - _SIMULATED // 2)
        return shorter[1] + pace * (block.steps - _SIMULATED)
    board = Scoreboard(core, dict(zip("ABC", levels, strict=True)))
    stream = block.stream()
    ends = []
    for _ in range(3):
        board.run(stream)
        if epilogue is not None:
            board.run_epilogue(block, epilogue)
        ends.append(board.retired)
    return (ends[2] - ends[0]) / 2
