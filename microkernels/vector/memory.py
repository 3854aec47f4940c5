"""Addresses, prefetches and stores past the caches."""

from __future__ import annotations

from collections.abc import Sequence

import tvm.tirx.script.builder.ir as I
from tvm import tirx

from . import expressions as ex
from .expressions import Expr, cast, lanes_of, like, materialise, shuffle

# Streaming stores bypass the caches: for results beyond the caches' size that nobody reads soon.
#
# A usual store first reads the line that it writes to. A streaming store does not: copying takes
# two thirds of the traffic. `end_streams` must run before other threads may read what was stored.


_STREAM, _END = "tvm_hybrid_stream_f32x", "tvm_hybrid_end_streams"


def streaming_llvm_ir(lanes: int) -> str:
    """The functions that `stream` and `end_streams` call, for vectors of `lanes` f32.

    Both must lie in the scope of `llvm_functions` with this text.
    """
    vector = f"<{lanes} x float>"
    return f"""
declare void @llvm.x86.sse.sfence()
define linkonce_odr i32 @{_STREAM}{lanes}(ptr %address, {vector} %value) #0 {{
  store {vector} %value, ptr %address, align {4 * lanes}, !nontemporal !0
  ret i32 0
}}
define linkonce_odr i32 @{_END}() #0 {{
  call void @llvm.x86.sse.sfence()
  ret i32 0
}}
!0 = !{{i32 1}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def stream(element: Expr, value: Expr) -> None:
    """Emits a streaming store of a vector to where an element of a buffer begins.

    Its address must be a multiple of the vector's size.
    """
    function = f"{_STREAM}{lanes_of(value)}"
    I.evaluate(I.call_extern("int32", function, I.address_of(element), value))


def end_streams() -> None:
    """Emits a fence after all streaming stores."""
    I.evaluate(I.call_extern("int32", _END))


_ADDRESS = "tvm_hybrid_address"

# A call of `address_of` must lie in the scope of `llvm_functions` with this text.
ADDRESS_LLVM_IR = f"""
define linkonce_odr i64 @{_ADDRESS}(ptr %element) #0 {{
  %address = ptrtoint ptr %element to i64
  ret i64 %address
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def address_of(element: Expr) -> Expr:
    """The address of an element of a buffer, an int64."""
    return I.call_extern("int64", _ADDRESS, I.address_of(element))


_PREFETCH = "tvm_hybrid_prefetch"

# TVM passes no pointer type to the intrinsic, hence this function; it is always inlined. A loop
# that calls `prefetch` must lie in the scope of `llvm_functions` with this text.
PREFETCH_LLVM_IR = f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define linkonce_odr i32 @{_PREFETCH}(ptr %address) #0 {{
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 2, i32 1)
  ret i32 0
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def prefetch(element: Expr) -> None:
    """Emits a prefetch of the line that holds an element of a buffer."""
    I.evaluate(I.call_extern("int32", _PREFETCH, I.address_of(element)))


_ARRIVE = "tvm_hybrid_arrive"

# A thread that counts later sees all that a thread wrote before it counted. TVM has no atomic
# additions for CPUs, hence this function; it is always inlined. A loop that calls `count_arrival`
# must lie in the scope of `llvm_functions` with this text.
ARRIVAL_LLVM_IR = f"""
define linkonce_odr i32 @{_ARRIVE}(ptr %counter) #0 {{
  %before = atomicrmw add ptr %counter, i32 1 acq_rel
  ret i32 %before
}}
attributes #0 = {{ alwaysinline nounwind }}
"""


def count_arrival(counter: Expr) -> Expr:
    """Adds one to an int32 element of a buffer and returns its value before. Emit it once."""
    return I.call_extern("int32", _ARRIVE, I.address_of(counter))


def transpose_block(rows: Sequence[Expr]) -> list[Expr]:
    """Transposes a square block: the vectors of its rows become the vectors of its columns.

    log2(lanes) rounds of two-input shuffles: each exchanges the off-diagonal quarters of every
    2h x 2h block (J. O. Eklundh, "A Fast Computer Method for Matrix Transposing", IEEE Trans.
    Computers, 1972).

    Each round is materialised in memory: TVM would write out the earlier rounds again at every use
    of a name, which makes 960 shuffles instead of 64 for a block of 16.
    """
    size = len(rows)
    values = list(rows)
    half = size // 2
    while half:
        exchanged = list(values)
        upper = [lane if not lane & half else size + lane - half for lane in range(size)]
        lower = [lane + half if not lane & half else size + lane for lane in range(size)]
        for i in range(size):
            if not i & half:
                a, b = values[i], values[i + half]
                exchanged[i] = materialise(shuffle([a, b], upper))
                exchanged[i + half] = materialise(shuffle([a, b], lower))
        values = exchanged
        half //= 2
    return values


def saturating_difference(a: Expr, b: Expr) -> Expr:
    """a - b of uint8 lanes, 0 where b is larger: vpsubusb."""
    lanes = lanes_of(a)
    return I.call_llvm_pure_intrin(f"uint8x{lanes}", f"llvm.usub.sat.v{lanes}i8", a, b)


def groups_found(value: Expr) -> Expr:
    """An int32 whose bits say which groups of four of 32 bytes are not all 0: vmovmskps."""
    words = ex.reinterpret_group("int32", value, 8)
    signs = like(0, words) - cast("int32", tirx.NE(words, like(0, words)))
    movmskps = "llvm.x86.avx.movmsk.ps.256"
    return I.call_llvm_pure_intrin("int32", movmskps, ex.reinterpret("float32", signs))


def first_group(found: Expr) -> Expr:
    """The number of the lowest bit of an int32 that is not 0: tzcnt."""
    return I.call_llvm_pure_intrin("int32", "llvm.cttz.i32", found, tirx.const(True, "bool"))
