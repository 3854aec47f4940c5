"""What a matmul region is, and the numbers that make its template concrete."""

from __future__ import annotations

import math

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from tir_schedules.core.product_plan import ProductPlan, TileConfig, is_integer, quantized_dtype
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import rows_and_columns

from .matmul_window import window_of
from .tile_config import check_tile
from .wide_product import wide_product

# Types of A that a weight of some type can be multiplied by; they are converted on the way in.
ACTIVATION_DTYPES = {
    "float32": (
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int32",
        "int64",
        "bool",
    ),
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "int8": ("uint8", "int8", "float32"),
    "uint8": ("uint8", "int8", "float32"),
}


class MatmulConfig(TileConfig, frozen=True, kw_only=True):
    """Numbers that make the template concrete.

    Attributes
    ----------
    threads_m, threads_n : int
        Threads along rows and along columns.
    threads_k : int
        Threads along K, whose sums are added in the end.
    whole_rows : int
        Up to so many of an open number of rows are left whole: the threads along rows share panels
        of columns instead.
    alone_rows : int
        Up to so many of an open number of rows, one thread multiplies all of them.
    """

    threads_m: int = 1
    threads_n: int = 1
    threads_k: int = 1
    whole_rows: int = 0
    alone_rows: int = 0

    @property
    def threads(self) -> int:
        """Threads of the grid."""
        return self.threads_m * self.threads_n * self.threads_k


def dimensions(region: Region) -> tuple[int, int, int]:
    """(M, N, K) of a matmul region."""
    *steps, n = region.inputs[1].shape
    window = window_of(region)
    m = rows_and_columns(region.inputs[0])[0] if window is None else window.batch * window.count
    return m, n, math.prod(steps)


def plan_of(region: Region, config: MatmulConfig) -> ProductPlan:
    """How a configuration cuts a matmul region."""
    m, n, k = dimensions(region)
    return ProductPlan.of(
        config,
        m,
        n,
        k,
        threads_m=config.threads_m,
        threads_n=config.threads_n,
        threads_k=config.threads_k,
    )


def product_types(region: Region) -> tuple[str, str]:
    """What a matmul region multiplies, as of `product_kernels`."""
    a_dtype = quantized_dtype(region) if is_integer(region) else region.inputs[0].dtype
    return a_dtype, region.inputs[1].dtype


def check(region: Region, config: MatmulConfig, isa: Isa) -> Microkernel:
    """The microkernel of a legal configuration; ConfigError for an illegal one."""
    threads = "threads_m", "threads_n", "threads_k"
    m, _, k = dimensions(region)
    wide = wide_product(microkernel_named(config.kernel), m, config.rows, config.vectors)
    kernel = check_tile(region, config, isa, product_types(region), *threads, wide=wide)
    if config.threads_k > 1 and not shares_k(kernel, k):
        raise ConfigError(f"threads_k={config.threads_k}: {region.key} has an incomplete tile of K")
    return kernel


def shares_k(kernel: Microkernel, k: int) -> bool:
    """Whether threads may share K; the last tile of it is multiplied by itself if incomplete."""
    return not kernel.by_tiles or k % (kernel.kr * kernel.depth) == 0
