"""Results of a module's kernels, and whether two lists of results have equal bits."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import IRModule, relax

from relay_passes.lower_module import compile_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import MACHINE, TARGET
from tests.stand_ins import running


def kernel_outputs(mod: IRModule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The results of main, compiled by the whole pipeline for `MACHINE`."""
    with running.made_for(MACHINE.isa.name):
        executable = compile_module(mod, PipelineOptions(TARGET)).executable
    main = relax.VirtualMachine(executable, tvm.cpu())["main"]
    made = main(*map(tvm.runtime.tensor, arrays))
    return [x.numpy() for x in ([made] if hasattr(made, "numpy") else made)]


def assert_equal(results: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    """Types and bits are equal."""
    for got, exact in zip(results, wanted, strict=True):
        assert got.dtype == exact.dtype
        np.testing.assert_array_equal(got, exact)
