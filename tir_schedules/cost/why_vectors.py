"""Says why a product uses vector kernels although the machine has AMX tiles; for `explain`.

    matmul of 1 row     1 row fills 6% of AMX tiles; avx512_vnni_... is estimated 3.1x as fast
    attention of f32    AMX multiplies 8-bit integers and bfloat16, not float32
    part of a chain     part 2: 1 row fills ...

The estimates are those by which the templates choose (amx_cost.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tvm import DataType

from microkernels.isa import isa_named
from microkernels.microkernel import microkernel_named, tile_kernels_for
from tir_schedules.attention import config as attention_config
from tir_schedules.attention.config import AttentionConfig
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.attention.tiled.rows import row_shares, row_unit
from tir_schedules.chains.depthwise_pointwise_config import DepthwisePointwiseConfig, pointwise_rows
from tir_schedules.chains.mlp_chain_config import MlpChainConfig, blocks_of, rows_of, with_rows
from tir_schedules.convolution.depthwise.config import DepthwiseConfig
from tir_schedules.convolution.direct import cost as conv_cost
from tir_schedules.convolution.direct.config import ConvConfig
from tir_schedules.convolution.geometry import ConvGeometry
from tir_schedules.convolution.winograd.config import WinogradConfig
from tir_schedules.convolution.winograd.cost import winograd_cost
from tir_schedules.core.config import Config
from tir_schedules.core.machine import Machine
from tir_schedules.core.region import Region
from tir_schedules.product import batch_matmul, matmul
from tir_schedules.product.batch_matmul import BatchMatmulConfig
from tir_schedules.product.batch_operands import BatchProblem
from tir_schedules.product.matmul_config import MatmulConfig, dimensions
from tir_schedules.product.weight_only_matmul import WeightOnlyConfig
from tir_schedules.product.zero_points import is_integer, quantized_dtype

from .amx_cost import LEAST_GAIN, why_not_amx

CONFIGURED = "so configured, although tiles are estimated faster"
DEPTHWISE = "every channel has a window of its own: no matrix product for tiles"
SKINNY = "few queries: K and V are read once, where they are stored, and not packed for tiles"


@dataclass(frozen=True)
class _Product:
    """A product, and how it is computed.

    Attributes
    ----------
    name : str
        Which product of the region it is; "" of the only one.
    kernel : str
        The microkernel's name.
    types : tuple of str
        What is multiplied.
    m, k : int
        Rows of the busiest thread's part, and elements of K.
    cycles : float
        Estimated, as it is computed.
    others : callable
        () -> kernels that could compute it, and the estimated cycles then.
    """

    name: str
    kernel: str
    types: tuple[str, str]
    m: int
    k: int
    cycles: float
    others: Callable[[], list[tuple[str, float]]]


def why_vectors(region: Region, config: Config, machine: Machine) -> str:
    """Why products of a region stay on vectors; "" if none does, or the machine has no tiles.

    Parameters
    ----------
    config : Config
        What was chosen for the region.
    """
    if not machine.isa.includes(isa_named("amx")):
        return ""
    if isinstance(config, WeightOnlyConfig):
        bits = region.attrs["bits"]
        return f"the weight of {bits} bits is expanded to float32, which AMX does not multiply"
    if isinstance(config, AttentionConfig) and config.skinny:
        return SKINNY
    if isinstance(config, DepthwiseConfig):
        return DEPTHWISE
    if isinstance(config, DepthwisePointwiseConfig):
        one = dataclasses.replace(machine, threads=1)
        rows = pointwise_rows(region, config.lines)
        second = why_vectors(rows, config.pointwise, one)
        return f"part 0: {DEPTHWISE}" + (f"; part 1: {second}" if second else "")
    products = list(_products(region, config, machine))
    names: dict[str, list[str]] = {}
    for product in products:
        reason = _reason(product, machine)
        if reason is not None:
            names.setdefault(reason, []).append(product.name)
    return "; ".join(
        reason if len(of_reason) == len(products) else f"{' and '.join(of_reason)}: {reason}"
        for reason, of_reason in names.items()
    )


def _reason(product: _Product, machine: Machine) -> str | None:
    """Why one product is not computed on tiles; None if it is."""
    if microkernel_named(product.kernel).by_tiles:
        return None
    if not tile_kernels_for(machine.isa, *product.types):
        types = " by ".join(dict.fromkeys(product.types))
        return f"AMX multiplies 8-bit integers and bfloat16, not {types}"
    tiles = min(cycles for kernel, cycles in product.others() if microkernel_named(kernel).by_tiles)
    k_bytes = product.k * DataType(product.types[0]).itemsize
    return why_not_amx(product.m, tiles, product.cycles, product.kernel, k_bytes) or CONFIGURED


def _products(region: Region, config: Config, machine: Machine) -> Iterator[_Product]:
    """The products of a region."""
    if isinstance(config, MatmulConfig):
        yield _matmul(region, config, machine)
    elif isinstance(config, BatchMatmulConfig):
        yield _batch_matmul(region, config, machine)
    elif isinstance(config, AttentionConfig):
        yield from _attention(region, config, machine)
    elif isinstance(config, ConvConfig):
        yield _conv(region, config, machine)
    elif isinstance(config, WinogradConfig):
        yield _winograd(region, config, machine)
    elif isinstance(config, MlpChainConfig):
        yield from _chain(region, config, machine)


def _matmul(region: Region, config: MatmulConfig, machine: Machine, name: str = "") -> _Product:
    m, _, k = dimensions(region)
    return _Product(
        name,
        config.kernel,
        _types(region),
        math.ceil(m / config.threads_m),
        k,
        matmul.estimated_cycles(region, config, machine),
        lambda: [
            (other.kernel, matmul.estimated_cycles(region, other, machine))
            for other in matmul.candidates(region, machine)
        ],
    )


def _batch_matmul(region: Region, config: BatchMatmulConfig, machine: Machine) -> _Product:
    problem = BatchProblem(region)
    return _Product(
        "",
        config.kernel,
        _types(region),
        math.ceil(problem.m / config.row_shares),
        problem.k,
        batch_matmul.estimated_cycles(problem, config, machine),
        lambda: [
            (other.kernel, batch_matmul.estimated_cycles(problem, other, machine))
            for other in batch_matmul.candidates(region, machine)
        ],
    )


def _conv(region: Region, config: ConvConfig, machine: Machine) -> _Product:
    """A convolution, whose tiles hold pixels of one line; K is that of one line of the kernel."""
    geometry = ConvGeometry.of(region)
    return _Product(
        "",
        config.kernel,
        _types(region),
        geometry.outputs[-1],
        geometry.kernel[-1] * geometry.group_channels,
        conv_cost.estimated_cycles(region, config, machine),
        lambda: [
            (other.kernel, conv_cost.estimated_cycles(region, other, machine))
            for other in conv_cost.candidates(region, machine)
        ],
    )


def _attention(region: Region, config: AttentionConfig, machine: Machine) -> Iterator[_Product]:
    """Both products; estimated are both together, for tiles may want the queries cut otherwise."""
    problem = AttentionProblem(region)
    unit = row_unit(attention_config.kernels_of(config))
    m = row_shares(problem.m, config.row_shares, unit)[0].size

    def cycles(config: AttentionConfig) -> float:
        return attention_config.estimated_cycles(problem, config, machine, LEAST_GAIN)

    def estimates(field: str) -> list[tuple[str, float]]:
        others = attention_config.candidates(problem, machine)
        return [(getattr(other, field), cycles(other) / LEAST_GAIN) for other in others]

    for name, part, k in (
        ("scores", problem.scores, problem.d),
        ("product", problem.product, problem.n),
    ):
        field = f"{name}_kernel"
        yield _Product(
            name,
            getattr(config, field),
            _types(part),
            m,
            k,
            cycles(config),
            partial(estimates, field),
        )


def _chain(region: Region, config: MlpChainConfig, machine: Machine) -> Iterator[_Product]:
    """The matmuls of a chain: of a block of rows, or as if each stood alone."""
    blocks = None
    if config.mode == "rows":
        blocks = blocks_of(rows_of(region.parts[0]), config)
        machine = dataclasses.replace(machine, threads=1)
    for number, (part, found) in enumerate(zip(region.parts, config.of_parts(region), strict=True)):
        if isinstance(found, MatmulConfig):
            rows = part if blocks is None else with_rows(part, blocks[0].size)
            yield _matmul(rows, found, machine, f"part {number}")


def _winograd(region: Region, config: WinogradConfig, machine: Machine) -> _Product:
    """The products of Winograd's tiles, of f32 alone."""
    cost = winograd_cost(region, config, machine).products
    channels = region.inputs[0].shape[-1]
    return _Product("", config.kernel, _types(region), config.m_block, channels, cost, list)


def _types(region: Region) -> tuple[str, str]:
    """What a product multiplies; if one operand is bfloat16, an f32 one is rounded to it."""
    b = region.inputs[1]
    if is_integer(region):
        return quantized_dtype(region), b.dtype
    b_dtype = str(region.attrs.get("rounded", b.dtype))
    return b_dtype, b_dtype
