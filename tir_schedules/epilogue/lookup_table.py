"""Replaces the steps between two 8-bit values by a table of 256 entries in registers.

    quantize(gelu(dequantize(q)))    ->    table[q]

A value computed from one 8-bit value and constants, and quantised again, is a function of 256
arguments. With 16 lanes its table takes four registers. Two `vpermi2d` find the word of four
entries that holds the right one; a shift extracts it. That takes about ten instructions, where an
activation takes forty (measured: 4 to 5 times as fast).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm.tirx.script.builder.ir as I
from tvm import tirx

from microkernels.vector.expressions import Expr, bind, like, numbers
from tir_schedules.core.region import EpilogueOp, Region, Tensor

from .fusible_ops import FUSIBLE_OPS, cost_of

LANES = 16
LOOKUP_COST = 10
_EIGHT_BITS = ("uint8", "int8")


@dataclass(frozen=True)
class Lookup:
    """A step whose result is a function of one 8-bit value.

    Attributes
    ----------
    source : int
        Number of that value, as in `EpilogueOp.args`.
    inside : frozenset of int
        Numbers of the values in between, which nothing else uses.
    meaning : Region
        The function as steps over its 256 arguments, the bytes 0 to 255 in the source's type.
    """

    source: int
    inside: frozenset[int]
    meaning: Region


def find_lookups(region: Region) -> dict[int, Lookup]:
    """Values of an epilogue that are cheaper looked up than computed, by number."""
    first = 1 + len(region.operands)
    users: dict[int, set[int]] = {}
    for number, step in enumerate(region.epilogue, first):
        for argument in step.args:
            users.setdefault(argument, set()).add(number)
    found = {}
    for number, step in enumerate(region.epilogue, first):
        if step.op != "quantize":
            continue
        lookup = _lookup(region, number)
        if lookup is not None and all(
            users[value] <= lookup.inside | {number} for value in lookup.inside
        ):
            found[number] = lookup
    return found


def _lookup(region: Region, sink: int) -> Lookup | None:
    """Finds a lookup for a value that depends on one 8-bit value and takes longer to compute; None
    if there is none."""
    best = None
    sources = {sink}
    inside: set[int] = set()
    constants: set[int] = set()
    while sources:
        # The latest source is computed from earlier ones, never the other way round.
        latest = max(sources)
        found = _arguments(region, latest, sources | inside)
        if found is None:
            break
        between, numbers, eight_bits = found
        sources = (sources - {latest}) | eight_bits
        inside |= between | ({latest} - {sink})
        constants |= numbers
        if len(sources) == 1:
            # The lookup begins at the first 8-bit value: quantisations on the way are part of the
            # function, and so are branches that meet again, as in x * hard_sigmoid(x).
            best = next(iter(sources)), frozenset(inside), frozenset(constants)
    if best is None:
        return None
    first = 1 + len(region.operands)
    source, between_all, used = best
    steps = [region.epilogue[value - first] for value in (*between_all, sink)]
    if sum(cost_of(step.op) for step in steps) <= LOOKUP_COST:
        return None
    order = sorted(between_all | used | {sink})
    renumbered = {source: 0, **{value: i for i, value in enumerate(order, 1)}}
    chosen = (region.epilogue[value - first] for value in order)
    pairs = ((step, tuple(map(renumbered.__getitem__, step.args))) for step in chosen)
    meaning = Region(
        op="elementwise",
        inputs=(Tensor((256,), _eight_bits(region, source)),),
        output=Tensor((256,), region.epilogue[sink - first].dtype),
        epilogue=tuple(EpilogueOp(step.op, args, step.value, step.dtype) for step, args in pairs),
    )
    return Lookup(source, between_all, meaning)


def _arguments(
    region: Region, value: int, known: set[int]
) -> tuple[set[int], set[int], set[int]] | None:
    """Finds the steps, constants and 8-bit values that compute a quantised value; None if it needs
    anything else."""
    first = 1 + len(region.operands)
    if value < first:
        return None
    inside: set[int] = set()
    sources: set[int] = set()
    constants: set[int] = set()
    pending = list(region.epilogue[value - first].args)
    while pending:
        argument = pending.pop()
        step = region.epilogue[argument - first] if argument >= first else None
        if step is not None and step.op == "constant":
            constants.add(argument)
        elif _eight_bits(region, argument):
            sources.add(argument)
        elif step is None or step.op not in (*FUSIBLE_OPS, "quantize", "dequantize"):
            return None
        elif argument not in inside:
            inside.add(argument)
            pending += step.args
    return inside, constants, sources - known


def _eight_bits(region: Region, value: int) -> str:
    """The type of a value if it is an 8-bit integer, else ""."""
    if value == 0:
        dtype = region.inputs[0].dtype if region.op == "elementwise" else ""
    elif value <= len(region.operands):
        dtype = region.operands[value - 1].dtype
    else:
        step = region.epilogue[value - 1 - len(region.operands)]
        dtype = step.dtype if step.op == "quantize" else ""
    return dtype if dtype in _EIGHT_BITS else ""


def emit_lookup(value: Expr, table: np.ndarray) -> Expr:
    """Entries of a table for 16 lanes of 8-bit values, both as int32 lanes.

    Parameters
    ----------
    value : Expr
        int32 lanes, each within the range of uint8 or of int8.
    table : numpy.ndarray
        256 uint8 or int8 numbers, by the lowest byte of `value`.
    """
    words = np.ascontiguousarray(table).view("<u4").astype(np.uint32).view(np.int32).tolist()
    value = bind(value)
    word = bind(value >> like(2, value))  # vpermi2d looks at the lowest five bits
    parts = [numbers(words[at : at + LANES], "int32") for at in range(0, 4 * LANES, LANES)]
    name = "llvm.x86.avx512.vpermi2var.d.512"
    low = I.call_llvm_pure_intrin("int32x16", name, parts[0], word, parts[1])
    high = I.call_llvm_pure_intrin("int32x16", name, parts[2], word, parts[3])
    upper = tirx.NE(value & like(128, value), like(0, value))
    four = bind(tirx.Select(upper, high, low))
    # The wanted byte comes last; what is above it goes, unless the store drops it anyway.
    last = four >> ((value & like(3, value)) << like(3, value))
    if table.dtype == np.uint8:
        return last & like(255, last)
    return (last << like(24, last)) >> like(24, last)
