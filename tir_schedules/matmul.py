"""Template "matmul": activations times a constant weight, with an epilogue in registers.

    C[m, n] = epilogue(sum over k of A[m, k] * W[k, n])

All leading dimensions of A are folded into m. The weight is packed at compile time, panel by
panel: [N/nr][K/kr][nr][kr], the columns of the last panel padded with zeros to whole vectors. One
parallel region over a grid of threads; inside a thread: blocks of rows, panels of columns, blocks
of K, register tiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder

from microkernels.errors import ConfigError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel, kernels_for, microkernel_named
from microkernels.packing import pack_weight, packed_size
from microkernels.vectors import Expr, cast, ramp, splat

from .blocking import Group, balanced, choose_thread_grid, shares
from .config import Config
from .epilogue import Columns, Epilogue, rows_and_columns, store_vector, unflatten
from .machine import Machine
from .region import Region
from .template import Packing, Template, register_template

PARALLEL_FLOPS = 400_000  # below it the fork and join of a parallel region cost more than they save
ACTIVATION_DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64", "bool")


class MatmulConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    kernel : str
        The microkernel.
    rows : int
        Most rows of a register tile.
    vectors : int
        Most vectors of columns of a register tile; with the kernel's lanes, the panel's width.
    m_block : int
        Rows that are finished before the next ones are begun; bounds the part of A in cache.
    k_block : int
        Steps of K between two visits of the accumulators; bounds the part of a panel in cache.
    threads_m, threads_n : int
        Threads along rows and along columns.
    """

    kernel: str
    rows: int
    vectors: int
    m_block: int
    k_block: int
    threads_m: int = 1
    threads_n: int = 1


def dimensions(region: Region) -> tuple[int, int, int]:
    """(M, N, K) of a matmul region."""
    m, k = rows_and_columns(region.inputs[0])
    return m, region.inputs[1].shape[1], k


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    a, w = region.inputs
    if a.dtype not in ACTIVATION_DTYPES:
        return f"activations of type {a.dtype}"
    if w.dtype != "float32" or region.output.dtype != "float32":
        return f"weight of type {w.dtype}, output of type {region.output.dtype}"
    if 0 in dimensions(region):
        return "a dimension is 0"
    return None


def default_config(region: Region, machine: Machine) -> MatmulConfig:
    """The configuration with the fewest estimated cycles; no tuning is needed."""
    candidates = [_config(region, machine, k) for k in _kernels(machine.isa)]
    return min(candidates, key=lambda config: estimated_cycles(region, config))


def space(region: Region, machine: Machine) -> Iterator[MatmulConfig]:
    """Every kernel, some narrower and lower tiles, halved and doubled blocks, all thread grids."""
    seen = set()
    default = default_config(region, machine)
    m, _, k = dimensions(region)
    for kernel in _kernels(machine.isa):
        base = _config(region, machine, kernel)
        for rows in {base.rows, max(1, base.rows - 1), kernel.mr}:
            for vectors in {base.vectors, max(1, base.vectors - 1)}:
                for m_block in {base.m_block, max(rows, base.m_block // 2), m}:
                    for k_block in {base.k_block, max(1, math.ceil(base.k_block / 2)), k}:
                        seen.add(
                            MatmulConfig(
                                kernel=kernel.name,
                                rows=min(rows, m),
                                vectors=vectors,
                                m_block=min(m_block, m),
                                k_block=k_block,
                                threads_m=base.threads_m,
                                threads_n=base.threads_n,
                            )
                        )
    seen.discard(default)
    yield default
    yield from sorted(seen, key=lambda config: estimated_cycles(region, config))


def estimated_cycles(region: Region, config: MatmulConfig) -> float:
    """Cycles of the busiest thread: one FMA a cycle, and what a tile costs besides.

    A tile of r rows and v vectors takes at least r * v cycles a step of K, at least the 4 cycles of
    an FMA's latency, and (r / 2 + v) cycles of loads; entering and leaving it costs some 20 cycles
    and two for each accumulator. Rows a multiple of 4 KB apart share one L1 set of 8 ways: more
    than 8 of them evict each other (measured: 83% of peak instead of 99%).
    """
    m, n, k = dimensions(region)
    kernel = microkernel_named(config.kernel)
    k_blocks = math.ceil(k / config.k_block)
    m_part = math.ceil(m / config.threads_m)
    n_part = math.ceil(math.ceil(n / kernel.lanes) / config.threads_n)
    cycles = 0.0
    for rows in balanced(m_part, config.rows):
        for panel in balanced(n_part, config.vectors):
            tile = rows.size * panel.size
            step = max(tile, 4, rows.size / 2 + panel.size)
            if rows.size > 8:
                step *= 1.25 if 4 * k % 4096 == 0 else 1.01
            once = 20 + 2 * tile
            cycles += rows.count * panel.count * (k * step + k_blocks * once)
    return cycles


def _kernels(isa: Isa) -> tuple[Microkernel, ...]:
    return kernels_for(isa, "float32", "float32")


def _config(region: Region, machine: Machine, kernel: Microkernel) -> MatmulConfig:
    m, n, k = dimensions(region)
    n_vectors = math.ceil(n / kernel.lanes)
    rows, vectors = min(kernel.mr, m), min(kernel.vectors, n_vectors)
    grid = (1, 1)
    if machine.threads > 1 and 2 * m * n * k >= PARALLEL_FLOPS:
        grid = choose_thread_grid(
            math.ceil(m / rows), math.ceil(n_vectors / vectors), m, n, k, machine.threads
        )
    # Half of L2 for a block of rows of A, three eighths for the part of a panel in use.
    m_block = max(rows, min(m, machine.l2_bytes // 2 // (4 * k)))
    panel_row = 4 * vectors * kernel.lanes
    k_blocks = math.ceil(k * panel_row / (machine.l2_bytes * 3 // 8)) if m > rows else 1
    return MatmulConfig(
        kernel=kernel.name,
        rows=rows,
        vectors=vectors,
        m_block=m_block,
        k_block=math.ceil(k / k_blocks),
        threads_m=grid[0],
        threads_n=grid[1],
    )


def check(region: Region, config: MatmulConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration.

    Raises
    ------
    ConfigError
        Saying which field is out of range.
    """
    kernel = microkernel_named(config.kernel)
    limits = {
        "rows": kernel.mr,
        "vectors": kernel.vectors,
        "m_block": 1 << 30,
        "k_block": 1 << 30,
        "threads_m": 4096,
        "threads_n": 4096,
    }
    for field, most in limits.items():
        value = getattr(config, field)
        if not 1 <= value <= most:
            raise ConfigError(f"{field}={value} is not within 1..{most}, for {region.key}")
    if not isa.includes(kernel.isa):
        raise ConfigError(f"{kernel.name} needs {kernel.isa.name}; the target has {isa.name}")
    return kernel


def build(region: Region, config: MatmulConfig, isa: Isa) -> tirx.PrimFunc:
    """The kernel; its weight parameter is flat, as `pack` makes it."""
    kernel = check(region, config, isa)
    m, n, k = dimensions(region)
    lanes = kernel.lanes
    n_vectors = math.ceil(n / lanes)
    row_shares = shares(m, min(config.threads_m, m))
    column_shares = shares(n_vectors, min(config.threads_n, n_vectors))
    threads_m = sum(group.count for group in row_shares)
    tasks = threads_m * sum(group.count for group in column_shares)
    with IRBuilder() as builder, I.prim_func(s_tir=True):
        I.func_name("matmul")
        I.func_attr({"tirx.noalias": True})
        a = I.arg("A", I.buffer(region.inputs[0].shape, region.inputs[0].dtype))
        w = I.arg("W", I.buffer((packed_size(k, n, kernel),), "float32"))
        operands = [
            I.arg(f"operand{i}", I.buffer(tensor.shape, tensor.dtype))
            for i, tensor in enumerate(region.operands)
        ]
        c = I.arg("C", I.buffer(region.output.shape, region.output.dtype))
        emitter = _Emitter(region, config, kernel, a, w, Epilogue(region, operands), c)
        with I.parallel(tasks) if tasks > 1 else I.serial(1) as task, I.sblock("task"):
            I.reads()
            I.writes()
            _for_share(
                row_shares,
                I.floormod(task, threads_m),
                lambda row, rows: _for_share(
                    column_shares,
                    I.floordiv(task, threads_m),
                    lambda vector, vectors: emitter.thread_block(row, rows, vector, vectors),
                ),
            )
    return builder.get()


def _for_share(groups: Sequence[Group], index: Expr, body: Callable[[Expr, int], None]) -> None:
    """Runs `body(start, size)` for the share of one thread; sizes are compile-time numbers."""
    if len(groups) == 1:
        body(index * groups[0].size, groups[0].size)
        return
    larger, smaller = groups
    with I.If(index < larger.count):
        with I.Then():
            body(index * larger.size, larger.size)
        with I.Else():
            body(smaller.start + (index - larger.count) * smaller.size, smaller.size)


def for_groups(groups: Sequence[Group], body: Callable[[Expr | int, int], None]) -> None:
    """Runs `body(start, size)` for every piece; a loop for each group."""
    for group in groups:
        if group.count == 1:
            body(group.start, group.size)
        else:
            with I.serial(group.count) as piece:
                body(group.start + piece * group.size, group.size)


class _Emitter:
    """The loops inside one thread's block."""

    def __init__(
        self,
        region: Region,
        config: MatmulConfig,
        kernel: Microkernel,
        a: Expr,
        w: Expr,
        epilogue: Epilogue,
        c: Expr,
    ) -> None:
        self.region, self.config, self.kernel = region, config, kernel
        self.a, self.w, self.epilogue, self.c = a, w, epilogue, c
        self.m, self.n, self.k = dimensions(region)
        self.scratch: Expr | None = None

    def thread_block(self, row: Expr, rows: int, vector: Expr, vectors: int) -> None:
        """Blocks of rows, then panels, then blocks of K, then tiles."""
        config = self.config
        k_groups = shares(self.k, math.ceil(self.k / config.k_block))
        width = min(config.vectors, vectors) * self.kernel.lanes
        blocks = balanced(rows, config.m_block)
        if sum(group.count for group in k_groups) > 1:
            shape = (blocks[0].size, width)
            self.scratch = I.sblock_alloc_buffer(shape, "float32")
        for_groups(
            blocks,
            lambda block, block_rows: for_groups(
                balanced(vectors, config.vectors),
                lambda panel, size: self.panel(
                    row + block, block_rows, vector + panel, size, k_groups
                ),
            ),
        )

    def panel(
        self, row: Expr, rows: int, vector: Expr, vectors: int, k_groups: Sequence[Group]
    ) -> None:
        """One panel for a block of rows; accumulators rest in scratch between blocks of K."""
        pieces = [
            (group.start + i * group.size, group.size)
            for group in k_groups
            for i in range(group.count)
        ]
        for number, k_range in enumerate(pieces):
            ends = (number == 0, number == len(pieces) - 1)
            emit = functools.partial(
                self.tile, row, vector=vector, vectors=vectors, k_range=k_range, ends=ends
            )
            for_groups(balanced(rows, self.config.rows), emit)

    def tile(
        self,
        block: Expr,
        tile: Expr | int,
        rows: int,
        vector: Expr,
        vectors: int,
        k_range: tuple[int, int],
        ends: tuple[bool, bool],
    ) -> None:
        """One register tile and, on the last block of K, its epilogue."""
        lanes, scratch = self.kernel.lanes, self.scratch
        k_start, k_size = k_range
        lead = self.region.inputs[0].shape[:-1]
        with I.sblock("tile"):
            I.reads()
            I.writes()
            base = vector * (lanes * self.k)

            def load_a(i: int, ks: Sequence[Expr]) -> Expr:
                value = self.a[(*unflatten(block + tile + i, lead), k_start + ks[0])]
                return splat(cast("float32", value), lanes)

            def load_b(j: int, ks: Sequence[Expr]) -> Expr:
                return self.w[ramp(base + ((k_start + ks[0]) * vectors + j) * lanes, lanes)]

            def resume(i: int, j: int) -> Expr:
                assert scratch is not None
                return scratch[tile + i, ramp(j * lanes, lanes)]

            result = self.kernel.emit(
                rows, vectors, (k_size,), load_a, load_b, None if ends[0] else resume
            )
            for i in range(rows):
                for j in range(vectors):
                    if ends[1]:
                        self.store(
                            block + tile + i, vector + j, result.value(i, j), j == vectors - 1
                        )
                    else:
                        assert scratch is not None
                        I.buffer_store(
                            scratch, result.value(i, j), [tile + i, ramp(j * lanes, lanes)]
                        )

    def store(self, row: Expr, vector: Expr, value: Expr, last: bool) -> None:
        """Epilogue and store of one vector; only the last vector of all may be cut."""
        lanes = self.kernel.lanes
        lead = unflatten(row, self.region.output.shape[:-1])
        cut = self.n % lanes

        def whole(valid: int) -> None:
            columns = Columns(vector * lanes, lanes, valid)
            store_vector(self.c, self.epilogue(value, row, columns), lead, columns)

        if not (cut and last):
            whole(lanes)
        elif self.n < lanes:
            whole(cut)
        else:
            with I.If(vector == self.n // lanes):
                with I.Then():
                    whole(cut)
                with I.Else():
                    whole(lanes)


def pack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, array: np.ndarray
) -> np.ndarray:
    """The weight as `build` reads it."""
    return pack_weight(array, _panel_widths(region, config, isa), check(region, config, isa))


def unpack(
    region: Region, config: MatmulConfig, isa: Isa, index: int, expr: relax.Expr
) -> relax.Expr:
    """The weight [K, N] as a Relax expression of its packed form."""
    kernel = check(region, config, isa)
    k, n = region.inputs[1].shape
    panels, position = [], 0
    for width in _panel_widths(region, config, isa):
        columns = width * kernel.lanes
        panel = relax.op.strided_slice(expr, [0], [position], [position + k * columns])
        panels.append(relax.op.reshape(panel, (k, columns)))
        position += k * columns
    return relax.op.strided_slice(relax.op.concat(panels, axis=1), [1], [0], [n])


def packed_shape(region: Region, config: MatmulConfig, isa: Isa, index: int) -> tuple[int, ...]:
    """Shape of the packed weight."""
    k, n = region.inputs[1].shape
    return (packed_size(k, n, check(region, config, isa)),)


def _panel_widths(region: Region, config: MatmulConfig, isa: Isa) -> list[int]:
    """Width of every panel, in vectors; panels do not cross the threads' shares."""
    n_vectors = math.ceil(region.inputs[1].shape[1] / check(region, config, isa).lanes)
    widths = []
    for share in shares(n_vectors, min(config.threads_n, n_vectors)):
        panels = [g.size for g in balanced(share.size, config.vectors) for _ in range(g.count)]
        widths += panels * share.count
    return widths


def kernel_name(region: Region, config: MatmulConfig, isa: Isa) -> str:
    """The microkernel's name."""
    return config.kernel


def flops(region: Region) -> int:
    """Multiplications and additions of the product."""
    return 2 * math.prod(dimensions(region))


def reference(region: Region, inputs: list[np.ndarray]) -> np.ndarray:
    """The product in float64; the weight as it is before packing."""
    return np.matmul(inputs[0].astype(np.float64), inputs[1].astype(np.float64))


MATMUL = register_template(
    Template(
        name="matmul",
        config_type=MatmulConfig,
        default_config=default_config,
        space=space,
        build=build,
        kernel_name=kernel_name,
        flops=flops,
        reference=reference,
        reject=reject,
        packing=Packing(pack, unpack, packed_shape),
    )
)
