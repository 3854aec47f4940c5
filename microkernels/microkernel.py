"""Microkernel: a register tile of batch-reduce GEMM.

    C[i, j] (+)= sum over r, k of A[r][i, k] * B[r][k, j]        i < mr, j < nr

The accumulators stay in registers over the whole reduction, which may have several loops. A
microkernel has one body and two uses: `emit` inlines it in a template, and
`tensor_intrin.register_tensor_intrin` registers it for `sch.tensorize`. The contract tests and
kernel selection take every microkernel that `registry` has.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.base.tvm_compat.tir import llvm_functions
from microkernels.vector.expressions import Index

from .base.errors import IsaError
from .isa import Isa, isa_named
from .tile import Address, Between, Columns, LoadA, LoadB, MultiplyAdd, Place, Start, Tile
from .vector import bfloat16
from .vector.expressions import Expr, bind, cast, constant, element_of, lanes_of, ramp, splat

HEAP_ELEMENTS = 256  # of 32 bits: TVM allocates a buffer of this size or more on the heap
WHOLE_LOOP_PRODUCTS = 8  # of a step of K: from here on, the loop around them costs nothing

# The body of a register tile is unrolled already. For CPUs with long loop buffers LLVM would unroll
# the loop two to eight times more, which makes nothing faster and compiling a third slower. LLVM
# does not unroll a loop with a call, so the loop calls assembly without instructions. The call
# needs an effect, or LLVM would move it out of the loop.
_WHOLE_LOOP = "tvm_hybrid_whole_loop"
_WHOLE_LOOP_LLVM_IR = f"""
define linkonce_odr i32 @{_WHOLE_LOOP}() #0 {{
  call void asm sideeffect "", ""() #1
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
attributes #1 = {{ nounwind memory(inaccessiblemem: readwrite) }}
"""

HIDDEN = "tvm_hybrid_hidden"
"""LLVM function that returns its argument, a number, which LLVM then treats as a variable."""
HIDDEN_LLVM_IR = f"""
define linkonce_odr i32 @{HIDDEN}(i32 %number) #0 {{
  %same = call i32 asm "", "=r,0"(i32 %number) #1
  ret i32 %same
}}
attributes #0 = {{ alwaysinline nounwind }}
attributes #1 = {{ nounwind memory(none) }}
"""

FENCE = "tvm_hybrid_fence"
"""LLVM function without instructions; LLVM assumes that it may change all memory."""
FENCE_LLVM_IR = f"""
define linkonce_odr i32 @{FENCE}() #0 {{
  call void asm sideeffect "", "~{{memory}}"()
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


@contextlib.contextmanager
def whole_loop(extent: Index, hidden: bool = False) -> Iterator[Expr]:
    """A loop that LLVM does not unroll in part; if its extent is `hidden`, nor as a whole."""
    texts = (_WHOLE_LOOP_LLVM_IR, HIDDEN_LLVM_IR if hidden else "")
    with llvm_functions(*texts):
        if hidden:
            extent = bind(I.call_extern("int32", HIDDEN, extent))
        with I.serial(extent) as index:
            I.evaluate(I.call_extern("int32", _WHOLE_LOOP))
            yield index


@dataclass(frozen=True)
class Microkernel:
    """Descriptor of a register tile.

    Attributes
    ----------
    name : str
        ISA, types and tile, such as "avx512_f32_6x64".
    isa_name : str
        The lowest level that can run it.
    a_dtype, b_dtype, acc_dtype : str
        Element types of the operands and of the accumulators.
    mr, nr : int
        Rows and columns of the full tile. Fewer rows, or fewer vectors of columns, are exact
        smaller tiles of the same kernel.
    kr : int
        Elements of K that one multiply-add consumes. B is packed [N/nr][K/kr][nr][kr].
    lanes : int
        Columns in one vector of accumulators.
    multiply_add : callable
        (accumulators, A in every lane, B) -> accumulators. bfloat16 operands are uint16 lanes.
    llvm_ir : str
        LLVM functions that `multiply_add` calls; "" if it needs none.
    depth : int
        Operands are padded with zeros to this many steps of kr: more than 1 for tile registers.
    """

    name: str
    isa_name: str
    a_dtype: str
    b_dtype: str
    acc_dtype: str
    mr: int
    nr: int
    kr: int
    lanes: int
    multiply_add: MultiplyAdd
    llvm_ir: str = ""
    depth: int = 1

    @property
    def isa(self) -> Isa:
        """The lowest level that can run it."""
        return isa_named(self.isa_name)

    @property
    def vectors(self) -> int:
        """Vectors of accumulators in a row of the full tile."""
        return self.nr // self.lanes

    @property
    def operand_dtype(self) -> str:
        """Element type of the lanes that `multiply_add` takes for A."""
        return "uint16" if self.a_dtype == "bfloat16" else self.a_dtype

    @property
    def narrow(self) -> Callable[[Expr], Expr]:
        """f32 -> bfloat16 (uint16 lanes), in the way that is fastest next to this kernel."""
        return bfloat16.narrow_by_instruction if self.llvm_ir else bfloat16.narrow

    def rounded(self, value: Expr) -> Expr:
        """Rounds f32 to lanes of a 16-bit operand: bfloat16 (uint16 lanes), or float16."""
        return cast("float16", value) if self.a_dtype == "float16" else self.narrow(value)

    @property
    def by_tiles(self) -> bool:
        """Whether accumulators are tile registers, which exchange values with memory only."""
        return self.depth > 1

    def steps(self, k: int) -> int:
        """Number of steps of kr for `k` elements of K, padded as the operands are."""
        return math.ceil(k / (self.kr * self.depth)) * self.depth

    def spread(self, group: Expr) -> Expr:
        """kr elements of A repeated in every lane, as `multiply_add` takes them."""
        if self.kr == 1:
            return splat(group, self.lanes)
        bits = self.kr * int(group.ty.dtype.bits)
        word = splat(I.reinterpret(f"int{bits}", group), self.lanes)
        return I.reinterpret(f"{self.operand_dtype}x{self.kr * self.lanes}", word)

    def add_up(self, total: Expr, group: Expr) -> Expr:
        """Adds groups of kr 8-bit integers, signed or unsigned, to int32 lanes."""
        if element_of(group) == "uint8":
            return self.multiply_add(total, group, constant(1, "int8", lanes_of(group)))
        return self.multiply_add(total, constant(1, "uint8", lanes_of(group)), group)

    def a_operand(self, buffer: Expr, index: Sequence[Index], pitch: int) -> Expr | Address:
        """Reads A from `index` on, in the form that `emit` takes.

        Parameters
        ----------
        buffer : Buffer
            Elements of the type that the kernel multiplies.
        index : sequence of Expr
            Indices of the first element: its row, and its place in K.
        pitch : int
            Elements from one row to the next.
        """
        *row, column = index
        return self.spread(bfloat16.operand_bits(buffer[(*row, ramp(column, self.kr))]))

    def b_operand(self, buffer: Expr, start: Index, pitch: int) -> Expr | Address:
        """Reads one vector of columns of packed B, in the form that `emit` takes.

        Parameters
        ----------
        buffer : Buffer
            A flat buffer.
        start : Expr
            Index of the vector's first element.
        pitch : int
            Elements from one step of K to the next.
        """
        return bfloat16.operand_bits(buffer[ramp(start, self.lanes * self.kr)])

    def admit(self) -> None:
        """Emits, at a function's start, what the process needs to run the kernel: here nothing."""

    def configure(self, rows: int, columns: int | None = None) -> None:
        """Emits what must precede tiles of `rows` rows: here nothing."""

    def release(self) -> None:
        """Emits what must follow a task's last tile: here nothing."""

    def check(self, rows: int, vectors: int) -> None:
        """Refuses a tile that the kernel does not have.

        Raises
        ------
        IsaError
            If the tile is too large; the message names the largest one.
        """
        if not (0 < rows <= self.mr and 0 < vectors <= self.vectors):
            raise IsaError(
                f"{self.name} has no {rows}x{vectors * self.lanes} tile; at most {self.mr} rows "
                f"and {self.vectors} vectors of {self.lanes}"
            )

    def emit(
        self,
        rows: int,
        vectors: int,
        reduction: Sequence[Index],
        load_a: LoadA,
        load_b: LoadB,
        init: Start | None = None,
        into: Place | None = None,
        resume: bool = False,
        peel: bool = False,
        between: Between | None = None,
        columns: Columns | None = None,
    ) -> Tile:
        """Emits the tile into the PrimFunc under construction.

        Parameters
        ----------
        rows, vectors : int
            Size of the tile; at most mr rows and nr / lanes vectors.
        reduction : sequence of int
            Extents of the reduction loops, outermost first; the innermost counts steps of kr.
        load_a : callable
            (row, loop variables) -> kr elements of A in every lane, by `a_operand`.
        load_b : callable
            (vector, loop variables) -> one vector of packed B, by `b_operand`.
        init : callable or None
            (row, vector) -> starting accumulators; zero if None.
        into : Place or None
            Where a kernel by tiles stores its accumulators.
        resume : bool
            Whether the accumulators start with the values stored at `into`.
        peel : bool
            Whether the last tile of K is multiplied after the loops, so that its number is known.
        between : callable or None
            (number of a tile of K, number of a product in it, products in it) -> None; emits other
            work before each product. Only kernels by tiles take it.
        columns : callable or None
            vector -> the starting accumulators of all rows, or their address; it replaces `init`.
            Only kernels by tiles take it.

        Returns
        -------
        Tile
            The accumulators after the reduction.
        """
        tile = self.begin(rows, vectors, init)
        self.accumulate(tile, range(rows), reduction, load_a, load_b)
        return tile

    def begin(self, rows: int, vectors: int, init: Start | None = None) -> Tile:
        """Emits the start of a tile, to which `accumulate` adds products; parameters: `emit`."""
        self.check(rows, vectors)
        lanes = self.lanes
        # One small buffer a row: a larger one would become a heap allocation instead of registers.
        buffers = tuple(
            I.sblock_alloc_buffer((vectors * lanes,), self.acc_dtype, layout=None)
            for _ in range(rows)
        )
        zero = constant(0, self.acc_dtype, lanes)
        for i in range(rows):
            for j in range(vectors):
                start = zero if init is None else init(i, j)
                I.buffer_store(buffers[i], start, [ramp(j * lanes, lanes)])
        return Tile(rows, vectors, lanes, buffers)

    def accumulate(
        self,
        tile: Tile,
        rows: Sequence[int],
        reduction: Sequence[Index],
        load_a: LoadA,
        load_b: LoadB,
    ) -> None:
        """Emits products of some rows of a tile in registers; parameters: `emit`."""
        with contextlib.ExitStack() as stack:
            # LLVM keeps accumulators of a heap allocation in registers only if nothing is called.
            held = tile.vectors * tile.lanes < HEAP_ELEMENTS
            whole = reduction and held and len(rows) * tile.vectors >= WHOLE_LOOP_PRODUCTS
            stack.enter_context(llvm_functions(self.llvm_ir))
            inner = len(reduction) - 1
            loops = [
                stack.enter_context(
                    whole_loop(extent) if whole and number == inner else I.serial(extent)
                )
                for number, extent in enumerate(reduction)
            ]
            # The operand with fewer vectors stays in registers, the other passes through one.
            if len(rows) <= tile.vectors:
                a = [_named(load_a(i, loops)) for i in rows]
                for j in range(tile.vectors):
                    b = _named(load_b(j, loops))
                    for i, row in zip(rows, a, strict=True):
                        self.update(tile, i, j, row, b)
            else:
                panel = [_named(load_b(j, loops)) for j in range(tile.vectors)]
                for i in rows:
                    row = _named(load_a(i, loops))
                    for j in range(tile.vectors):
                        self.update(tile, i, j, row, panel[j])

    def update(self, tile: Tile, i: int, j: int, a: Expr, b: Expr) -> None:
        """Emits one product, added to a vector of a tile in registers."""
        value = self.multiply_add(tile.value(i, j), a, b)
        I.buffer_store(tile.buffers[i], value, [ramp(j * tile.lanes, tile.lanes)])


def _named(operand: Expr | Address) -> Expr:
    """Names an operand's vector, which several products use."""
    assert isinstance(operand, tirx.Expr)
    return bind(operand)
