"""Finds the innermost loops in the assembly of a function."""

from __future__ import annotations

import re

import tvm
from tvm import tirx

from microkernels.isa import Isa
from relay_passes.lower.codegen import kernel_context
from tests.microkernels.isa_targets import target_of


def assembly_of(function: tirx.PrimFunc, isa: Isa) -> str:
    """The assembly of a kernel for an instruction set, which this CPU may lack."""
    with kernel_context([function]):
        named = function.with_attr("global_symbol", "kernel")
        return str(tvm.compile(named, target=target_of(isa.name)).mod.inspect_source("asm"))


def innermost_loops(assembly: str) -> list[list[str]]:
    """Instructions from a label to the jump back to it, without another label of a loop between."""
    lines = [line for line in assembly.splitlines() if not line.startswith(".Ltmp")]
    labels = {line.split(":")[0]: at for at, line in enumerate(lines) if line.startswith(".L")}
    jumps = [
        (labels[found[1]], at)
        for at, line in enumerate(lines)
        if (found := re.match(r"\s+j\w+\s+(\.L\w+)", line)) and labels.get(found[1], at) < at
    ]
    return [
        lines[first : last + 1]
        for first, last in jumps
        if not any(first <= a and b <= last and (a, b) != (first, last) for a, b in jumps)
    ]
