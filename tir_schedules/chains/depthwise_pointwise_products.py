"""A depthwise and a pointwise convolution before they are built: their loops, and the product.

bands > the loops of the depthwise part, those of the matmul
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from microkernels.machines.machine import Machine
from tir_schedules.convolution.depthwise.nests import WHY_VECTORS, lines_nest
from tir_schedules.convolution.depthwise.problem import DepthwiseProblem
from tir_schedules.core.loop_nest import Loop, LoopNest, balance_of, pieces
from tir_schedules.core.product import Product
from tir_schedules.core.region import Region
from tir_schedules.cost.product_nest import kind_of
from tir_schedules.cost.why_vectors import reasons
from tir_schedules.product.matmul import MATMUL, product_of

from .depthwise_pointwise_config import DepthwisePointwiseConfig, pointwise_rows


def nests(region: Region, config: DepthwisePointwiseConfig) -> Iterator[LoopNest]:
    """The loops of both parts in bands."""
    region = region.sampled()
    problem = DepthwiseProblem.of(region.parts[0])
    lines = min(config.lines, problem.rows.outputs)
    bands = problem.batch * pieces(problem.rows.outputs, lines)
    share = problem.batch * problem.rows.outputs / lines  # a last band that is cut counts in part
    first = lines_nest(region.parts[0], config.depthwise, lines, samples=1)
    (second,) = MATMUL.nests(pointwise_rows(region, lines), config.pointwise)
    kind = kind_of(config.threads > 1)
    for nest in (first, second):
        a, b, c = nest.loops[0].touched
        yield dataclasses.replace(
            nest,
            loops=(Loop("band", share, kind, (a * share, b, c * share)), *nest.loops),
            operations=nest.operations * share,
            balance=balance_of(bands, min(config.threads, bands)),
        )


def products(
    region: Region, config: DepthwisePointwiseConfig, machine: Machine
) -> Iterator[Product]:
    """The matmul of a band."""
    image = DepthwiseProblem.of(region.sampled().parts[0])
    one = dataclasses.replace(machine, threads=1)
    rows = pointwise_rows(region, config.lines)
    copies = image.batch * math.ceil(image.rows.outputs / config.lines)
    product = product_of(rows, config.pointwise, one)
    yield dataclasses.replace(product, part=region.parts[1], copies=copies)


def why_vectors(region: Region, config: DepthwisePointwiseConfig, machine: Machine) -> str:
    """Why the parts stay on vectors."""
    second = reasons(products(region, config, machine), machine)
    return f"part 0: {WHY_VECTORS}" + (f"; part 1: {second}" if second else "")
