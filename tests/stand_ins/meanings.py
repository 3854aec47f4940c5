"""Results of x86 instructions in LLVM IR that every CPU runs, after Intel's manual, volume 2.

Every meaning is a function with the intrinsic's signature and bit-equal results. Two details are
left out, because no kernel depends on them: the payload of a NaN from arithmetic, and the flags of
MXCSR. MXCSR has the value that it has when a process starts.
"""

from __future__ import annotations

from dataclasses import dataclass

from .bfloat16_meanings import CVTNE2PS2BF16, CVTNEPS2BF16, DPBF16PS
from .float_meanings import CVTPS2DQ, SCALEF
from .integer_meanings import pack, permute, pmaddubsw, pmaddwd, vpdpbusd


@dataclass(frozen=True)
class Meaning:
    """The meaning of one intrinsic.

    Attributes
    ----------
    features : tuple of str
        LLVM features that a CPU needs for the instruction.
    text : str
        LLVM IR: a function named `PREFIX` and the intrinsic's name, and its helpers.
    """

    features: tuple[str, ...]
    text: str


_F, _BW, _VNNI, _BF16 = ("avx512f",), ("avx512bw",), ("avx512vnni",), ("avx512bf16",)

MEANINGS: dict[str, Meaning] = {
    "llvm.x86.avx512.vpdpbusd.512": Meaning(_VNNI, vpdpbusd(16)),
    "llvm.x86.avx512.vpdpbusd.256": Meaning(("avxvnni",), vpdpbusd(8)),
    "llvm.x86.avx512.pmaddw.d.512": Meaning(_BW, pmaddwd()),
    "llvm.x86.avx512.pmaddubs.w.512": Meaning(_BW, pmaddubsw()),
    "llvm.x86.avx512.packssdw.512": Meaning(_BW, pack("packssdw", 16, 32, -(2**15), 2**15 - 1)),
    "llvm.x86.avx512.packsswb.512": Meaning(_BW, pack("packsswb", 32, 16, -(2**7), 2**7 - 1)),
    "llvm.x86.avx512.packuswb.512": Meaning(_BW, pack("packuswb", 32, 16, 0, 2**8 - 1)),
    "llvm.x86.avx512.vpermi2var.d.512": Meaning(_F, permute("vpermi2var.d", 16, "i32", 2)),
    "llvm.x86.avx512.vpermi2var.hi.512": Meaning(_BW, permute("vpermi2var.hi", 32, "i16", 2)),
    "llvm.x86.avx512.permvar.si.512": Meaning(_F, permute("permvar.si", 16, "i32", 1)),
    "llvm.x86.avx512.permvar.sf.512": Meaning(_F, permute("permvar.sf", 16, "float", 1)),
    "llvm.x86.avx512.mask.scalef.ps.512": Meaning(_F, SCALEF),
    "llvm.x86.avx512.mask.cvtps2dq.512": Meaning(_F, CVTPS2DQ),
    "llvm.x86.avx512bf16.cvtneps2bf16.512": Meaning(_BF16, CVTNEPS2BF16),
    "llvm.x86.avx512bf16.cvtne2ps2bf16.512": Meaning(_BF16, CVTNE2PS2BF16),
    "llvm.x86.avx512bf16.dpbf16ps.512": Meaning(_BF16, DPBF16PS),
}
