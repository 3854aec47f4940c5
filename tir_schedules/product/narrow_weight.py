"""NarrowWeight: a constant weight whose elements take 2, 4 or 8 bits of memory.

    W[k, n] = (Wq[k, n] - zero[k / block, n]) * scale[k / block, n]

Elements of 2 and 4 bits are packed in words of 32 bits. A word holds 16 or 8 consecutive steps of K
of one column, so that one load and one shift give a vector of columns for one step. The lowest bits
of its four bytes are four consecutive steps, the next ones the four steps behind these, and so on,
so that one load, one shift and a mask give four steps as bytes, too. Elements of 8 bits take one
byte each. Panels are consecutive. Within a panel the order is [steps][columns],
padded with zeros to whole words and whole vectors. Scales and zero points lie in panels too:
[blocks][columns]. Unsigned bytes with zero point 128 are stored as signed ones without zero point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import relax, tirx

from microkernels.base.arrays import SHIFT
from microkernels.microkernel import Microkernel
from microkernels.vector import expressions as ex
from microkernels.vector.expressions import Expr, Index
from tir_schedules.core import emission, product_plan
from tir_schedules.core.blocking import Panels
from tir_schedules.core.region import Region

from . import tile_config, tile_products

WORD_BITS = 32
BITS = (2, 4, 8)


@dataclass
class NarrowWeight:
    """Format of one weight, for vectors of `lanes` columns.

    Attributes
    ----------
    bits : int
        2, 4 or 8: the low bits of an element of Wq, which are all that is kept.
    signed : bool
        Whether they are a two's complement number.
    rows, columns : int
        Shape of Wq as a matrix.
    block : int
        Steps of K that share a scale; the last block may be shorter.
    zero : float
        Zero point of every element; those that differ are a tensor of their own and not meant here.
    lanes : int
        Columns in a vector.
    """

    bits: int
    signed: bool
    rows: int
    columns: int
    block: int
    zero: float
    lanes: int

    def __post_init__(self) -> None:
        # Blocks of K that have a scale each, and vectors of columns.
        self.blocks = math.ceil(self.rows / self.block)
        self.n_vectors = math.ceil(self.columns / self.lanes)
        # Elements of packed scales or zero points.
        self.per_block_size = self.blocks * self.n_vectors * self.lanes
        # Steps of K that are decoded together; a block begins at a multiple of them.
        self.unit = 8 if self.blocks == 1 else math.gcd(self.block, 8)
        # Bytes of one column that lie together, a word, and words of one column.
        self.word_bytes = 1
        if self.bits < 8:
            self.unit, self.word_bytes = WORD_BITS // self.bits, WORD_BITS // 8
        self.words = math.ceil(self.rows * self.bits / (8 * self.word_bytes))
        # Bytes of one vector of columns over all steps, and of the packed weight.
        self.vector_bytes = self.words * self.word_bytes * self.lanes
        self.packed_bytes = self.n_vectors * self.vector_bytes

    @property
    def flipped(self) -> bool:
        """Whether the highest bit is stored inverted: q - 128 as a signed byte is q."""
        return self.bits == 8 and not self.signed and self.zero == SHIFT

    def pack(self, array: np.ndarray, panels: Panels) -> np.ndarray:
        """Wq in panels.

        Parameters
        ----------
        array : ndarray
            int8 or uint8, `rows` x `columns` elements in order.
        panels : Panels
            Those of the f32 weight.

        Returns
        -------
        ndarray
            Flat, of the same type.
        """
        per_byte = 8 // self.bits
        elements = np.zeros((self.words, per_byte, self.word_bytes, self.columns), np.uint8)
        matrix = np.ascontiguousarray(array).view(np.uint8).reshape(self.rows, self.columns)
        low = matrix & (2**self.bits - 1)
        elements.reshape(-1, self.columns)[: self.rows] = low ^ SHIFT if self.flipped else low
        in_bytes = np.zeros((self.words, self.word_bytes, self.columns), np.uint8)
        for position in range(per_byte):
            in_bytes |= elements[:, position] << np.uint8(self.bits * position)
        matrix = in_bytes.reshape(-1, self.columns)
        return self._of_words(panels).pack(matrix).view(array.dtype)

    def _of_words(self, panels: Panels) -> Panels:
        """The panels of what lies in memory, whose steps are words."""
        kernel = replace(panels.kernel, kr=self.word_bytes)
        return replace(panels, kernel=kernel, k=self.words * self.word_bytes)

    def unpack(self, packed: relax.Expr, panels: Panels) -> relax.Expr:
        """Wq [rows, columns] as a Relax expression of what `pack` made."""
        per_byte = 8 // self.bits
        matrix = self._of_words(panels).unpack(packed)
        if self.flipped:
            matrix = relax.op.bitwise_xor(matrix, relax.const(SHIFT, "uint8"))
        if self.bits == 8:
            return matrix
        dtype = "int8" if self.signed else "uint8"
        words = relax.op.reshape(matrix, (self.words, 1, self.word_bytes, self.columns))
        shifts = np.arange(per_byte, dtype=dtype).reshape(1, -1, 1, 1) * self.bits
        elements = relax.op.right_shift(words, relax.const(shifts, dtype))
        low = relax.op.bitwise_and(elements, relax.const(2**self.bits - 1, dtype))
        if self.signed:
            sign = relax.const(2 ** (self.bits - 1), dtype)
            low = relax.op.subtract(relax.op.bitwise_xor(low, sign), sign)
        steps = relax.op.reshape(low, (self.words * self.word_bytes * per_byte, self.columns))
        return relax.op.strided_slice(steps, [0], [0], [self.rows])

    def per_block(self, array: np.ndarray) -> np.ndarray:
        """Scales or zero points, of any shape that a block's or a column's may have, as
        [blocks, columns]."""
        shape = per_block_shape(array.shape)
        return np.broadcast_to(array.reshape(shape), (self.blocks, self.columns))

    def values(self, array: np.ndarray) -> np.ndarray:
        """The elements of Wq as float64 [rows, columns], less the common zero point."""
        low = np.ascontiguousarray(array).view(np.uint8).reshape(self.rows, self.columns)
        low = (low & (2**self.bits - 1)).astype(np.float64)
        if self.signed:
            low -= np.where(low >= 2 ** (self.bits - 1), 2.0**self.bits, 0.0)
        return low - self.zero

    def emit_unit(self, packed: Expr, panel: Expr, width: int, unit: Index, j: Index) -> list[Expr]:
        """The f32 vectors of the `unit` steps of one unit, less the common zero point.

        Parameters
        ----------
        packed : buffer
            What `pack` made.
        panel, width : Expr, int
            The panel's first vector and its width in vectors.
        unit : Expr
            Which unit of K.
        j : int
            Vector within the panel.
        """
        if self.bits == 8:
            steps = range(self.unit)
            loaded = [self._load(packed, panel, width, unit * self.unit + s, j) for s in steps]
            if self.flipped:
                return [ex.cast("float32", ex.reinterpret("int8", element)) for element in loaded]
            return [self._shifted(ex.cast("float32", element)) for element in loaded]
        word = self.emit_words(packed, panel, width, j, unit)
        if self.lanes == 16:
            return [self._looked_up(word, step) for step in range(self.unit)]
        return [self._shifted(ex.cast("float32", self._bits(word, s))) for s in range(self.unit)]

    def emit_words(self, packed: Expr, panel: Expr, width: int, j: Index, unit: Index) -> Expr:
        """The words of one unit of 2 or 4 bits as int32 lanes; parameters as of `emit_unit`."""
        word = self._load(packed, panel, width, unit, j)
        return ex.bind(I.reinterpret(ex.vector_type("int32", self.lanes), word))

    def _load(self, packed: Expr, panel: Expr, width: int, word: Index, j: Index) -> Expr:
        bytes_ = self.lanes * self.word_bytes
        start = panel * self.vector_bytes + (word * width + j) * bytes_
        return packed[ex.ramp(start, bytes_)]

    def _place(self, step: int) -> int:
        """The lowest bit of a step in its word."""
        return 8 * (step % self.word_bytes) + self.bits * (step // self.word_bytes)

    def _shifted(self, value: Expr) -> Expr:
        return value - ex.constant(self.zero, "float32", self.lanes) if self.zero else value

    def _bits(self, word: Expr, step: int) -> Expr:
        """The element of one step as int32."""

        def number(value: int) -> Expr:
            return ex.constant(value, "int32", self.lanes)

        if not self.signed:
            return tirx.bitwise_and(
                tirx.shift_right(word, number(self._place(step))), number(2**self.bits - 1)
            )
        high = tirx.shift_left(word, number(WORD_BITS - self.bits - self._place(step)))
        return tirx.shift_right(high, number(WORD_BITS - self.bits))

    def _looked_up(self, word: Expr, step: int) -> Expr:
        """The element of one step as f32: vpermps looks at the low four bits of an index only."""
        index = word
        if step:
            index = tirx.shift_right(word, ex.constant(self._place(step), "int32", self.lanes))
        return I.call_llvm_pure_intrin(
            "float32x16", "llvm.x86.avx512.permvar.sf.512", self._table(), index
        )

    def _table(self) -> Expr:
        """What every value of an index's low four bits stands for."""
        entry = ex.ramp(0, 16)
        size = ex.constant(2**self.bits, "int32", 16)
        low = tirx.floormod(entry, size)
        if self.signed:
            half = ex.constant(2 ** (self.bits - 1), "int32", 16)
            low = tirx.floormod(entry + half, size) - half
        return self._shifted(ex.cast("float32", low))


def per_block_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Blocks and columns of a tensor of scales: (), (N,), (B, N) or (B, 1, N); each may be 1."""
    if len(shape) < 2:
        return 1, shape[0] if shape else 1
    return shape[0], shape[-1]


# Scaled weight: every row of a constant weight has a factor that is known only at run time.
#
#     C = (A * s) W = A (diag(s) W)        A [M, K], s [K], W [K, N]
#
# This occurs after squeeze and excite of one sample (Hu et al., "Squeeze-and-Excitation Networks",
# arXiv 1709.01507, section 3). To scale W takes N * K multiplications in cache for every block of
# rows of A. To scale A instead would take M * K multiplications, a pass over memory and another
# kernel.
#
# A region says so by the attribute "weight_scale", whose value is "input": s is the input after W.


SCALE = "weight_scale"


def has_scale(region: Region) -> bool:
    """Whether the rows of a region's weight have factors."""
    return SCALE in region.attrs


def reject_scale(region: Region) -> str | None:
    """Why the inputs after A and W of a float product make no sense, or None."""
    a, w, *further = region.inputs
    if not has_scale(region):
        return f"{len(region.inputs)} inputs" if further else None
    if region.attrs[SCALE] != "input" or len(further) != 1:
        return f"{len(region.inputs)} inputs, {SCALE}={region.attrs[SCALE]}"
    if w.dtype != "float32" or not w.constant or tile_config.window_of(region) is not None:
        return f"factors of the rows of {w}, or of windows"
    scale, k = further[0], a.shape[-1]
    if scale.constant or scale.dtype != "float32" or (scale.size, scale.shape[-1:]) != (k, (k,)):
        return f"factors {scale} of {k} rows"
    return None


def scaled(weight: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """diag(s) W by numpy, if s stands among a region's inputs; in the weight's type."""
    return weight if len(inputs) < 3 else weight * inputs[2].reshape(-1, 1).astype(weight.dtype)


class ScaledPanels:
    """Blocks of a packed f32 weight, scaled before the tiles read them.

    Parameters
    ----------
    kernel : Microkernel
        The f32 tile.
    weight : Buffer
        The packed weight, flat.
    scale : Buffer
        s; all extents but the last are 1.
    k : int
        Rows of the weight.
    steps, vectors : int
        Most rows and vectors of columns of a block; room for one is allocated in the block of the
        PrimFunc under construction.
    """

    def __init__(
        self, kernel: Microkernel, weight: Expr, scale: Expr, k: int, steps: int, vectors: int
    ) -> None:
        self.weight, self.scale, self.k, self.lanes = weight, scale, k, kernel.lanes
        size = steps * vectors * kernel.lanes
        self.buffer = I.sblock_alloc_buffer((size,), "float32", align=64)

    def stage(self, panel: Expr, width: int, piece: product_plan.Piece) -> tile_products.LoadPanel:
        """Scales a block of a panel; `stage_b` of `TileLoops`."""
        first, count = piece
        zeros = [tirx.const(0, "int32")] * (len(self.scale.shape) - 1)
        with emission.opaque_block("scale"), I.serial(count) as step:
            factor = ex.bind(ex.splat(self.scale[(*zeros, first + step)], self.lanes))
            for j in range(width):
                start = (panel * self.k + (first + step) * width + j) * self.lanes
                value = self.weight[ex.ramp(start, self.lanes)] * factor
                position = ex.ramp((step * width + j) * self.lanes, self.lanes)
                I.buffer_store(self.buffer, value, [position])

        return tile_products.staged_panel(self.buffer, first, width, self.lanes)
