"""Kernels on tiles check permission before any allocation, even where TVM moves allocations."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T

from microkernels.amx.permission import PERMISSION_LLVM_IR
from relay_passes.lower.kernel_pipelines import check_first, pipeline_for
from tests.microkernels.isa_targets import AMX_TARGETS
from tests.tir_schedules.integer_regions import matmul_region
from tests.tir_schedules.on_tiles import on_tiles
from tests.tir_schedules.run_region import machine_for
from tir_schedules.core.template import template_for


def test_the_check_goes_in_front_of_the_allocations_beside_it() -> None:
    @T.prim_func(private=True)
    def before(x: T.handle) -> None:
        T.func_attr({"tirx.noalias": True})
        seen = T.match_buffer(x, (4,), "int32")
        scratch = T.alloc_buffer((4096,), "int32")
        with T.attr(0, "pragma_import_llvm", PERMISSION_LLVM_IR):
            T.evaluate(T.call_extern("int32", "tvm_hybrid_amx_permission"))
        scratch[0] = seen[0]

    @T.prim_func(private=True)
    def after(x: T.handle) -> None:
        T.func_attr({"tirx.noalias": True})
        seen = T.match_buffer(x, (4,), "int32")
        with T.attr(0, "pragma_import_llvm", PERMISSION_LLVM_IR):
            T.evaluate(T.call_extern("int32", "tvm_hybrid_amx_permission"))
        scratch = T.alloc_buffer((4096,), "int32")
        scratch[0] = seen[0]

    changed = check_first()(tvm.IRModule({"kernel": before}))
    assert_structural_equal(changed["kernel"], after)


def test_what_the_memory_holds_is_used_behind_it() -> None:
    """Kernels with dynamic sizes store them in memory and read them; both move after the check."""

    @T.prim_func(private=True)
    def before(x: T.handle) -> None:
        T.func_attr({"tirx.noalias": True})
        seen = T.match_buffer(x, (4,), "int32")
        extent = T.alloc_buffer((1,), "int32")
        extent[0] = seen[0]
        count = T.bind(extent[0])
        with T.attr(0, "pragma_import_llvm", PERMISSION_LLVM_IR):
            T.evaluate(T.call_extern("int32", "tvm_hybrid_amx_permission"))
        scratch = T.alloc_buffer((4096,), "int32")
        scratch[0] = count

    @T.prim_func(private=True)
    def after(x: T.handle) -> None:
        T.func_attr({"tirx.noalias": True})
        seen = T.match_buffer(x, (4,), "int32")
        with T.attr(0, "pragma_import_llvm", PERMISSION_LLVM_IR):
            T.evaluate(T.call_extern("int32", "tvm_hybrid_amx_permission"))
        extent = T.alloc_buffer((1,), "int32")
        extent[0] = seen[0]
        count = T.bind(extent[0])
        scratch = T.alloc_buffer((4096,), "int32")
        scratch[0] = count

    changed = check_first()(tvm.IRModule({"kernel": before}))
    assert_structural_equal(changed["kernel"], after)


@pytest.mark.parametrize("threads", [1, 2])
def test_code_asks_before_it_allocates(threads: int) -> None:
    """The kernel allocates a copy of A and room for tiles; a refused call would leak both."""
    region = matmul_region((70,), 100, 40, "int8", "uint8", 3, "input")
    config = on_tiles(region, "32x32")
    kernel = template_for("matmul").build(region, config, machine_for("amx").isa)
    compiled = tvm.compile(
        kernel.with_attr("global_symbol", "kernel"),
        target=AMX_TARGETS["sapphirerapids"],
        tir_pipeline=pipeline_for(threads),
    )
    code = compiled.mod.inspect_source("ll")
    (asked,) = (found.start() for found in re.finditer(r"load atomic i32, ptr @\S*_granted", code))
    allocated = [found.start() for found in re.finditer(r"load ptr, ptr @__TVMBackendAlloc", code)]
    assert allocated and all(asked < place for place in allocated)
