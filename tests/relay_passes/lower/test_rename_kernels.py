"""Renamed kernels all have the suffix, decisions follow, and results stay."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.tvm_hybrid.small_models import mlp_module, several_module
from tvm_hybrid.targets.resolve import resolve_target


def test_kernels_and_decisions_get_the_suffix() -> None:
    options = PipelineOptions(resolve_target(None))
    plain = compile_module(mlp_module(), options)
    renamed = compile_module(mlp_module(), PipelineOptions(options.target, suffix="_second"))
    names, others = (
        {var.name_hint for var, f in compiled.mod.functions_items() if isinstance(f, tirx.PrimFunc)}
        for compiled in (plain, renamed)
    )
    assert names and others == {f"{name}_second" for name in names}
    assert [f"{d.function}_second" for d in plain.decisions] == [
        d.function for d in renamed.decisions
    ]
    x = np.random.default_rng(0).standard_normal((1, 16)).astype(np.float32)
    first, second = (
        relax.VirtualMachine(compiled.executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
        for compiled in (plain, renamed)
    )
    np.testing.assert_array_equal(first, second)


def test_what_the_native_code_exports_is_renamed_too() -> None:
    options = PipelineOptions(resolve_target(None), suffix="_second")
    (native,) = compile_module(several_module(), options).executable.mod.imports
    functions = [
        line.split()[1]
        for line in native.inspect_source("asm").splitlines()
        if line.strip().startswith(".globl") and "__tvm_ffi_" in line
    ]
    kernels = [name for name in functions if not name.startswith("__tvm_ffi__library")]
    assert kernels and all(name.endswith("_second") for name in kernels)
