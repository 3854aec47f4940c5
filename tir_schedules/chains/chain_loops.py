"""The loops of a chain: its parts one after the other, on blocks of rows or on all of them.

run        a block of known size, in the calling thread
run_any    blocks of a number of rows that is known at run time only, shared among threads
share      part after part, each shared among threads
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr
from tir_schedules.core.attributes import Source, Sources
from tir_schedules.core.blocking import balanced
from tir_schedules.core.emission import for_blocks, for_groups, opaque_block, open_tasks, share_of
from tir_schedules.core.extents import extent, row_itself
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue, unflatten
from tir_schedules.product.matmul_product import MatmulProduct
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.product.tile_config import check as check_matmul
from tir_schedules.product.tile_loops import TileTask
from tir_schedules.rows import normalize
from tir_schedules.rows.normalize import NormalizeConfig, for_rows, share_rows
from tir_schedules.rows.normalize_rows import Rows
from tir_schedules.rows.normalize_view import reshaped

from . import parts
from .mlp_chain_config import MlpChainConfig


class ChainLoops:
    """The parts, around the kernel's parameters."""

    def __init__(
        self,
        region: Region,
        configs: Sequence[parts.PartConfig],
        isa: Isa,
        inputs: Sequence[Expr],
        output: Expr,
    ) -> None:
        self.region, self.isa = region, isa
        self.parts = list(zip(region.parts, configs, strict=True))
        self.kernels = [
            check_matmul(part, config, isa) if isinstance(config, MatmulConfig) else None
            for part, config in self.parts
        ]
        self.sources: Sources = parts.sources_of(region)
        self.given = [parts.as_read(region, inputs, number) for number in range(len(self.parts))]
        self.output = reshaped(output, region.output, region.parts[-1].output.shape)
        self.pitches = [self._pitch(number) for number in range(len(self.parts) - 1)]

    def admit(self) -> None:
        """Emits what the process needs to run the parts' kernels, once."""
        for kernel in self.kernels:
            if kernel is not None and kernel.by_tiles:
                kernel.admit()
                return

    def run(self, first: Expr, rows: int) -> None:
        """All parts on the block of rows from `first` on, in the calling thread."""
        with opaque_block("block"):
            self._begin(first, rows)
            tiles = TileTask()
            for number, (_, config) in enumerate(self.parts):
                with opaque_block("part"):
                    if isinstance(config, MatmulConfig):
                        self._product(number, config).run(rows, tiles)
                    else:
                        norm = self._norm(number, config)
                        for_groups(balanced(rows, config.rows), norm.block)
            tiles.release()

    def run_any(self, count: int, config: MlpChainConfig) -> None:
        """Blocks of a number of rows that is known at run time only, shared among threads."""
        rows, most = extent(count), config.most_rows
        assert not isinstance(rows, int)

        def block(first: Expr, size: Expr) -> None:
            self._begin(first, most)
            for number, (_, config) in enumerate(self.parts):
                with opaque_block("part"):
                    if isinstance(config, MatmulConfig):
                        self._product(number, config).run(size, most=most)
                    else:
                        for_rows(self._norm(number, config), tirx.const(0, "int32"), size, config)

        with open_tasks(config.threads, rows <= config.alone_rows) as (task, tasks):
            start, many = share_of(rows, task, tasks)
            for_blocks(many, most, lambda at, size: block(start + at, size))

    def share(self, rows: int) -> None:
        """Part after part, each shared among the threads of its configuration."""
        self._begin(None, rows)
        for number, (_, config) in enumerate(self.parts):
            if isinstance(config, MatmulConfig):
                self._product(number, config).share()
            else:
                share_rows(self._norm(number, config), rows, config)

    def _begin(self, first: Expr | None, rows: int) -> None:
        """Allocates the results between the parts: of `rows` rows from `first` on, or of all."""
        self.first = first
        self.results = [
            parts.rows_between(part.output, rows, pitch)
            for part, pitch in zip(self.region.parts, self.pitches, strict=False)
        ]

    def _pitch(self, number: int) -> int:
        """Elements from one row of a result to the next, for all who read it."""
        made = self.region.parts[number].output
        readers = [
            kernel
            for kernel, sources in zip(self.kernels, self.sources, strict=True)
            if sources[0] == Source(True, number)
        ]
        return max(parts.row_pitch(made, reader) for reader in (None, *readers))

    def _product(self, number: int, config: MatmulConfig) -> MatmulProduct:
        part, given, kernel = self.parts[number][0], self.given[number], self.kernels[number]
        assert kernel is not None
        constants = [cast(Expr, buffer) for buffer in given[1 : len(part.inputs)]]
        return MatmulProduct(
            part,
            config,
            kernel,
            constants,
            self._epilogue(part, number, kernel.narrow),
            self._rows_read(number),
            self._rows_stored(number),
        )

    def _norm(self, number: int, config: NormalizeConfig) -> Rows:
        part, given = self.parts[number][0], self.given[number]
        seen = normalize.view(part)
        x, leading_x = self._rows_read(number)
        out, leading_out = self._rows_stored(number)
        return Rows(
            seen,
            self.isa.f32_lanes,
            config.unroll,
            config.keep,
            config.chunk,
            x,
            [cast(Expr, buffer) for buffer in given[1 : len(part.inputs)]],
            out,
            self._epilogue(seen.region, number, bfloat16.narrow),
            leading_x,
            leading_out,
        )

    def _epilogue(self, part: Region, number: int, narrow: Callable[[Expr], Expr]) -> Epilogue:
        skipped = len(part.inputs)
        sources, given = self.sources[number][skipped:], self.given[number][skipped:]
        buffers = [
            self.results[source.number] if buffer is None else buffer
            for source, buffer in zip(sources, given, strict=True)
        ]
        local = {operand for operand, source in enumerate(sources) if source.part}
        return Epilogue(part, buffers, narrow, self.first, local)

    def _rows_read(self, number: int) -> tuple[Expr, parts.Leading]:
        """The buffer that a part's rows come from, and where a row lies in it."""
        given = self.given[number][0]
        if given is None:
            return self.results[self.sources[number][0].number], row_itself
        return given, self._of_tensor(self.region.parts[number].inputs[0])

    def _rows_stored(self, number: int) -> tuple[Expr, parts.Leading]:
        """The buffer that a part's rows go to, and where a row lies in it."""
        if number < len(self.results):
            return self.results[number], row_itself
        return self.output, self._of_tensor(self.region.parts[number].output)

    def _of_tensor(self, tensor: Tensor) -> parts.Leading:
        first = self.first
        return lambda row: unflatten(row if first is None else first + row, tensor.shape[:-1])
