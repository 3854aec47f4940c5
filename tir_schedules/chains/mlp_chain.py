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
and operands come from (sources.py). The kernel's parameters are the merged region's inputs, then
the last part's output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector.expressions import Expr
from tir_schedules.core.blocking import Group
from tir_schedules.core.emission import kernel_function, opaque_block, task_loop, tensor_parameter
from tir_schedules.core.extents import read_extents
from tir_schedules.core.region import Region
from tir_schedules.core.template import Packing, Template, register_template
from tir_schedules.product.matmul_config import MatmulConfig, plan_of
from tir_schedules.product.open_rows import tile_choices

from .chain_loops import ChainLoops
from .mlp_chain_config import (
    MlpChainConfig,
    blocks_of,
    check,
    default_config,
    rows_of,
)
from .mlp_chain_products import estimate, nests, products
from .mlp_chain_reject import opens, reject
from .mlp_chain_space import space
from .open_parts import open_parts
from .packing import express, pack, packed_shape, unpack
from .parts import (
    parts_kernel_name,
    parts_parameters,
)
from .reference import chain_reference


def _for_block(groups: Sequence[Group], index: Expr, body: Callable[[Expr, int], None]) -> None:
    """Runs `body(first row, rows)` for the block number `index`; one branch for each size."""
    group, *rest = groups
    if not rest:
        return body(group.start + index * group.size, group.size)
    with I.If(index < group.count):
        with I.Then():
            body(group.start + index * group.size, group.size)
        with I.Else():
            _for_block(rest, index - group.count, body)


class MlpChain(Template[MlpChainConfig]):
    """Matmuls and normalisations one after the other, in one kernel."""

    name = "mlp_chain"
    config_type = MlpChainConfig
    default_config = staticmethod(default_config)
    space = staticmethod(space)
    check = staticmethod(check)
    kernel_name = staticmethod(parts_kernel_name)
    reference = staticmethod(chain_reference)
    reject = staticmethod(reject)
    opens = staticmethod(opens)
    nests = staticmethod(nests)
    estimate = staticmethod(estimate)
    products = staticmethod(products)
    packing = Packing(pack, unpack, packed_shape, express)

    def build(self, region: Region, config: MlpChainConfig, isa: Isa) -> tirx.PrimFunc:
        """The kernel; weights are flat, as `pack` makes them."""
        configs = check(region, config, isa)
        with kernel_function("mlp_chain") as builder:
            inputs = parts_parameters(region, config, isa)
            output = tensor_parameter("C", region.output)
            if region.is_open:
                read_extents()
                region = open_parts(region)
            chain = ChainLoops(region, configs, isa, inputs, output)
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
                with task_loop(tasks, name="rows") as task:
                    # In turn: the first blocks are the largest ones.
                    own = I.serial(I.floordiv(count - 1 - task, tasks) + 1)
                    with own as number:
                        _for_block(blocks, task + number * tasks, chain.run)
        return builder.get()

    def at_run_time(self, region: Region, config: MlpChainConfig) -> str:
        """What is decided at run time, for `explain`."""
        tiles = dict.fromkeys(
            tile_choices(plan_of(part, each))
            for part, each in zip(region.parts, config.of_parts(region), strict=True)
            if isinstance(each, MatmulConfig)
        )
        blocks = f"blocks of up to {config.most_rows} rows"
        alone = f"; up to {config.alone_rows} rows: one thread" if config.threads > 1 else ""
        return "; ".join([blocks, *tiles]) + alone


MLP_CHAIN = register_template(MlpChain())
