"""TVM's own routes with symbolic sizes: partition and RunCodegen, and the named pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax

import tvm_hybrid
from tests.relay_passes.regions.test_dynamic_layers import BATCH, LENGTH, WIDTH, layer


def by_run_codegen(mod: IRModule) -> Any:
    parts = tvm_hybrid.partition_for_tvm_hybrid(mod, target=tvm_hybrid.resolve_target(None))
    relax.analysis.well_formed(parts, check_ty=False)  # no function uses another one's sizes
    generated = relax.transform.RunCodegen()(parts)
    assert generated["main"].script().count("R.call_dps_packed") == 3
    return tvm.compile(generated, target=tvm_hybrid.resolve_target(None))


def by_name(mod: IRModule) -> Any:
    executable = tvm.compile(mod, tvm_hybrid.resolve_target(None), relax_pipeline="tvm_hybrid")
    called = [line for line in executable.as_text().splitlines() if "tvm_hybrid_attention" in line]
    assert called
    return executable


@functools.cache
def known(batch: int, length: int) -> tvm_hybrid.Executable:
    """A program for static sizes."""
    return tvm_hybrid.compile(layer(batch, length), num_threads=1)


@pytest.mark.parametrize("door", [by_run_codegen, by_name])
def test_one_program_for_any_sizes(door: Callable[[IRModule], Any]) -> None:
    run = relax.VirtualMachine(door(layer(BATCH, LENGTH)), tvm.cpu())["main"]
    rng = np.random.default_rng(0)
    for batch, length in [(1, 3), (2, 9)]:
        x = rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
        mask = np.zeros((batch, 1, 1, length), np.float32)
        arrays = [tvm.runtime.tensor(each) for each in (x, mask)]
        (wanted,) = known(batch, length).run({"x0": x, "x1": mask})
        wanted = wanted.numpy()
        # Seven layers of sums of up to 96 products, each in another order.
        bound = 7 * 96 * np.finfo(np.float32).eps * np.abs(wanted).max()
        assert np.abs(run(*arrays).numpy() - wanted).max() <= bound
