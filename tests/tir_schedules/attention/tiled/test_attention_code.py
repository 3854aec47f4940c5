"""Attention kernels keep hot loops in registers, and their memory grows with N only."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.tir_schedules.attention_checks import check
from tests.tir_schedules.attention_regions import Attention, case, of_kind
from tests.tir_schedules.run_region import MCPU, machine_for
from tir_schedules.core.template import template_for

PRODUCTS = {"f32": "vfmadd", "bf16": "vdpbf16ps", "int8": "vpdpbusd"}
ISA = {"f32": "avx512", "bf16": "avx512_bf16", "int8": "avx512_vnni"}
TILE = 24  # accumulators of 8 x 48
HEAD = case(batch=1, m=128, n=128, heads=8, d=96)


def function_of(attention: Attention, isa: str, threads: int = 1) -> tirx.PrimFunc:
    """The kernel as a PrimFunc, not compiled."""
    region, machine = attention.region, machine_for(isa, threads)
    template = template_for(region.op)
    config = template.default_config(region, machine)
    return template.build(region, config, machine.isa)


def allocated(function: tirx.PrimFunc) -> int:
    """Bytes of all buffers that a kernel allocates; a buffer in a loop counts once."""
    total = 0
    for shape, dtype in re.findall(
        r"alloc_buffer\(\(([\d, ]+)\)(?:, \"(\w+)\")?", function.script()
    ):
        bits = tvm.DataType(dtype or "float32").bits
        total += math.prod(int(extent) for extent in shape.split(",") if extent.strip()) * bits // 8
    return total


def innermost_loops(assembly: str) -> list[list[str]]:
    """The lines of every innermost loop, from a label to the jump back to it."""
    lines = assembly.splitlines()
    labels = {line.split(":")[0]: i for i, line in enumerate(lines) if line.startswith(".LBB")}
    loops = []
    for end, line in enumerate(lines):
        jump = re.match(r"\s+j\w+\s+(\.LBB\w+)", line)
        start = labels.get(jump.group(1), end) if jump else end
        if start < end:
            loops.append((start, end))
    return [
        lines[start : end + 1]
        for start, end in loops
        if not any(start <= a and b <= end for a, b in loops if (a, b) != (start, end))
    ]


@pytest.mark.parametrize("kind", PRODUCTS)
def test_hot_loops_leave_the_stack_alone(kind: str) -> None:
    """Loops of a whole register tile neither store vectors to the stack nor load them from it."""
    target = tvm.target.Target({"kind": "llvm", "mcpu": MCPU[ISA[kind]]})
    function = function_of(of_kind(HEAD, kind), ISA[kind]).with_attr("global_symbol", "kernel")
    assembly = tvm.compile(function, target=target).mod.inspect_source("asm")
    sums = rf"{PRODUCTS[kind]}\S*\s.*%(zmm\d+)$"
    hot = [
        loop
        for loop in innermost_loops(assembly)
        if len({found for line in loop for found in re.findall(sums, line)}) >= TILE
    ]
    assert len(hot) >= 2  # of the scores, and of the product with v
    frame = "rsp|rbp" if "movq\t%rsp, %rbp" in assembly else "rsp"
    traffic = rf"vmov\w+\s.*\(%({frame})\).*zmm|vmov\w+\s+%zmm.*\(%({frame})\)"
    for loop in hot:
        assert not [line for line in loop if re.search(traffic, line)]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", PRODUCTS)
def test_memory_does_not_grow_with_the_square_of_the_length(kind: str) -> None:
    """16k queries and 16k keys need the packed heads and a block of scores."""
    bytes_of = {}
    for m, n in [(16384, 16384), (16384, 8192), (8192, 16384)]:
        attention = of_kind(case(batch=1, heads=1, m=m, n=n, d=64), kind)
        bytes_of[m, n] = allocated(function_of(attention, ISA[kind]))
    size = {"f32": 4, "bf16": 2, "int8": 1}[kind]
    head = 2 * 16384 * 64 * size
    assert 0 < bytes_of[16384, 16384] <= 2 * head + 2**20
    assert bytes_of[16384, 16384] <= 2 * bytes_of[16384, 8192] + 2**16
    assert bytes_of[8192, 16384] == bytes_of[16384, 16384]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["f32", "int8"])
def test_sixteen_thousand_keys(kind: str) -> None:
    attention = of_kind(case(batch=1, heads=1, m=16, n=16384, d=16, mask="keys"), kind)
    result, wanted = check(attention)
    if kind == "int8":
        assert np.mean(result == wanted.value) >= 0.97
