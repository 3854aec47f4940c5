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
from tir_schedules.core.extents import extent
from tir_schedules.core.region import Region, Tensor
from tir_schedules.epilogue.epilogue import Epilogue, unflatten
from tir_schedules.product.matmul_product import MatmulProduct
from tir_schedules.product.tile_config import MatmulConfig
from tir_schedules.product.tile_config import check as check_matmul
from tir_schedules.product.tile_loops import TileTask
from tir_schedules.rows import normalize
from tir_schedules.rows.normalize import NormalizeConfig, for_rows, share_rows
from tir_schedules.rows.normalize_rows import Rows
from tir_schedules.rows.normalize_view import NORM_OPS, reshaped

from .mlp_chain_config import MlpChainConfig
from .packing import packed_uses, sources_of, tensors_of
from .parts import Leading, PartConfig, row_pitch, rows_between


class ChainLoops:
    """The parts, around the kernel's parameters."""

    def __init__(
        self,
        region: Region,
        configs: Sequence[PartConfig],
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
        self.sources: Sources = sources_of(region)
        self.given = [
            [
                None if source.part else self._as_read(number, position, inputs)
                for position, source in enumerate(found)
            ]
            for number, found in enumerate(self.sources)
        ]
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
            results = self._results(rows)
            tiles = TileTask()
            for number, (_, config) in enumerate(self.parts):
                with opaque_block("part"):
                    if isinstance(config, MatmulConfig):
                        self._product(number, config, results, first).run(rows, tiles)
                    else:
                        norm = self._norm(number, config, results, first)
                        for_groups(balanced(rows, config.rows), norm.block)
            tiles.release()

    def run_any(self, count: int, config: MlpChainConfig) -> None:
        """Blocks of a number of rows that is known at run time only, shared among threads."""
        rows = extent(count)
        assert not isinstance(rows, int)
        with open_tasks(config.threads, rows <= config.alone_rows) as (task, tasks):
            start, many = share_of(rows, task, tasks)
            for_blocks(
                many,
                config.most_rows,
                lambda at, size: self._run_open(start + at, size, config.most_rows),
            )

    def _run_open(self, first: Expr, rows: Expr, most: int) -> None:
        """All parts on a block of `most` rows or fewer."""
        results = self._results(most)
        for number, (_, config) in enumerate(self.parts):
            with opaque_block("part"):
                if isinstance(config, MatmulConfig):
                    self._product(number, config, results, first).run(rows, most=most)
                else:
                    norm = self._norm(number, config, results, first)
                    for_rows(norm, tirx.const(0, "int32"), rows, config)

    def share(self, rows: int) -> None:
        """Part after part, each shared among the threads of its configuration."""
        results = self._results(rows)
        for number, (_, config) in enumerate(self.parts):
            if isinstance(config, MatmulConfig):
                self._product(number, config, results, None).share()
            else:
                share_rows(self._norm(number, config, results, None), rows, config)

    def _pitch(self, number: int) -> int:
        """Elements from one row of a result to the next, for all who read it."""
        made = self.region.parts[number].output
        readers = [
            kernel
            for kernel, sources in zip(self.kernels, self.sources, strict=True)
            if sources[0] == Source(True, number)
        ]
        return max(row_pitch(made, reader) for reader in (None, *readers))

    def _results(self, rows: int) -> list[Expr]:
        """A buffer for every result between the parts, as a matrix of so many rows."""
        return [
            rows_between(part.output, rows, pitch)
            for part, pitch in zip(self.region.parts, self.pitches, strict=False)
        ]

    def _as_read(self, number: int, position: int, inputs: Sequence[Expr]) -> Expr:
        """What a part reads from outside, in the shape that it reads it in."""
        part, index = self.region.parts[number], self.sources[number][position].number
        if (number, position) in packed_uses(self.region, index):
            return inputs[index]
        shape = tensors_of(part)[position].shape
        if part.op in NORM_OPS and position > 0:
            seen = normalize.view(part)
            further = position - len(part.inputs)
            shape = (seen.n,) if further < 0 else seen.region.operands[further].shape
        return reshaped(inputs[index], self.region.inputs[index], shape)

    def _product(
        self, number: int, config: MatmulConfig, results: Sequence[Expr], first: Expr | None
    ) -> MatmulProduct:
        part, given, kernel = self.parts[number][0], self.given[number], self.kernels[number]
        assert kernel is not None
        epilogue = self._epilogue(part, number, results, first, kernel.narrow)
        constants = [cast(Expr, buffer) for buffer in given[1 : len(part.inputs)]]
        source = self._rows_read(number, results, first)
        target = self._rows_stored(number, results, first)
        return MatmulProduct(part, config, kernel, constants, epilogue, source, target)

    def _norm(
        self, number: int, config: NormalizeConfig, results: Sequence[Expr], first: Expr | None
    ) -> Rows:
        part, given = self.parts[number][0], self.given[number]
        seen = normalize.view(part)
        x, leading_x = self._rows_read(number, results, first)
        out, leading_out = self._rows_stored(number, results, first)
        return Rows(
            seen,
            self.isa.f32_lanes,
            config.unroll,
            config.keep,
            config.chunk,
            x,
            [cast(Expr, buffer) for buffer in given[1 : len(part.inputs)]],
            out,
            self._epilogue(seen.region, number, results, first),
            leading_x,
            leading_out,
        )

    def _epilogue(
        self,
        part: Region,
        number: int,
        results: Sequence[Expr],
        first: Expr | None,
        narrow: Callable[[Expr], Expr] = bfloat16.narrow,
    ) -> Epilogue:
        skipped = len(part.inputs)
        sources, given = self.sources[number][skipped:], self.given[number][skipped:]
        buffers = [
            results[source.number] if buffer is None else buffer
            for source, buffer in zip(sources, given, strict=True)
        ]
        local = {operand for operand, source in enumerate(sources) if source.part}
        return Epilogue(part, buffers, narrow, first, local)

    def _rows_read(
        self, number: int, results: Sequence[Expr], first: Expr | None
    ) -> tuple[Expr, Leading]:
        """The buffer that a part's rows come from, and where a row lies in it."""
        source, given = self.sources[number][0], self.given[number][0]
        if given is None:
            return results[source.number], _of_matrix
        return given, _of_tensor(self.region.parts[number].inputs[0], first)

    def _rows_stored(
        self, number: int, results: Sequence[Expr], first: Expr | None
    ) -> tuple[Expr, Leading]:
        """The buffer that a part's rows go to, and where a row lies in it."""
        if number < len(results):
            return results[number], _of_matrix
        return self.output, _of_tensor(self.region.parts[number].output, first)


def _of_matrix(row: Expr) -> Sequence[Expr]:
    return [row]


def _of_tensor(tensor: Tensor, first: Expr | None) -> Leading:
    def leading(row: Expr) -> Sequence[Expr]:
        return unflatten(row if first is None else first + row, tensor.shape[:-1])

    return leading
