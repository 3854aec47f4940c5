"""When AMX tiles pay, and how to block for them: estimates that `explain` can show.

Cycles are those at the clock of vector code; while tiles multiply, the clock may be lower.

Tiles are slower when a product has few rows. A tile takes 16 cycles however many of its rows are
used, and few products then have to pay for the configuration and for storing results to memory.
Tiles gain little if fetching the weight from far away takes most of the time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tvm import DataType

from microkernels.amx.instructions import InstructionCounts, TileBlock, block_rows, product_counts
from microkernels.amx.scoreboard import LEVELS, TILE_BYTES, block_cycles
from microkernels.amx.tile_shapes import LAYOUTS, ROW_BYTES, ROWS
from microkernels.isa import isa_named
from microkernels.kernels.amx_tiles import AmxMicrokernel
from microkernels.machines.machine import Machine
from microkernels.registry import microkernel_named, tile_kernels_for
from tir_schedules.core import blocking, product_plan
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for

from .cost import product_rate

# Tiles have to be this much faster: estimates are no more precise, and tiles add thread state.
LEAST_GAIN = 1.1
CONFIGURED = "so configured, although tiles are estimated faster"


def amx_cycles(plan: product_plan.ProductPlan, machine: Machine, fetches: bool = False) -> float:
    """Estimated cycles of one thread for its part of a product on tiles.

    Parameters
    ----------
    plan : ProductPlan
        The thread's part.
    machine : Machine
        The machine whose caches hold the operands.
    fetches : bool
        See `TilePart`.
    """
    cycles = predict(TilePart(plan=plan, fetches=fetches), machine).cycles
    return cycles * machine.cycles_per_us / machine.tile_core.clock


def vector_cycles(plan: product_plan.ProductPlan, machine: Machine) -> float:
    """Estimated cycles of a thread's part on the vector units of a machine with AMX.

    The result of `estimate_cycles`, or the time to fetch the weight if that is longer.
    """
    n_vectors, steps = plan.n_vectors, plan.steps
    part = (plan.m, n_vectors, steps, plan.rows, plan.vectors, plan.k_block)
    computing = blocking.estimate_cycles(*part, machine, product_rate(plan.kernel, machine))
    weight = ROW_BYTES * steps * n_vectors
    rates = {"L2": machine.l2_rate, "L3": machine.l3_rate(), "memory": machine.memory_rate()}
    rate = rates.get(level_of(weight, machine))
    fetching = weight / rate * machine.cycles_per_us if rate else 0.0
    least = max(computing, fetching)
    return least + computing / 1000  # decides if fetching takes longer for all configurations


def amx_blocks(
    kernel: AmxMicrokernel, m: int, n: int, k: int, machine: Machine, fetches: bool = False
) -> dict[str, Any]:
    """Fields of a `TileConfig` with the fewest estimated cycles; rows and vectors are the layout's.

    L2 can feed one load for a product only if half of the loads come from L1. So K is cut until a
    panel's piece fills two thirds of L1, where it stays while A passes: pieces of 1024 bytes of K
    were the best of 512 to 3072 on Granite Rapids, by up to 15%. A block of rows is up to three
    quarters of L2: the weight is read from L3 once for each block. If K is cut, a block may be so
    low that its sums fill a third of L1, where they stay from one piece to the next.

    Parameters
    ----------
    kernel : AmxMicrokernel
        A kernel of layout "2x2" or "1x4".
    m, n, k : int
        Rows, columns and elements of K.
    machine : Machine
        The machine whose caches count.
    fetches : bool
        See `TilePart`.
    """
    n_vectors, steps = math.ceil(n / kernel.lanes), kernel.steps(k)
    rows, vectors = min(block_rows(kernel.layout), m), min(LAYOUTS[kernel.layout][1], n_vectors)
    tiles = machine.l1_bytes * 2 // 3 // (TILE_BYTES * vectors)
    # The number of pieces of equal size.
    pieces = math.ceil(steps / (max(tiles, 1) * DEPTH))
    in_l1 = machine.l1_bytes // 3 // (ROW_BYTES * vectors)
    heights = {part // (4 * steps) for part in (machine.l2_bytes // 2, machine.l2_bytes * 3 // 4)}
    found: list[dict[str, Any]] = [
        {"rows": rows, "vectors": vectors, "m_block": max(rows, min(m, height)), "k_block": k_block}
        for k_block in (steps, math.ceil(steps / DEPTH / pieces) * DEPTH)
        for height in sorted(heights | ({in_l1} if k_block < steps else set()))
    ]

    def cycles(blocks: dict[str, Any]) -> float:
        plan = product_plan.ProductPlan(kernel=kernel, m=m, n=n, k=k, **blocks)
        return amx_cycles(plan, machine, fetches)

    return min(found, key=cycles)


def why_not_amx(
    m: int, tiles: float, vectors: float, kernel: str, k_bytes: int = ROW_BYTES
) -> str | None:
    """Why a product stays on a vector kernel, or None if it goes to tiles.

    Parameters
    ----------
    m : int
        Rows of a thread's part.
    tiles, vectors : float
        `amx_cycles` and `vector_cycles` of the best configuration of each.
    kernel : str
        The vector kernel's name.
    k_bytes : int
        Bytes of K.
    """
    gain = vectors / tiles
    if gain >= LEAST_GAIN:
        return None
    filled = m / (ROWS * math.ceil(m / ROWS))
    size = "1 row" if m == 1 else f"{m} rows"
    if k_bytes % ROW_BYTES:
        filled *= k_bytes / (ROW_BYTES * math.ceil(k_bytes / ROW_BYTES))
        fill = f"{size} and {k_bytes} bytes of K fill {filled:.0%}"
    else:
        fill = f"{size} {'fills' if m == 1 else 'fill'} {filled:.0%}"
    if gain < 1 / LEAST_GAIN:
        rest = f"{kernel} is estimated {1 / gain:.1f}x as fast"
    else:
        rest = f"they are estimated {gain:.2f}x as fast as {kernel}, {LEAST_GAIN}x is required"
    return f"{fill} of AMX tiles; {rest}"


# Predicts the cost of one thread's part of a product on AMX tiles: instructions, bytes, cycles.
#
# The part is divided as a `ProductPlan` says. A tile is loaded from the nearest cache level that
# holds all bytes that are read between two loads of it (least recently used).
#
#     B    loaded for every block of rows in a block of m_block; in between: a piece of a panel, and
#          the rows' piece of A, unless that passes and leaves L1 at once (tileloaddt1)
#     A    loaded for every panel; in between: the block of A and one panel
#     C    loaded for every piece of K; in between: the scratch, a piece of the panel and of A
#
# B that is prefetched (`PanelPrefetch`) comes from L2; the part takes at least as long as the
# prefetch. The prefetch instructions themselves are not counted: at most sixteen for a dot product,
# two for each with four blocks of rows. The product is taken for one that is called repeatedly: B
# is first in the cache that holds the thread's part of the weight, A in L2 or beyond. In a model
# whose weights all come from memory, products of few rows take longer than predicted, on tiles and
# on vectors alike.
#
# Of 22 products on Granite Rapids, half take 1.17 times as long as predicted or more, and all 1.02
# to 1.43 times (`measurements/tile_products.json`, `tools/machine_fit.py`).


DEPTH = 16  # steps of kr in a tile's 64 bytes of K
EPILOGUE = 4  # operations on a vector of results: scale, bias, activation, conversion


@dataclass(frozen=True, kw_only=True)
class TilePart:
    """One thread's part of a product on tiles.

    Attributes
    ----------
    plan : ProductPlan
        How it is cut; of one thread.
    started : bool
        Whether the accumulators start with something other than zero.
    epilogue : int or None
        Operations on every vector of results; None if tiles are stored as they are.
    fetches : bool
        Whether B is fetched into L2 a panel ahead if few rows pass over it.
    """

    plan: product_plan.ProductPlan
    started: bool = False
    epilogue: int | None = EPILOGUE
    fetches: bool = False

    @property
    def layout(self) -> str:
        """The kernel's layout: "2x2" or "1x4"."""
        assert isinstance(self.plan.kernel, AmxMicrokernel)
        return self.plan.kernel.layout

    @property
    def pieces(self) -> list[int]:
        """Tiles of K of every block of K."""
        return [size // DEPTH for _, size in self.plan.pieces]

    @property
    def panels(self) -> list[int]:
        """Vectors of columns of every panel."""
        return [*self.plan.panels.widths]

    @property
    def bands(self) -> list[list[int]]:
        """Rows of every register block, by blocks of m_block rows; tails are separate."""
        return [
            [rows] * (group.size // rows)
            for rows, groups in self.plan.bands(self.plan.m)
            for group in groups
            for _ in range(group.count)
        ]

    def counts(self) -> InstructionCounts:
        """The tile instructions that the part executes."""
        rows = [block for band in self.bands for block in band]
        return product_counts(self.layout, rows, self.panels, self.pieces, started=self.started)


@dataclass
class Prediction:
    """The predicted cost of a part.

    Attributes
    ----------
    counts : InstructionCounts
        Tile instructions.
    tdp_cycles : float
        Cycles between two dot products at the peak rate.
    cycles : float
        Cycles from the first configuration to the release.
    bytes_loaded : dict
        Level -> bytes that tile loads read from it.
    bytes_stored : int
        Bytes that tile stores write.
    """

    counts: InstructionCounts
    tdp_cycles: float
    cycles: float = 0.0
    bytes_loaded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    bytes_stored: int = 0

    @property
    def share(self) -> float:
        """Fraction of the peak rate: 1 if dot products follow one another without gaps."""
        return self.tdp_cycles * self.counts.tdp / self.cycles


@dataclass(frozen=True)
class _Visit:
    """`count` equal blocks."""

    block: TileBlock
    rows: int
    levels: tuple[str, str, str]
    last: bool
    count: int
    fetched_from: str


def predict(part: TilePart, machine: Machine) -> Prediction:
    """Predicts the cost of a part on a machine with AMX."""
    core = machine.tile_core
    found = Prediction(part.counts(), core.tdp)
    found.cycles = found.counts.ldtilecfg * core.configure + core.release
    fetched = 0.0
    for visit in _visits(part, machine):
        block, levels = visit.block, dict(zip("ABC", visit.levels, strict=True))
        epilogue = part.epilogue if visit.last else None
        found.cycles += visit.count * (core.block + block_cycles(block, core, levels, epilogue))
        results = visit.rows * block.column_tiles * ROW_BYTES
        found.bytes_stored += visit.count * results
        loaded = {
            "A": block.steps * visit.rows * ROW_BYTES,
            "B": block.steps * block.column_tiles * TILE_BYTES,
            "C": results if block.resume else 0,
        }
        if visit.fetched_from != levels["B"]:  # fetched ahead, into L2
            fetched += visit.count * (
                loaded["B"] / core.rates[LEVELS.index(visit.fetched_from) - 1]
            )
        for operand, size in loaded.items():
            level = visit.fetched_from if operand == "B" else levels[operand]
            found.bytes_loaded[level] += visit.count * size
    found.cycles = max(found.cycles, fetched)
    return found


def _visits(part: TilePart, machine: Machine) -> Iterator[_Visit]:
    """Every block of a part, with equal blocks counted together."""
    pieces, panels = part.pieces, part.panels
    weight = TILE_BYTES * sum(pieces) * part.plan.n_vectors
    for band, of_band in Counter(map(tuple, part.bands)).items():
        rows, height = band[0], sum(band)
        a_band = height * ROW_BYTES * sum(pieces)
        b_first = level_of(weight + a_band, machine)
        a_first = max(level_of(a_band, machine), "L2", key=LEVELS.index)
        for vectors, of_vectors in Counter(panels).items():
            b_panel = TILE_BYTES * sum(pieces) * vectors
            a_again = level_of(a_band + b_panel, machine)
            for number, steps in enumerate(pieces):
                block = TileBlock(
                    part.layout, math.ceil(rows / ROWS), vectors, steps, part.started or number > 0
                )
                a_piece, b_piece = rows * ROW_BYTES * steps, TILE_BYTES * steps * vectors
                results = ROW_BYTES * vectors
                stays = 0 if part.plan.passing(height, steps * DEPTH) == "A" else a_piece
                b_again = level_of(stays + b_piece + rows * results, machine)
                between = height * (ROW_BYTES * steps + results) + b_piece
                c = level_of(between, machine) if number else "L1"
                for at_first_panel in (True, False):
                    # Exactly one panel is the first; it has the first width.
                    first = int(vectors == panels[0])
                    of_panels = first if at_first_panel else of_vectors - first
                    a = a_first if at_first_panel else a_again
                    for b, of_rows in ((b_first, 1), (b_again, len(band) - 1)):
                        count = of_band * of_panels * of_rows
                        if count:
                            last = number == len(pieces) - 1
                            ahead = (
                                part.fetches and len(band) <= product_plan.PANELS_AHEAD * vectors
                            )
                            near = min(b, "L2", key=LEVELS.index) if ahead else b
                            yield _Visit(block, rows, (a, near, c), last, count, b)


def level_of(size: int, machine: Machine) -> str:
    """The nearest level of `LEVELS` that holds `size` bytes."""
    sizes = zip(LEVELS, (machine.l1_bytes, machine.l2_bytes, machine.l3_bytes), strict=False)
    return next((level for level, most in sizes if size <= most), "memory")


# Says why a product uses vector kernels although the machine has AMX tiles; for `explain`.
#
#     matmul of 1 row     1 row fills 6% of AMX tiles; avx512_vnni_... is estimated 3.1x as fast
#     attention of f32    AMX multiplies 8-bit integers and bfloat16, not float32
#     part of a chain     part 2: 1 row fills ...
#
# The estimates are those by which the templates choose (amx_cost.py).


DYNAMIC = "products of a dynamic number of rows run on vectors"


def why_vectors(region: Region, config: Config, machine: Machine) -> str:
    """Why products of a region stay on vectors; "" if none does, or the machine has no tiles.

    Parameters
    ----------
    config : Config
        The configuration chosen for the region.
    """
    if not machine.isa.includes(isa_named("amx")):
        return ""
    template = template_for(region.op)
    reason = template.why_vectors(region, config, machine)
    if reason is None:
        return reasons(template.products(region, config, machine), machine)
    return reason


def reasons(products: Iterable[product_plan.Product], machine: Machine) -> str:
    """Why products stay on vectors, each reason once; "" if none does."""
    products = list(products)
    names: dict[str, list[str]] = {}
    for product in products:
        reason = _reason(product, machine)
        if reason is not None:
            names.setdefault(reason, []).append(product.name)
    return "; ".join(
        reason if len(of_reason) == len(products) else f"{' and '.join(of_reason)}: {reason}"
        for reason, of_reason in names.items()
    )


def _reason(product: product_plan.Product, machine: Machine) -> str | None:
    """Why one product is not computed on tiles; None if it is."""
    plan, types = product.plan, _types(product.part)
    if plan.kernel.by_tiles:
        return None
    if not tile_kernels_for(machine.isa, *types):
        multiplied = " by ".join(dict.fromkeys(types))
        floats = "bfloat16"
        if tile_kernels_for(machine.isa, "float16", "float16"):
            floats = "16-bit floats"
        return f"AMX multiplies 8-bit integers and {floats}, not {multiplied}"
    on_tiles = [cycles for kernel, cycles in product.others() if microkernel_named(kernel).by_tiles]
    if not on_tiles:  # a template's candidates for dynamic rows are all on vectors
        return DYNAMIC
    m, k = product.filled or (plan.m, plan.k)
    k_bytes = k * DataType(types[0]).itemsize
    return why_not_amx(m, min(on_tiles), product.cycles, plan.kernel.name, k_bytes) or CONFIGURED


def _types(region: Region) -> tuple[str, str]:
    """The types that a product multiplies; f32 is rounded to the other operand's 16-bit type."""
    a_dtype, b_dtype = product_plan.product_types(region)
    return a_dtype if product_plan.is_integer(region) else b_dtype, b_dtype


def why_fewer_threads(config: Config, machine: Machine) -> str:
    """Why a configuration leaves threads idle; "" if it does not, or states no threads.

    >>> from microkernels.isa import isa_named
    >>> from tir_schedules.rows.normalize import NormalizeConfig
    >>> machine = Machine("znver4", isa_named("avx512"), 8)
    >>> why_fewer_threads(NormalizeConfig(rows=1, threads=6), machine)
    '6 of 8 threads: all are no faster, as a fork takes 1.2 us instead of 1.1'
    """
    used, threads = getattr(config, "threads", None), machine.threads
    if used == 0:  # all threads, if it is parallel
        used = threads if getattr(config, "parallel", True) else 1
    if not isinstance(used, int) or used >= threads:
        return ""
    fork, own = machine.fork_us(threads), machine.fork_us(used)
    instead = f" instead of {own:.1f}" if used > 1 else ""
    return f"{used} of {threads} threads: all are no faster, as a fork takes {fork:.1f} us{instead}"
