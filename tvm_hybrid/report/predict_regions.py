"""The matrix products of a region and its configuration, as the model of AMX takes them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from microkernels.kernels.amx_family import AmxMicrokernel
from microkernels.microkernel import microkernel_named
from tir_schedules.attention.config import AttentionConfig, kernels_of
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.rows import row_shares, row_unit
from tir_schedules.chains.depthwise_pointwise_config import DepthwisePointwiseConfig
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, blocks_of
from tir_schedules.convolution.depthwise.problem import DepthwiseProblem
from tir_schedules.convolution.direct.config import ConvConfig
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.core.config import Config
from tir_schedules.core.region import Region
from tir_schedules.cost.amx_prediction import TilePart
from tir_schedules.epilogue.epilogue import Epilogue
from tir_schedules.product.batch_matmul import BatchMatmulConfig
from tir_schedules.product.batch_operands import BatchProblem
from tir_schedules.product.matmul_config import MatmulConfig, dimensions
from tir_schedules.product.tile_config import TileConfig
from tir_schedules.product.tile_stores import stores_in_place
from tir_schedules.product.zero_points import ZeroPoints, is_integer


class Product(NamedTuple):
    """One product of a region.

    Attributes
    ----------
    part : Region
        The product.
    config : TileConfig
        Its numbers.
    sizes : tuple of int
        Rows, columns and K of the busiest thread's part.
    copies : int
        How many such products one call does.
    """

    part: Region
    config: TileConfig
    sizes: tuple[int, int, int]
    copies: int


def products_of(region: Region, config: Config) -> Iterator[Product]:
    """The products of a region; none if it is not known beforehand how much they multiply."""
    if isinstance(config, MlpChainConfig):
        for part, found in zip(region.parts, config.of_parts(region), strict=True):
            if isinstance(found, MatmulConfig):
                m, n, k = _sizes(part, found)
                copies = 1
                if config.mode == "rows":
                    blocks = blocks_of(m, config)
                    m, copies = blocks[0].size, sum(group.count for group in blocks)
                yield Product(part, found, (m, n, k), copies)
    elif isinstance(config, DepthwisePointwiseConfig):
        image = DepthwiseProblem.of(region.parts[0])
        _, n, k = dimensions(region.parts[1])
        m = config.lines * image.columns.outputs
        copies = image.batch * math.ceil(image.rows.outputs / config.lines)
        yield Product(region.parts[1], config.pointwise, (m, n, k), copies)
    elif isinstance(config, ConvConfig):
        yield _convolution(region, config)
    elif isinstance(config, AttentionConfig):
        yield from _attention(region, config)
    elif isinstance(config, BatchMatmulConfig):
        problem = BatchProblem(region)
        m = math.ceil(problem.m / config.row_shares)
        copies = problem.batches * config.row_shares
        yield Product(region, config, (m, problem.n, problem.k), copies)
    elif isinstance(config, MatmulConfig):
        yield Product(region, config, _sizes(region, config), 1)


def _sizes(part: Region, config: MatmulConfig) -> tuple[int, int, int]:
    """Rows, columns and K of one thread's part."""
    m, n, k = dimensions(part)
    lanes = microkernel_named(config.kernel).lanes
    columns = math.ceil(math.ceil(n / lanes) / config.threads_n) * lanes
    return math.ceil(m / config.threads_m), min(n, columns), k


def _convolution(region: Region, config: ConvConfig) -> Product:
    """Tiles of pixels of a line; what overlaps at its end is computed twice."""
    geometry, kernel = ConvGeometry.of(region).as_volume(), microkernel_named(config.kernel)
    depth, height, width = geometry.outputs
    rows, k = min(config.rows, width), math.prod(geometry.kernel) * geometry.group_channels
    bands = geometry.batch * depth * math.ceil(height / config.band)
    lines = min(math.ceil(bands / config.threads_m) * config.band, geometry.batch * depth * height)
    tile = TileConfig(
        kernel=kernel.name, rows=rows, vectors=config.vectors, m_block=rows, k_block=kernel.steps(k)
    )
    panels = math.ceil(geometry.group_out_channels / kernel.lanes / config.vectors)
    share = min(panels, math.ceil(panels / config.threads_n)) * config.vectors * kernel.lanes
    columns = min(geometry.group_out_channels, share)
    copies = lines * math.ceil(width / rows) * geometry.groups
    return Product(region, tile, (rows, columns, k), copies)


def _attention(region: Region, config: AttentionConfig) -> Iterator[Product]:
    """Both products, unless hidden keys are left out or the softmax runs on from block to block."""
    problem, kernels = AttentionProblem(region), kernels_of(config)
    if config.skinny or config.key_block or problem.causal is not None:
        return
    shares = row_shares(problem.m, config.row_shares, row_unit(kernels))
    m, copies = shares[0].size, problem.batches * sum(group.count for group in shares)
    for part, kernel, vectors, n, k in (
        (problem.scores, kernels[0], config.score_vectors, problem.n, problem.d),
        (problem.product, kernels[1], config.product_vectors, problem.e, problem.n),
    ):
        found = TileConfig(
            kernel=kernel.name,
            rows=min(kernel.mr, config.band),
            vectors=vectors,
            m_block=config.band,
            k_block=kernel.steps(k),
        )
        yield Product(part, found, (m, n, k), copies)


def tile_part(
    kernel: AmxMicrokernel,
    sizes: tuple[int, int, int],
    blocks: Mapping[str, int],
    started: bool,
    epilogue: int | None,
    fetches: bool = False,
) -> TilePart:
    """A product of so many rows, columns and K as the model takes it."""
    m, n, k = sizes
    return TilePart(
        layout=kernel.layout,
        m=m,
        n_vectors=math.ceil(n / kernel.lanes),
        steps=kernel.steps(k),
        started=started,
        epilogue=epilogue,
        fetches=fetches,
        rows=blocks["rows"],
        vectors=blocks["vectors"],
        m_block=blocks["m_block"],
        k_block=blocks["k_block"],
    )


def starts_loaded(part: Region, kernel: AmxMicrokernel) -> bool:
    """Whether zero points make the accumulators start with something other than zero."""
    if not is_integer(part):
        return False
    zero_points = ZeroPoints.of(part, kernel)
    return zero_points.needs_column_sums or zero_points.needs_row_sums


def operations_of(part: Region, kernel: AmxMicrokernel) -> int | None:
    """Operations on every vector of results; None if the tiles are stored in their place."""
    return None if stores_in_place(part, kernel) else Epilogue(part, ()).cost
