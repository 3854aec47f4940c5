"""Template "mlp_chain": matmuls and normalisations one after the other, in one kernel.

    part 0: matmul(x, W0) + epilogue  ->  h        kept in a buffer of the block
    part 1: layer_norm(h)             ->  g        kept as well
    part 2: matmul(g, W1) + epilogue, residual x   stored

Every row of a part depends only on the same row of earlier parts. In mode "rows" a task takes a
block of rows through all parts. So results between parts stay in the core's L2, and there is one
barrier, at the end. In mode "columns", for few rows, all threads share each part, with a barrier
after it. This is the coarse-grain fusion of Li et al., "oneDNN Graph Compiler" (arXiv 2301.01333),
section VI. A dynamic number of rows is cut into blocks at run time.

The parts are regions like those outside of a chain. The attribute "sources" says where their inputs
and operands come from (parts.py). The kernel's parameters are the merged region's inputs, then
the last part's output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import attributes, emission, extents
from tir_schedules.core.loop_nest import LoopNest, balance_of, within
from tir_schedules.core.product_plan import Product, quantizes_dynamically
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import Template, register_template, template_for
from tir_schedules.cost.parallel import kind_of
from tir_schedules.epilogue.epilogue import Epilogue, unflatten
from tir_schedules.product import amx_tiles, dynamic_rows, matmul_product, tile_config
from tir_schedules.product.matmul import MATMUL, neighbourhood, product_of
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.rows import normalize
from tir_schedules.rows.normalize import NormalizeConfig
from tir_schedules.rows.normalize_rows import Rows
from tir_schedules.rows.normalize_view import NORM_OPS

from . import mlp_chain_config
from . import parts as chain_parts
from .mlp_chain_config import MlpChainConfig, blocks_of, by_columns, cut_by_rows, rows_of


def space(region: Region, machine: Machine) -> Iterator[MlpChainConfig]:
    """The default; both modes with other blocks; then other tiles in all parts or in one."""
    default = mlp_chain_config.default_config(region, machine)
    if region.is_dynamic:
        yield default
        return
    structures: list[MlpChainConfig] = []
    for threads in sorted({1, default.threads, machine.threads}):
        for factor in (1, 2, 4, 8):
            blocks = default.row_blocks
            for row_blocks in sorted({blocks * factor, math.ceil(blocks / factor)}):
                whole = threads * math.ceil(row_blocks / threads)  # equally many for every thread
                structures += cut_by_rows(region, machine, threads, whole)
    structures.append(by_columns(region, machine))
    others = [*structures]
    for structure in dict.fromkeys(structures):
        others += _retiled(region, structure, machine)
    # Other numbers for one part at a time.
    configs, sizes = default.of_parts(region), machine
    if default.mode == "rows":
        sizes = dataclasses.replace(machine, threads=1)
    for number, part in enumerate(region.parts):
        if default.mode == "rows":
            part = chain_parts.with_rows(part, blocks_of(rows_of(part), default)[0].size)
        template_space = neighbourhood if part.op == "matmul" else template_for(part.op).space
        for found in template_space(part, sizes):
            changed = [*configs[:number], found, *configs[number + 1 :]]
            others.append(default.with_parts(region, changed))
    yield from dict.fromkeys([default, *others])


def _retiled(region: Region, config: MlpChainConfig, machine: Machine) -> Iterator[MlpChainConfig]:
    """Configurations with one register tile for all products, as far as it divides them."""
    first, *_ = (part for part in region.parts if part.op == "matmul")
    rows = rows_of(first)
    if config.mode == "rows":
        rows = blocks_of(rows, config)[0].size
    kernels = tile_config.region_kernels(first, machine.isa)
    vector = [kernel for kernel in kernels if not kernel.by_tiles]
    for kernel, tile_rows, vectors in tile_config.register_tiles(vector, rows, 1 << 10):
        tile = {"kernel": kernel.name, "rows": tile_rows, "vectors": vectors}
        matmuls = tuple(
            msgspec.structs.replace(found, **tile, m_block=max(found.m_block, tile_rows))
            for found in config.matmuls
        )
        yield msgspec.structs.replace(config, matmuls=matmuls)


# Which merged regions are chains that the template "mlp_chain" builds.
#
# Every part works row by row, on as many rows as the first part. No two parts share a weight,
# because they may pack it differently.


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    if len(region.parts) < 2:
        return f"{len(region.parts)} parts"
    try:
        chain_parts.sources_of(region)
    except ConfigError as error:
        return str(error)
    for number, part in enumerate(region.parts):
        reason = _reject_part(part, isa) or _reject_sources(region, number)
        if reason is not None:
            return f"part {number} ({part.op}): {reason}"
    return chain_parts.reject_inputs(region)


def reject_dynamic(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region with a dynamic number of rows, or None."""
    for number, part in enumerate(region.parts):
        reason = template_for(part.op).reject_dynamic(part, isa)
        if reason is not None:
            return f"part {number} ({part.op}): {reason}"
    return None


def _reject_part(part: Region, isa: Isa) -> str | None:
    """Why a part cannot run on a block of rows."""
    if part.op != "matmul" and part.op not in NORM_OPS:
        return "not row by row"
    reason = template_for(part.op).reject(part, isa)
    if reason is not None:
        return reason
    if part.op in NORM_OPS:
        inside = part.integer("axis") == len(part.inputs[0].shape) - 1
        return None if inside else f"axis {part.attrs['axis']} of {part.inputs[0]}"
    if "window" in part.attrs:
        return "rows that are windows of others"
    if not part.inputs[1].constant:
        return "a weight that is not constant"
    ranges = quantizes_dynamically(part) or any(step.op == "range" for step in part.epilogue)
    return "a range over all rows" if ranges else None


def _reject_sources(region: Region, number: int) -> str | None:
    """Why a part cannot read its sources, or None."""
    part, rows = region.parts[number], rows_of(region.parts[0])
    if rows_of(part) != rows:
        return f"{rows_of(part)} rows, not {rows}"
    pairs = zip(region.sources[number], part.tensors[:-1], strict=True)
    for position, (source, tensor) in enumerate(pairs):
        if not source.part:
            continue
        given = region.parts[source.number].output
        if 0 < position < len(part.inputs):
            return f"input {position} from another part"
        form = given.dtype, given.size, given.shape[-1:]
        if form != (tensor.dtype, tensor.size, tensor.shape[-1:]):
            return f"{given} where {tensor} is read"
    return None


# The products of a chain without building them: their loops, their sizes, their kernels.
#
# blocks of rows > the loops of every matmul, or those one after the other


def nests(region: Region, config: MlpChainConfig) -> Iterator[LoopNest]:
    """The loops of every matmul; normalisations are left out."""
    rows = 0
    if config.mode == "rows":
        groups = blocks_of(rows_of(region.parts[0]), config)
        blocks, rows = sum(group.count for group in groups), groups[0].size
        share = rows_of(region.parts[0]) / rows  # a partial last block counts in part
    for part, found in zip(region.parts, config.of_parts(region), strict=True):
        if not isinstance(found, MatmulConfig):
            continue
        if not rows:
            yield from MATMUL.nests(part, found)
            continue
        (nest,) = MATMUL.nests(chain_parts.with_rows(part, rows), found)
        # Other parts' weights and rows are read in between, until a weight is read again.
        kind = kind_of(config.threads > 1)
        yield within("row block", share, kind, nest, balance_of(blocks, config.threads))


def products(region: Region, config: MlpChainConfig, machine: Machine) -> Iterator[Product]:
    """Every matmul: for a block of rows, or as if it were alone."""
    for number, (part, found) in enumerate(zip(region.parts, config.of_parts(region), strict=True)):
        if not isinstance(found, MatmulConfig):
            continue
        name = f"part {number}"
        if config.mode == "columns":
            yield dataclasses.replace(product_of(part, found, machine), name=name)
            continue
        blocks = blocks_of(rows_of(part), config)
        one = dataclasses.replace(machine, threads=1)
        sized = part if part.is_dynamic else chain_parts.with_rows(part, blocks[0].size)
        product = product_of(sized, found, one)
        copies = sum(group.count for group in blocks)
        yield dataclasses.replace(product, part=part, copies=copies, name=name)


@dataclass
class ChainLoops:
    """Emits the parts, for the kernel's parameters."""

    region: Region
    configs: Sequence[chain_parts.PartConfig]
    isa: Isa
    inputs: Sequence[Expr]
    result: Expr

    def __post_init__(self) -> None:
        region = self.region
        self.parts = list(zip(region.parts, self.configs, strict=True))
        self.kernels = [
            tile_config.check(part, config, self.isa) if isinstance(config, MatmulConfig) else None
            for part, config in self.parts
        ]
        self.sources: attributes.Sources = chain_parts.sources_of(region)
        numbers, last = range(len(self.parts)), region.parts[-1].output
        self.given = [chain_parts.as_read(region, self.inputs, number) for number in numbers]
        self.output = extents.reshaped(self.result, region.output, last.shape)
        self.pitches = []
        for number, (part, _) in enumerate(self.parts[:-1]):
            # Elements from one row of a result to the next, for all of its readers.
            reads = attributes.Source(True, number)
            pairs = zip(self.kernels, self.sources, strict=True)
            readers = [kernel for kernel, sources in pairs if sources[0] == reads]
            pitches = (chain_parts.row_pitch(part.output, reader) for reader in (None, *readers))
            self.pitches.append(max(pitches))

    def admit(self) -> None:
        """Emits what the process needs to run the parts' kernels, once."""
        tiles = [kernel for kernel in self.kernels if kernel is not None and kernel.by_tiles]
        if tiles:
            tiles[0].admit()

    def run(self, first: Expr, rows: Index, most: int) -> None:
        """Emits all parts for a block of rows from `first` on; `most` limits a dynamic block."""
        self._begin(first, most)
        tiles, zero = amx_tiles.TileTask(), tirx.const(0, "int32")
        for number, (_, config) in enumerate(self.parts):
            with emission.opaque_block("part"):
                if isinstance(config, MatmulConfig):
                    self._product(number, config).run(rows, tiles, most)
                else:
                    normalize.for_rows(self._norm(number, config), zero, rows, config)
        tiles.release()

    def share(self, rows: int) -> None:
        """Emits part after part, each shared among the threads of its configuration."""
        self._begin(None, rows)
        for number, (_, config) in enumerate(self.parts):
            if isinstance(config, MatmulConfig):
                self._product(number, config).share()
            else:
                normalize.share_rows(self._norm(number, config), rows, config)

    def _begin(self, first: Expr | None, rows: int) -> None:
        """Allocates results between parts for `rows` rows, all of them if `first` is None."""
        self.first = first
        made = zip(self.region.parts, self.pitches, strict=False)
        self.results = [chain_parts.rows_between(part.output, rows, pitch) for part, pitch in made]

    def _product(self, number: int, config: MatmulConfig) -> matmul_product.MatmulProduct:
        part, given, kernel = self.parts[number][0], self.given[number], self.kernels[number]
        assert kernel is not None
        constants = [cast(Expr, buffer) for buffer in given[1 : len(part.inputs)]]
        epilogue = self._epilogue(part, number, kernel.narrow)
        rows = self._rows_read(number), self._rows_stored(number)
        return matmul_product.MatmulProduct(part, config, kernel, constants, epilogue, *rows)

    def _norm(self, number: int, config: NormalizeConfig) -> Rows:
        part, given = self.parts[number][0], self.given[number]
        seen = normalize.view(part)
        x, leading_x = self._rows_read(number)
        out, leading_out = self._rows_stored(number)
        numbers = self.isa.f32_lanes, config.unroll, config.keep, config.chunk
        weights = [cast(Expr, buffer) for buffer in given[1 : len(part.inputs)]]
        epilogue = self._epilogue(seen.region, number, bfloat16.narrow)
        return Rows(seen, *numbers, x, weights, out, epilogue, leading_x, leading_out)

    def _epilogue(self, part: Region, number: int, narrow: Callable[[Expr], Expr]) -> Epilogue:
        skipped = len(part.inputs)
        sources, given = self.sources[number][skipped:], self.given[number][skipped:]
        buffers = [
            self.results[source.number] if buffer is None else buffer
            for source, buffer in zip(sources, given, strict=True)
        ]
        local = {operand for operand, source in enumerate(sources) if source.part}
        return Epilogue(part, buffers, narrow, self.first, local)

    def _rows_read(self, number: int) -> tuple[Expr, chain_parts.Leading]:
        """The buffer that a part's rows come from, and the leading indices of a row in it."""
        given = self.given[number][0]
        if given is None:
            return self.results[self.sources[number][0].number], extents.row_itself
        return given, self._of_tensor(self.region.parts[number].inputs[0])

    def _rows_stored(self, number: int) -> tuple[Expr, chain_parts.Leading]:
        """The buffer that a part's rows go to, and the leading indices of a row in it."""
        if number < len(self.results):
            return self.results[number], extents.row_itself
        return self.output, self._of_tensor(self.region.parts[number].output)

    def _of_tensor(self, tensor: Tensor) -> chain_parts.Leading:
        first = self.first
        return lambda row: unflatten(row if first is None else first + row, tensor.shape[:-1])


class MlpChain(Template[MlpChainConfig]):
    """Matmuls and normalisations one after the other, in one kernel."""

    name = "mlp_chain"
    config_type = MlpChainConfig
    default_config = staticmethod(mlp_chain_config.default_config)
    space = staticmethod(space)
    check = staticmethod(mlp_chain_config.check)
    kernel_name = staticmethod(chain_parts.parts_kernel_name)
    reference = staticmethod(chain_parts.chain_reference)
    reject = staticmethod(reject)
    reject_dynamic = staticmethod(reject_dynamic)
    nests = staticmethod(nests)
    estimate = staticmethod(mlp_chain_config.estimate)
    products = staticmethod(products)
    packing = staticmethod(chain_parts.packing)

    def build(self, region: Region, config: MlpChainConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; weights are flat, as `pack` makes them."""
        configs = mlp_chain_config.check(region, config, isa)
        with emission.kernel_function("mlp_chain") as builder:
            inputs = chain_parts.parts_parameters(region, config, isa)
            output = emission.tensor_parameter("C", region.output)
            if region.is_dynamic:
                extents.read_extents()
                region = dynamic_parts(region)
            chain = ChainLoops(region, configs, isa, inputs, output)
            chain.admit()
            m = rows_of(region.parts[0])
            if region.is_dynamic:
                rows, most = extents.as_expr(extents.extent(m)), config.most_rows
                alone = rows <= config.alone_rows
                with emission.dynamic_tasks(config.threads, alone) as (task, parts):
                    start, many = emission.share_of(rows, task, parts)
                    emission.for_blocks(
                        many, most, lambda at, size: chain.run(start + at, size, most)
                    )
            elif config.mode == "columns":
                with emission.opaque_block("chain"):
                    chain.share(m)
            else:
                blocks = blocks_of(m, config)
                count = sum(group.count for group in blocks)
                tasks = min(config.threads, count)

                def block(first: Expr, size: int) -> None:
                    with emission.opaque_block("block"):
                        chain.run(first, size, size)

                # Round robin: the first blocks are the largest ones.
                with (
                    emission.task_loop(tasks, name="rows") as task,
                    I.serial(I.floordiv(count - 1 - task, tasks) + 1) as number,
                ):
                    emission.for_share(blocks, task + number * tasks, block)
        return builder.get()

    def at_run_time(self, region: Region, config: MlpChainConfig) -> str:
        """What is decided at run time, for `explain`."""
        pairs = zip(region.parts, config.of_parts(region), strict=True)
        products = ((part, each) for part, each in pairs if isinstance(each, MatmulConfig))
        plans = (tile_config.plan_of(part, each) for part, each in products)
        tiles = dict.fromkeys(map(dynamic_rows.tile_choices, plans))
        blocks = f"blocks of up to {config.most_rows} rows"
        alone = f"; up to {config.alone_rows} rows: one thread" if config.threads > 1 else ""
        return "; ".join([blocks, *tiles]) + alone


MLP_CHAIN = register_template(MlpChain())


def dynamic_parts(region: Region) -> Region:
    """The chain with parts of as few dimensions as possible, for a dynamic number of rows.

        matmul [batch, sequence, 384] x [384, 512]  ->  rows of 384, batch * sequence of them

    Memory does not change. Between the parts are matrices of a block of rows anyway.
    """
    parts = []
    for part in region.parts:
        flat, norm = extents.flat_rows(part), part.op in NORM_OPS
        # Operands of a norm may differ along some of the leading dimensions.
        if not norm or len(flat.output.shape) == 2:
            x, *further = part.inputs
            attrs = {**part.attrs, "axis": 1} if norm else part.attrs
            part = flat.replace(inputs=(extents.as_matrix(x), *further), attrs=attrs)
        parts.append(part)
    return region.replace(parts=tuple(parts))
