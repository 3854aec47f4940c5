"""The machine code of recurrent kernels: loads in the loop over K, and no stores there."""

from __future__ import annotations

import re

import pytest
import tvm

from relay_passes.lower.codegen import kernel_context
from tests.microkernels.isa_targets import target_of
from tests.tir_schedules.recurrent_regions import recurrent
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core.blocking import balanced
from tir_schedules.core.region import Region
from tir_schedules.core.template import template_for
from tir_schedules.recurrent.config import RecurrentConfig, panels_of
from tir_schedules.recurrent.problem import RecurrentProblem

TEMPLATE = template_for("recurrent")
REGISTERS = {"avx2": "ymm", "avx512": "zmm", "avx512_vnni": "zmm"}
PRODUCTS = {"float32": r"vfmadd\d+ps", "float64": r"vfmadd\d+pd", "int16": "vpmaddwd"}
PRODUCTS["int8"] = "vpmaddubsw"
CELLS = re.compile("vcmp|vmin|vmax|vdiv")  # only loops over cells have these
BY_LISTS = re.compile("movslq")  # a step of K that is read from memory


def loops(region: Region, config: RecurrentConfig, isa: str) -> list[str]:
    """The innermost loops of a kernel."""
    function = TEMPLATE.build(region, config, machine_for(isa).isa)
    function = function.with_attr("global_symbol", "kernel")
    with kernel_context([function]):
        code = tvm.compile(function, target=target_of(isa)).mod.inspect_source("asm")
    found = []
    for block in re.split(r"^(?=\.LBB\w+:)", code, flags=re.MULTILINE)[1:]:
        label = block.split(":")[0]
        back = re.search(rf"\tj\w+\t{re.escape(label)}\n", block)
        if back:
            found.append(block[: back.end()])
    return found


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize(
    ("cell", "batch", "weight"),
    [
        ("lstm", 1, "float32"),
        ("lstm", 3, "float32"),
        ("gru", 4, "float32"),
        ("gru_linear", 4, "float32"),
        ("rnn", 1, "float32"),
        ("rnn", 8, "float32"),
        ("lstm", 1, "float64"),
        ("lstm", 2, "int8"),
        ("lstm", 2, "int16"),
    ],
)
def test_loops_over_k(cell: str, batch: int, weight: str, isa: str) -> None:
    """Accumulators stay in registers; a step of K reads each vector of the weight once."""
    region = recurrent(cell, 9, batch, 256, weight=weight)
    config = TEMPLATE.default_config(region, machine_for(isa))
    region = recurrent(cell, 9, config.rows, 256, weight=weight)  # all tiles have one height
    problem = RecurrentProblem.of(region)
    panels = panels_of(problem, config)
    product, register = re.compile(PRODUCTS[weight]), REGISTERS[isa]
    found = [each for each in loops(region, config, isa) if product.search(each)]
    steps = [each for each in found if not CELLS.search(each) and not BY_LISTS.search(each)]
    assert len(steps) == len(panels)
    for loop, each in zip(steps, panels, strict=True):
        # LLVM unrolls short loops a few times.
        times, rest = divmod(len(product.findall(loop)), config.rows * each.vectors)
        assert times in (1, 2, 4) and not rest
        stored = re.findall(rf"vmov\w+\s+%{register}\d+, -?\w*\(", loop)
        assert not stored and "(%rsp" not in loop
        of_operands = len(re.findall(r"v(?:p?broadcast|movddup)\w*\s+-?\w*\(", loop))
        loads = len(re.findall(rf"-?\w*\(%r[^)]*\).*%{register}\d+", loop))
        assert of_operands <= times * config.rows
        assert loads - of_operands == times * each.vectors


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_large_pairs_and_halves_stay_in_registers(isa: str) -> None:
    """A weight of bytes has a loop over its lists, and one over bytes as words."""
    region = recurrent("lstm", 9, 1, 256, weight="int8")
    config = TEMPLATE.default_config(region, machine_for(isa))
    found = [each for each in loops(region, config, isa) if "vpmaddwd" in each]
    lists = [each for each in found if BY_LISTS.search(each)]
    halves = [each for each in found if "vpmaddubsw" not in each]
    assert len(lists) == len(halves) == 1 and len(found) == 3
    for loop in (*lists, *halves):
        assert not re.findall(rf"vmov\w+\s+%{REGISTERS[isa]}\d+, -?\w*\(", loop)
    (panels,) = panels_of(RecurrentProblem.of(region), config)
    for pattern in ("vpmaddubsw", "movslq", "vpbroadcastd"):  # each entry has its own place
        assert len(re.findall(pattern, lists[0])) == panels.vectors


def test_cells_of_many_rows_take_no_registers_of_products() -> None:
    """LLVM would unroll the short cells of an RNN completely: tiles of 3, 3 and 2 rows."""
    region = recurrent("rnn", 9, 8, 256)
    config = RecurrentConfig(kernel="avx2_f32_4x24", rows=3, units=4)
    product = re.compile(PRODUCTS["float32"])
    found = [each for each in loops(region, config, "avx2") if product.search(each)]
    steps = [each for each in found if not CELLS.search(each)]
    assert sorted(len(product.findall(loop)) for loop in steps) == [8, 12]
    assert not any("(%rsp" in loop for loop in steps)


@pytest.mark.parametrize(
    ("cell", "batch", "hidden"), [("lstm", 16, 64), ("rnn", 16, 256), ("gru_linear", 2, 64)]
)
def test_constants_of_cells_take_no_registers_of_products(
    cell: str, batch: int, hidden: int
) -> None:
    """16 rows are tiles of 6, 5 and 5; a GRU of 64 values has one panel of four vectors."""
    region = recurrent(cell, 9, batch, hidden)
    config = TEMPLATE.default_config(region, machine_for("avx512"))
    product = re.compile(PRODUCTS["float32"])
    found = [each for each in loops(region, config, "avx512") if product.search(each)]
    steps = [each for each in found if not CELLS.search(each)]
    heights = {group.size for group in balanced(batch, config.rows)}
    (panels,) = panels_of(RecurrentProblem.of(region), config)
    products = {len(product.findall(loop)) for loop in steps}
    assert products == {height * panels.vectors for height in heights}
    assert not any("(%rsp" in loop for loop in steps)


def test_cells_take_turns_by_function() -> None:
    """Three gates' functions in one loop, then that of the next c, then that of the output."""
    region = recurrent("lstm", 9, 18, 64)
    config = TEMPLATE.default_config(region, machine_for("avx512"))
    found = [each for each in loops(region, config, "avx512") if CELLS.search(each)]
    assert sorted(each.count("vdivps") for each in found) == [1, 1, 3]
    assert not any("vcmp" in each for each in found)  # constants hold the sign of e^-x


def test_a_tile_asks_for_the_next_ones_input_parts() -> None:
    region = recurrent("lstm", 9, 16, 64)
    config = TEMPLATE.default_config(region, machine_for("avx512"))
    heights = [group.size for group in balanced(16, config.rows)]
    isa = machine_for("avx512").isa
    text = TEMPLATE.build(region, config, isa).body.script()
    assert text.count('"tvm_hybrid_prefetch"') == sum(heights) * 4 * config.units
    region = recurrent("lstm", 9, 1, 64)
    config = TEMPLATE.default_config(region, machine_for("avx512"))
    assert "tvm_hybrid_prefetch" not in TEMPLATE.build(region, config, isa).body.script()
