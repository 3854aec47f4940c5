"""The loops of a chain: its parts one after the other, on blocks of rows or on all of them.

run        a block of known size, in the calling thread
run_any    blocks of a number of rows that is known at run time only, shared among threads
share      part after part, each shared among threads
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tvm import tirx

from microkernels.isa import Isa
from microkernels.vector import bfloat16
from microkernels.vector.expressions import Expr
from tir_schedules.core import attributes, blocking, emission, extents
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue, unflatten
from tir_schedules.product import matmul_product
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.product.tile_config import check as check_matmul
from tir_schedules.product.tile_products import TileTask
from tir_schedules.rows import normalize, normalize_view
from tir_schedules.rows.normalize import NormalizeConfig, for_rows, share_rows
from tir_schedules.rows.normalize_rows import Rows

from . import mlp_chain_config, parts


@dataclass
class ChainLoops:
    """The parts, around the kernel's parameters."""

    region: Region
    configs: Sequence[parts.PartConfig]
    isa: Isa
    inputs: Sequence[Expr]
    result: Expr

    def __post_init__(self) -> None:
        region = self.region
        self.parts = list(zip(region.parts, self.configs, strict=True))
        self.kernels = [
            check_matmul(part, config, self.isa) if isinstance(config, MatmulConfig) else None
            for part, config in self.parts
        ]
        self.sources: attributes.Sources = parts.sources_of(region)
        numbers, last = range(len(self.parts)), region.parts[-1].output
        self.given = [parts.as_read(region, self.inputs, number) for number in numbers]
        self.output = normalize_view.reshaped(self.result, region.output, last.shape)
        self.pitches = []
        for number, (part, _) in enumerate(self.parts[:-1]):
            # Elements from one row of a result to the next, for all who read it.
            reads = attributes.Source(True, number)
            pairs = zip(self.kernels, self.sources, strict=True)
            readers = [kernel for kernel, sources in pairs if sources[0] == reads]
            pitches = (parts.row_pitch(part.output, reader) for reader in (None, *readers))
            self.pitches.append(max(pitches))

    def admit(self) -> None:
        """Emits what the process needs to run the parts' kernels, once."""
        for kernel in self.kernels:
            if kernel is not None and kernel.by_tiles:
                kernel.admit()
                return

    def run(self, first: Expr, rows: int) -> None:
        """All parts on the block of rows from `first` on, in the calling thread."""
        with emission.opaque_block("block"):
            self._begin(first, rows)
            tiles = TileTask()
            for number, (_, config) in enumerate(self.parts):
                with emission.opaque_block("part"):
                    if isinstance(config, MatmulConfig):
                        self._product(number, config).run(rows, tiles)
                    else:
                        norm = self._norm(number, config)
                        emission.for_groups(blocking.balanced(rows, config.rows), norm.block)
            tiles.release()

    def run_any(self, count: int, config: mlp_chain_config.MlpChainConfig) -> None:
        """Blocks of a number of rows that is known at run time only, shared among threads."""
        rows, most = extents.extent(count), config.most_rows
        assert not isinstance(rows, int)

        def block(first: Expr, size: Expr) -> None:
            self._begin(first, most)
            for number, (_, config) in enumerate(self.parts):
                with emission.opaque_block("part"):
                    if isinstance(config, MatmulConfig):
                        self._product(number, config).run(size, most=most)
                    else:
                        for_rows(self._norm(number, config), tirx.const(0, "int32"), size, config)

        with emission.open_tasks(config.threads, rows <= config.alone_rows) as (task, tasks):
            start, many = emission.share_of(rows, task, tasks)
            emission.for_blocks(many, most, lambda at, size: block(start + at, size))

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
        made = zip(self.region.parts, self.pitches, strict=False)
        self.results = [parts.rows_between(part.output, rows, pitch) for part, pitch in made]

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

    def _rows_read(self, number: int) -> tuple[Expr, parts.Leading]:
        """The buffer that a part's rows come from, and where a row lies in it."""
        given = self.given[number][0]
        if given is None:
            return self.results[self.sources[number][0].number], extents.row_itself
        return given, self._of_tensor(self.region.parts[number].inputs[0])

    def _rows_stored(self, number: int) -> tuple[Expr, parts.Leading]:
        """The buffer that a part's rows go to, and where a row lies in it."""
        if number < len(self.results):
            return self.results[number], extents.row_itself
        return self.output, self._of_tensor(self.region.parts[number].output)

    def _of_tensor(self, tensor: Tensor) -> parts.Leading:
        first = self.first
        return lambda row: unflatten(row if first is None else first + row, tensor.shape[:-1])
