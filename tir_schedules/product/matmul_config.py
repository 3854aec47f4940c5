"""What a matmul region is, and the numbers that make its template concrete."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.errors import ConfigError
from microkernels.isa import Isa
from microkernels.microkernel import Microkernel
from microkernels.registry import microkernel_named
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core.product_plan import ProductPlan, TileConfig, is_integer, quantized_dtype
from tir_schedules.core.region import Region
from tir_schedules.epilogue.epilogue import rows_and_columns

from .tile_config import check_tile
from .tile_products import wide_product

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


# Rows of a product that are overlapping windows of memory: one-axis convolution, channels last.
#
#     Y[n, t, o] = sum over (tap, c) of X[n, t * stride + tap, c] * W[tap, c, o]
#
# The window of one t is contiguous in X: taps * C elements, beginning at (t * stride) * C. So this
# is a product with K = taps * C. Its rows begin stride * C elements apart and overlap. Nothing is
# copied.


@dataclass(frozen=True)
class Window:
    """The geometry of a region with windows.

    Attributes
    ----------
    batch, length, channels : int
        Shape of X.
    taps, stride : int
        Positions of a window, and from one window to the next.
    """

    batch: int
    length: int
    channels: int
    taps: int
    stride: int

    @property
    def count(self) -> int:
        """Windows of one sample."""
        return (self.length - self.taps) // self.stride + 1

    @property
    def pitch(self) -> int:
        """Elements from the start of one row to the start of the next."""
        return self.stride * self.channels

    def element(self, row: Expr, step: Index) -> list[Expr]:
        """Indices of X for a flat row of the product and a step of K; they flatten to a sum."""
        sample, start = tirx.const(0, "int32"), row
        if self.batch > 1:
            sample, start = I.floordiv(row, self.count), I.floormod(row, self.count)
        position = start * self.stride + I.floordiv(step, self.channels)
        return [sample, position, I.floormod(step, self.channels)]

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The result by numpy, in the type of the arrays."""
        last = self.stride * (self.count - 1) + 1
        return np.asarray(
            sum(x[:, tap : tap + last : self.stride] @ w[tap] for tap in range(self.taps))
        )


def window_of(region: Region) -> Window | None:
    """The windows of a matmul region; None if its rows are rows of a matrix."""
    if "window" not in region.attrs:
        return None
    batch, length, channels = region.inputs[0].shape
    taps, stride = region.integer("window"), region.integer("stride")
    return Window(batch, length, channels, taps, stride)
