"""Modules are well formed after each of our passes, as TVM's own tests demand."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import IRModule, relax
from tvm.relax.ir.instrument import WellFormedInstrument
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_hybrid
from tests.tvm_hybrid.small_models import mlp_module, several_module


@I.ir_module
class Open:
    @R.function
    def main(x: R.Tensor(("n", 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tuple(
        R.Tensor(("n", 16), "float32"), R.Tensor(("n * 2", 16), "float32")
    ):
        with R.dataflow():
            y = R.nn.relu(R.matmul(x, w))
            z = R.concat((R.exp(y), y), axis=0)
            R.output(y, z)
        return (y, z)


MODULES = {"products": mlp_module(8), "several results": several_module(), "open": Open}


@pytest.mark.parametrize("name", MODULES)
def test_the_pipeline_under_a_check_of_every_pass(name: str) -> None:
    seen: list[str] = []
    instruments = [WellFormedInstrument(), names_of_passes(seen)]
    with tvm.ir.transform.PassContext(instruments=instruments), tvm_hybrid.resolve_target(None):
        lowered = relax.get_pipeline("tvm_hybrid")(MODULES[name])
    assert "main" in [gvar.name_hint for gvar in lowered.get_global_vars()]
    # Other instruments also see each of our passes.
    assert {"tvm_hybrid", "tvm_hybrid.partition", "tvm_hybrid.share_objects"} <= set(seen)


@pytest.mark.parametrize("name", MODULES)
def test_a_partition(name: str) -> None:
    relax.analysis.well_formed(tvm_hybrid.partition_for_tvm_hybrid(MODULES[name]))


def names_of_passes(seen: list[str]) -> Any:
    """An instrument that appends the names of passes to a list."""

    @tvm.ir.instrument.pass_instrument
    class Names:
        def run_after_pass(self, _mod: IRModule, info: Any) -> None:
            seen.append(str(info.name))

    return Names()


@I.ir_module
class TwoDevices:
    I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("llvm", 1)]})

    @R.function
    def main(x: R.Tensor((2, 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (2, 16), "float32", "llvm:1"
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.to_vdevice(y, "llvm:1")
            R.output(z)
        return z


def test_devices_of_a_module_stay() -> None:
    with tvm_hybrid.resolve_target(None):
        lowered = relax.get_pipeline("tvm_hybrid")(TwoDevices)
    assert len(lowered.global_infos["vdevice"]) == 2
