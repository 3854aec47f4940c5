"""Template "mlp_chain": matmuls and normalisations one after the other, in one kernel.

    part 0: matmul(x, W0) + epilogue  ->  h        kept in a buffer of the block
    part 1: layer_norm(h)             ->  g        kept as well
    part 2: matmul(g, W1) + epilogue, residual x   stored

Every row of a part depends only on the same row of earlier parts. In mode "rows" a task takes a
block of rows through all parts. So results between parts stay in the core's L2, and there is one
barrier, at the end. In mode "columns", for few rows, all threads share each part, with a barrier
after it. This is the coarse-grain fusion of Li et al., "oneDNN Graph Compiler" (arXiv 2301.01333),
section VI. A number of rows that is known at run time only is cut into blocks when the kernel runs.

The parts are regions like those outside of a chain. The attribute "sources" says where their inputs
and operands come from (packing.py). The kernel's parameters are the merged region's inputs, then
the last part's output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import msgspec
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.vector.expressions import Expr
from tir_schedules.core import emission
from tir_schedules.core.attributes import Source
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import branch, opaque_block
from tir_schedules.core.extents import as_matrix, flat_rows, read_extents
from tir_schedules.core.loop_nest import Loop, LoopNest, balance_of
from tir_schedules.core.product_plan import Product, is_dynamic
from tir_schedules.core.region import Region
from tir_schedules.core.template import Template, register_template, template_for
from tir_schedules.cost.parallel import kind_of
from tir_schedules.product import dynamic_rows, tile_config
from tir_schedules.product.matmul import MATMUL, estimated_cycles, neighbourhood, product_of
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.rows.normalize_view import NORM_OPS

from . import chain_loops, mlp_chain_config
from . import parts as chain_parts
from .mlp_chain_config import MlpChainConfig, blocks_of, by_columns, cut_by_rows, rows_of


def space(region: Region, machine: Machine) -> Iterator[MlpChainConfig]:
    """The default; both modes with other blocks; then other tiles in all parts or in one."""
    default = mlp_chain_config.default_config(region, machine)
    if region.is_open:
        yield default
        return
    found = {default}

    def new(configs: Iterator[MlpChainConfig]) -> Iterator[MlpChainConfig]:
        for config in configs:
            if config not in found:
                found.add(config)
                yield config

    yield default
    structures: list[MlpChainConfig] = []
    for threads in sorted({1, default.threads, machine.threads}):
        for factor in (1, 2, 4, 8):
            blocks = default.row_blocks
            for row_blocks in sorted({blocks * factor, math.ceil(blocks / factor)}):
                whole = threads * math.ceil(row_blocks / threads)  # every thread has as many
                structures += cut_by_rows(region, machine, threads, whole)
    structures.append(by_columns(region, machine))
    yield from new(iter(structures))
    for structure in dict.fromkeys(structures):
        yield from new(_retiled(region, structure, machine))
    yield from new(_varied(region, default, machine))


def _retiled(region: Region, config: MlpChainConfig, machine: Machine) -> Iterator[MlpChainConfig]:
    """A configuration with one register tile in all products, as far as it cuts them."""
    first, *_ = (part for part in region.parts if part.op == "matmul")
    rows = rows_of(first)
    if config.mode == "rows":
        rows = blocks_of(rows, config)[0].size
    kernels = tile_config.product_kernels(machine.isa, *tile_config.product_types(first))
    vector = [kernel for kernel in kernels if not kernel.by_tiles]
    for kernel, tile_rows, vectors in tile_config.register_tiles(vector, rows, 1 << 10):
        tile = {"kernel": kernel.name, "rows": tile_rows, "vectors": vectors}
        matmuls = tuple(
            msgspec.structs.replace(found, **tile, m_block=max(found.m_block, tile_rows))
            for found in config.matmuls
        )
        yield msgspec.structs.replace(config, matmuls=matmuls)


def _varied(region: Region, default: MlpChainConfig, machine: Machine) -> Iterator[MlpChainConfig]:
    configs = default.of_parts(region)
    if default.mode == "rows":
        machine = dataclasses.replace(machine, threads=1)
    for number, part in enumerate(region.parts):
        if default.mode == "rows":
            part = chain_parts.with_rows(part, blocks_of(rows_of(part), default)[0].size)
        template_space = neighbourhood if part.op == "matmul" else template_for(part.op).space
        for found in template_space(part, machine):
            yield default.with_parts(region, [*configs[:number], found, *configs[number + 1 :]])


# Which merged regions are chains that the template "mlp_chain" builds.
#
# Every part works row by row, on as many rows as the first part. No two parts share a weight,
# because they may pack it differently.


def reject(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region, or None."""
    if len(region.parts) < 2:
        return f"{len(region.parts)} parts"
    try:
        sources = chain_parts.sources_of(region)
    except ConfigError as error:
        return str(error)
    for number, (part, found) in enumerate(zip(region.parts, sources, strict=True)):
        reason = _reject_part(part, isa) or _reject_sources(region, number, found)
        if reason is not None:
            return f"part {number} ({part.op}): {reason}"
    if (reason := chain_parts.reject_inputs(region)) is not None:
        return reason
    last = region.parts[-1].output
    if (region.output.dtype, region.output.size) != (last.dtype, last.size):
        return f"output {region.output} of a part with {last}"
    return None


def opens(region: Region, isa: Isa) -> str | None:
    """Why the template cannot build a region whose number of rows is open, or None."""
    for number, part in enumerate(region.parts):
        reason = template_for(part.op).opens(part, isa)
        if reason is not None:
            return f"part {number} ({part.op}): {reason}"
    return None


def _reject_part(part: Region, isa: Isa) -> str | None:
    """Why a part cannot run on a block of rows."""
    if part.op == "matmul":
        reason = template_for(part.op).reject(part, isa)
        if reason is None and "window" in part.attrs:
            reason = "rows that are windows of others"
        if reason is None and not part.inputs[1].constant:
            reason = "a weight that is not constant"
        if reason is None and (is_dynamic(part) or any(s.op == "range" for s in part.epilogue)):
            reason = "a range that all rows have together"
    elif part.op in NORM_OPS:
        reason = template_for(part.op).reject(part, isa)
        if reason is None and part.integer("axis") != len(part.inputs[0].shape) - 1:
            reason = f"axis {part.attrs['axis']} of {part.inputs[0]}"
    else:
        reason = "not row by row"
    return reason


def _reject_sources(region: Region, number: int, sources: Sequence[Source]) -> str | None:
    """Why a part cannot read what it is given."""
    part, rows = region.parts[number], rows_of(region.parts[0])
    if rows_of(part) != rows:
        return f"{rows_of(part)} rows, not {rows}"
    pairs = zip(sources, chain_parts.tensors_of(part), strict=True)
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


# The products of a chain before they are built: their loops, their sizes, their kernels.
#
# blocks of rows > the loops of every matmul, or those one after the other


def nests(region: Region, config: MlpChainConfig) -> Iterator[LoopNest]:
    """The loops of every matmul; normalisations are left out."""
    rows = 0
    if config.mode == "rows":
        groups = blocks_of(rows_of(region.parts[0]), config)
        blocks, rows = sum(group.count for group in groups), groups[0].size
        share = rows_of(region.parts[0]) / rows  # a last block that is cut counts in part
    for part, found in zip(region.parts, config.of_parts(region), strict=True):
        if not isinstance(found, MatmulConfig):
            continue
        if not rows:
            yield from MATMUL.nests(part, found)
            continue
        (nest,) = MATMUL.nests(chain_parts.with_rows(part, rows), found)
        a, b, c = nest.loops[0].touched
        whole = Loop("row block", share, kind_of(config.threads > 1), (a * share, b, c * share))
        # With the others' weights and rows in between, as much passes until a weight comes again.
        yield dataclasses.replace(
            nest,
            loops=(whole, *nest.loops),
            operations=nest.operations * share,
            balance=balance_of(blocks, config.threads),
        )


def estimate(region: Region, config: MlpChainConfig, machine: Machine) -> float:
    """Cycles of the busiest thread's products; barriers, traffic and norms are left out."""
    groups = [(1, 0)]
    parts = list(zip(region.parts, config.of_parts(region), strict=True))
    if config.mode == "rows":
        blocks = blocks_of(rows_of(region.parts[0]), config)
        tasks = [group.size for group in blocks for _ in range(group.count)]
        mine = tasks[:: config.threads]
        groups = [(mine.count(size), size) for size in sorted(set(mine))]
    return sum(
        count
        * estimated_cycles(chain_parts.with_rows(part, size) if size else part, found, machine)
        for count, size in groups
        for part, found in parts
        if isinstance(found, MatmulConfig)
    )


def products(region: Region, config: MlpChainConfig, machine: Machine) -> Iterator[Product]:
    """Every matmul: of a block of rows, or as if it stood alone."""
    for number, (part, found) in enumerate(zip(region.parts, config.of_parts(region), strict=True)):
        if not isinstance(found, MatmulConfig):
            continue
        name = f"part {number}"
        if config.mode == "columns":
            yield dataclasses.replace(product_of(part, found, machine), name=name)
            continue
        blocks = blocks_of(rows_of(part), config)
        one = dataclasses.replace(machine, threads=1)
        sized = part if part.is_open else chain_parts.with_rows(part, blocks[0].size)
        product = product_of(sized, found, one)
        copies = sum(group.count for group in blocks)
        yield dataclasses.replace(product, part=part, copies=copies, name=name)


def _for_block(groups: Sequence[Group], index: Expr, body: Callable[[Expr, int], None]) -> None:
    """Runs `body(first row, rows)` for the block number `index`; one branch for each size."""
    group, *rest = groups

    def own() -> None:
        body(group.start + index * group.size, group.size)

    if rest:
        others = index - group.count
        branch(index < group.count, own, lambda: _for_block(rest, others, body))
    else:
        own()


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
    opens = staticmethod(opens)
    nests = staticmethod(nests)
    estimate = staticmethod(estimate)
    products = staticmethod(products)
    packing = chain_parts.PACKING

    def build(self, region: Region, config: MlpChainConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; weights are flat, as `pack` makes them."""
        configs = mlp_chain_config.check(region, config, isa)
        with emission.kernel_function("mlp_chain") as builder:
            inputs = chain_parts.parts_parameters(region, config, isa)
            output = emission.tensor_parameter("C", region.output)
            if region.is_open:
                read_extents()
                region = open_parts(region)
            chain = chain_loops.ChainLoops(region, configs, isa, inputs, output)
            chain.admit()
            m = rows_of(region.parts[0])
            if region.is_open:
                chain.run_any(m, config)
            elif config.mode == "columns":
                with opaque_block("chain"):
                    chain.share(m)
            else:
                blocks = blocks_of(m, config)
                count = sum(group.count for group in blocks)
                tasks = min(config.threads, count)
                # In turn: the first blocks are the largest ones.
                with (
                    emission.task_loop(tasks, name="rows") as task,
                    I.serial(I.floordiv(count - 1 - task, tasks) + 1) as number,
                ):
                    _for_block(blocks, task + number * tasks, chain.run)
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


def open_parts(region: Region) -> Region:
    """The parts of a chain whose number of rows is known at run time only, as matrices.

        matmul [batch, sequence, 384] x [384, 512]  ->  rows of 384, batch * sequence of them

    Memory does not change. Between the parts are matrices of a block of rows anyway.

    The chain with parts of as few dimensions as possible.
    """
    parts = []
    for part in region.parts:
        flat, norm = flat_rows(part), part.op in NORM_OPS
        # Operands of a norm may differ along some of the leading dimensions.
        if not norm or len(flat.output.shape) == 2:
            x, *further = part.inputs
            attrs = {**part.attrs, "axis": 1} if norm else part.attrs
            part = flat.replace(inputs=(as_matrix(x), *further), attrs=attrs)
        parts.append(part)
    return region.replace(parts=tuple(parts))
