"""Why a product stays on vector kernels although the machine has tiles (AMX): for `explain`.

    matmul of 1 row     1 row fills 6% of AMX tiles; avx512_vnni_... is estimated 3.1x as fast
    attention of f32    AMX multiplies 8-bit integers and bfloat16, not float32
    part of a chain     part 2: 1 row fills ...

Templates choose by the same estimates (amx_cost.py), which are repeated here for what was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from microkernels.amx_tiles import AmxMicrokernel
from microkernels.isa import isa_named
from microkernels.microkernel import Microkernel, microkernel_named, tile_kernels_for

from .amx_cost import amx_blocks, amx_cycles, vector_cycles, why_not_amx
from .attention import AttentionConfig
from .attention_problem import AttentionProblem
from .batch_matmul import BatchMatmulConfig
from .batch_operands import BatchProblem
from .blocking import shares
from .config import Config
from .machine import Machine
from .matmul_config import MatmulConfig, dimensions
from .mlp_chain_config import MlpChainConfig, rows_of
from .region import Region
from .weight_only_matmul import WeightOnlyConfig
from .zero_points import is_integer, quantized_dtype

CONFIGURED = "so configured, although tiles are estimated faster"
SKINNY = "few queries: K and V are read once, where they are stored, and not packed for tiles"


@dataclass(frozen=True)
class _Product:
    """One thread's part of a product, and how it is computed.

    Attributes
    ----------
    kernel : str
        The microkernel's name.
    types : tuple of str
        What is multiplied.
    m, n, k : int
        Rows, columns and elements of K of the thread's part.
    rows, vectors, k_block : int
        As of a `TileConfig`.
    name : str
        Which product of the region it is; "" of the only one.
    """

    kernel: str
    types: tuple[str, str]
    m: int
    n: int
    k: int
    rows: int
    vectors: int
    k_block: int
    name: str = ""


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
    products = list(_products(region, config))
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
    kernel = microkernel_named(product.kernel)
    if kernel.by_tiles:
        return None
    candidates = tile_kernels_for(machine.isa, *product.types)
    if not candidates:
        types = " by ".join(dict.fromkeys(product.types))
        return f"AMX multiplies 8-bit integers and bfloat16, not {types}"
    n_vectors = math.ceil(product.n / kernel.lanes)
    blocks = (product.rows, product.vectors, min(product.k_block, kernel.steps(product.k)))
    vectors = vector_cycles(product.m, n_vectors, kernel.steps(product.k), *blocks, machine=machine)
    tiles = min(_tile_cycles(each, product, machine) for each in candidates)
    return why_not_amx(product.m, tiles, vectors, kernel.name) or CONFIGURED


def _tile_cycles(kernel: Microkernel, product: _Product, machine: Machine) -> float:
    """Estimated cycles of a product on one kernel of tiles, with its best blocks."""
    assert isinstance(kernel, AmxMicrokernel)
    part = (kernel.layout, product.m, math.ceil(product.n / kernel.lanes), kernel.steps(product.k))
    return amx_cycles(*part, **amx_blocks(*part, machine=machine), machine=machine)


def _products(region: Region, config: Config) -> Iterator[_Product]:
    """The products of a region, each as the busiest thread computes it."""
    if isinstance(config, MatmulConfig):
        yield _matmul(region, config)
    elif isinstance(config, BatchMatmulConfig):
        problem = BatchProblem(region)
        m = math.ceil(problem.m / config.row_shares)
        blocks = (config.rows, config.vectors, config.k_block)
        yield _Product(config.kernel, _types(region), m, problem.n, problem.k, *blocks)
    elif isinstance(config, AttentionConfig):
        yield from _attention(region, config)
    elif isinstance(config, MlpChainConfig):
        yield from _chain(region, config)


def _matmul(
    region: Region, config: MatmulConfig, rows: int | None = None, name: str = ""
) -> _Product:
    """A product with a constant weight, of so many rows or of all."""
    m, n, k = dimensions(region)
    return _Product(
        config.kernel,
        _types(region),
        math.ceil((rows or m) / config.threads_m),
        math.ceil(n / config.threads_n),
        k,
        config.rows,
        config.vectors,
        config.k_block,
        name,
    )


def _attention(region: Region, config: AttentionConfig) -> Iterator[_Product]:
    """Both products of an attention, of the rows of one task."""
    problem = AttentionProblem(region)
    m = math.ceil(problem.m / config.row_shares)
    band, whole = config.band, 1 << 30
    for name, part, kernel, vectors, n, k in (
        (
            "scores",
            problem.scores,
            config.scores_kernel,
            config.score_vectors,
            problem.n,
            problem.d,
        ),
        (
            "product",
            problem.product,
            config.product_kernel,
            config.product_vectors,
            problem.e,
            problem.n,
        ),
    ):
        rows = min(microkernel_named(kernel).mr, band, m)
        yield _Product(kernel, _types(part), m, n, k, rows, vectors, whole, name)


def _chain(region: Region, config: MlpChainConfig) -> Iterator[_Product]:
    """The matmuls of a chain, of a block of rows or, by columns, of a thread's part."""
    rows = None
    if config.mode == "rows":
        rows = shares(rows_of(region.parts[0]), config.row_blocks)[0].size
    for number, (part, found) in enumerate(zip(region.parts, config.of_parts(region), strict=True)):
        if isinstance(found, MatmulConfig):
            yield _matmul(part, found, rows, f"part {number}")


def _types(region: Region) -> tuple[str, str]:
    """What a product multiplies; a f32 operand beside a bfloat16 one is rounded to it."""
    b = region.inputs[1]
    if is_integer(region):
        return quantized_dtype(region), b.dtype
    b_dtype = str(region.attrs.get("rounded", b.dtype))
    return b_dtype, b_dtype
