"""The pass context of kernels: fewer passes, equal machine code, the caller's settings kept."""

from __future__ import annotations

import re

import tvm
from tvm import relax
from tvm.ir.transform import PassContext

from microkernels.machines.machine import Machine
from relay_passes.lower.codegen import kernel_context
from relay_passes.lower.lower_regions import build_kernel
from relay_passes.lower_module import collect_regions
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, constant, module
from tir_schedules.core.template import template_for

op = relax.op


def instructions(kernel: tvm.tirx.PrimFunc, context: PassContext) -> list[str]:
    with context:
        built = tvm.compile(kernel.with_attr("global_symbol", "kernel"), target=TARGET)
    lines = built.mod.inspect_source("asm").splitlines()
    return [re.sub(r"\.L\w+", ".L", line) for line in lines if re.match(r"\t[a-z]", line)]


def test_machine_code_stays_the_same() -> None:
    def layer(x: relax.Expr) -> relax.Expr:
        return op.nn.gelu(op.add(op.matmul(x, constant(24, 40)), constant(40)))

    options = PipelineOptions(TARGET)
    (region,) = collect_regions(module(layer, ((9, 24), "float32")), options)
    machine = Machine.from_target(TARGET)
    config = template_for(region.op).default_config(region, machine)
    kernel = build_kernel(region, config, machine)
    plain, ours = (instructions(kernel, c) for c in (PassContext(opt_level=2), kernel_context()))
    assert len(plain) > 100 and ours == plain
    assert "tirx.RemoveNoOp" in list(kernel_context().disabled_pass)


def test_the_callers_settings_stay() -> None:
    with PassContext(
        opt_level=1, disabled_pass=["tirx.UnrollLoop"], config={"tirx.disable_vectorize": True}
    ):
        context = kernel_context()
    assert context.opt_level == 1 and "tirx.UnrollLoop" in list(context.disabled_pass)
    assert dict(context.config).keys() == {"tirx.disable_vectorize", "tirx.disable_cse_tir"}
