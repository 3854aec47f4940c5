"""The region and the configuration of a depthwise and a pointwise convolution in one kernel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.machines.machine import Machine
from microkernels.microkernel import Microkernel
from tir_schedules.convolution.depthwise import config as depthwise_config
from tir_schedules.convolution.depthwise.config import DepthwiseConfig, dot_kernel
from tir_schedules.convolution.depthwise.problem import DepthwiseProblem
from tir_schedules.core.config import Config, check_numbers
from tir_schedules.core.region import Region
from tir_schedules.product import matmul
from tir_schedules.product.matmul_config import MatmulConfig
from tir_schedules.product.matmul_config import check as check_matmul

from .mlp_chain_config import with_rows


class DepthwisePointwiseConfig(Config, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    lines : int
        Rows of the image whose pixels go through both parts together.
    threads : int
        Threads that share the bands of so many lines.
    depthwise : DepthwiseConfig
        Of the first part, on one thread.
    pointwise : MatmulConfig
        Of the second part, for the pixels of a band, on one thread.
    """

    lines: int
    threads: int
    depthwise: DepthwiseConfig
    pointwise: MatmulConfig

    def of_parts(self, region: Region) -> list[Config]:
        """The configuration of every part."""
        return [self.depthwise, self.pointwise]


def check(
    region: Region, config: DepthwisePointwiseConfig, isa: Isa
) -> tuple[DepthwiseProblem, Microkernel]:
    """The first part's geometry and the second one's kernel, for a configuration that is legal.

    Raises
    ------
    ConfigError
        Saying what is not legal.
    """
    first, second = region.parts
    problem = depthwise_config.check(first, config.depthwise, isa)
    kernel = check_matmul(second, config.pointwise, isa)
    check_numbers(region, config, {"lines": problem.rows.outputs, "threads": 4096})
    if config.lines < problem.rows.outputs and config.lines % config.depthwise.rows:
        raise ConfigError(
            f"lines={config.lines} are no whole tiles of {config.depthwise.rows} rows, for "
            f"{region.key}"
        )
    if config.depthwise.threads * config.pointwise.threads > 1:
        raise ConfigError(f"threads within a part of a band, for {region.key}")
    return problem, kernel


def in_bands(
    region: Region, machine: Machine, lines: int, threads: int, most_rows: int = 2
) -> DepthwisePointwiseConfig:
    """Bands of so many lines or somewhat more, with the parts' own numbers for them.

    Register tiles of the first part have at most `most_rows`.
    """
    first = region.parts[0]
    one = dataclasses.replace(machine, threads=1)
    problem = DepthwiseProblem.of(first)
    depthwise = depthwise_config.default_config(first, one, most_rows)
    kernel = dot_kernel(first, machine.isa)
    if kernel is not None:  # the ring of staged rows then goes on from band to band
        blocks = math.ceil(problem.channels / (kernel.lanes * kernel.kr))
        depthwise = DepthwiseConfig.from_dict({**depthwise.to_dict(), "blocks": blocks})
    lines = min(problem.rows.outputs, math.ceil(lines / depthwise.rows) * depthwise.rows)
    pointwise = matmul.default_config(pointwise_rows(region, lines), one)
    bands = problem.batch * math.ceil(problem.rows.outputs / lines)
    return DepthwisePointwiseConfig(
        lines=lines, threads=min(threads, bands), depthwise=depthwise, pointwise=pointwise
    )


def pointwise_rows(region: Region, lines: int) -> Region:
    """The second part as if it had only the pixels of a band."""
    first, second = region.parts
    return with_rows(second, lines * DepthwiseProblem.of(first).columns.outputs)


def band_sizes(outputs: int) -> list[int]:
    """Lines of bands that are worth trying: those that leave no thin one at the end."""
    return sorted({math.ceil(outputs / bands) for bands in range(1, outputs + 1)})


def variations(
    region: Region, default: DepthwisePointwiseConfig, machine: Machine
) -> Iterator[DepthwisePointwiseConfig]:
    """Other bands; then other numbers for one part at a time."""
    first = region.parts[0]
    problem = DepthwiseProblem.of(first)
    one = dataclasses.replace(machine, threads=1)
    for threads in sorted({1, machine.threads}):
        for lines in band_sizes(problem.rows.outputs):
            yield in_bands(region, machine, lines, threads)
    fields = default.to_dict()
    for found in depthwise_config.space(first, one):
        if default.lines % found.rows == 0:
            yield DepthwisePointwiseConfig.from_dict({**fields, "depthwise": found.to_dict()})
    for tile in matmul.neighbourhood(pointwise_rows(region, default.lines), one):
        yield DepthwisePointwiseConfig.from_dict({**fields, "pointwise": tile.to_dict()})
