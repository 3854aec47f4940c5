"""From regions to kernels: configurations, packed weights, shared kernels, RunCodegen."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import tvm_hybrid._autoload
from microkernels.base.errors import CompileError
from relay_passes.ir.functions import KERNEL, REGION, is_region_function
from relay_passes.lower.codegen import compile_functions
from relay_passes.lower.lower_regions import (
    CONFIG,
    SOURCE,
    choose,
    config_of,
    lower_regions,
    select_configs,
)
from relay_passes.lower.weights import prepack
from relay_passes.lower_module import collect_regions, compile_module, partition_module
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import MACHINE, TARGET, constant, module, partitioned, run
from tir_schedules.core.region import Region
from tir_schedules.product.matmul import MATMUL, MatmulConfig

op = relax.op
F = "float32"
SHAPE = (7, 20)

runs_here = pytest.mark.isa("avx512")


def layers(x):
    """Four layers; the first and the last have equal shapes."""
    for width, (k, n) in enumerate([(20, 20), (20, 33), (33, 20)]):
        x = op.nn.relu(op.add(op.matmul(x, constant(k, n, seed=width)), constant(n)))
    return op.nn.relu(op.add(op.matmul(x, constant(20, 20, seed=9)), constant(20)))


def prepared(lookup=None):
    mod, _ = partitioned(module(layers, (SHAPE, F)))
    return prepack(MACHINE.isa)(select_configs(MACHINE, lookup)(mod))


def region_functions(mod):
    return [f for _, f in mod.functions_items() if is_region_function(f)]


def test_select_writes_config_and_source() -> None:
    mod, _ = partitioned(module(layers, (SHAPE, F)))
    for function in region_functions(select_configs(MACHINE, None)(mod)):
        region = Region.from_json(str(function.attrs[REGION]))
        assert config_of(function) == MATMUL.default_config(region, MACHINE)
        assert function.attrs[SOURCE] == "default"


def test_a_record_is_taken_and_an_illegal_one_is_not(caplog) -> None:
    region = Region.from_json(str(region_functions(prepared())[0].attrs[REGION]))
    default = MATMUL.default_config(region, MACHINE)
    other = MatmulConfig(**{**default.to_dict(), "k_block": 4})
    broken = MatmulConfig(**{**default.to_dict(), "rows": 99})
    assert choose(region, MACHINE, lambda *_: (other, "record r:1")) == (other, "record r:1")
    assert choose(region, MACHINE, lambda *_: (broken, "record r:2")) == (default, "default")
    assert "record r:2" in caplog.text


def test_prepack_leaves_flat_weights_and_the_same_meaning() -> None:
    plain = module(layers, (SHAPE, F))
    mod = prepared()
    for function in region_functions(mod):
        assert len(function.params[1].ty.shape.values) == 1
        assert CONFIG in function.attrs
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(F)
    # Unpacking only moves values, so both run the same scalar program.
    np.testing.assert_array_equal(run(plain, [x])[0], run(mod, [x])[0])


def test_equal_regions_share_one_kernel() -> None:
    decisions = []
    mod = lower_regions(MACHINE, decisions)(prepared())
    kernels = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(kernels) == 3
    assert len(decisions) == 4 and all(decision.taken for decision in decisions)
    assert {str(f.attrs[KERNEL]) for f in kernels} == {d.kernel for d in decisions}
    assert all(d.kernel.startswith("avx512_f32_") for d in decisions)
    assert decisions[0].op == "matmul + add + relu" and decisions[0].flops == 2 * 7 * 20 * 20


@runs_here
def test_the_whole_pipeline_against_numpy() -> None:
    compiled = compile_module(module(layers, (SHAPE, F)), PipelineOptions(TARGET))
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(F)
    main = relax.VirtualMachine(compiled.executable, tvm.cpu())["main"]
    expected = run(module(layers, (SHAPE, F)), [x])[0]
    result = main(tvm.runtime.tensor(x)).numpy()
    # Four f32 layers of K <= 33, summed in another order.
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_collect_regions_lists_each_once() -> None:
    found = collect_regions(module(layers, (SHAPE, F)), PipelineOptions(TARGET, fusion="fine"))
    assert len(found) == 3 and len({region.key for region in found}) == 3
    (chain,) = collect_regions(module(layers, (SHAPE, F)), PipelineOptions(TARGET))
    assert len(chain.parts) == 4 and {p.key for p in chain.parts} == {r.key for r in found}


@runs_here
@pytest.mark.parametrize(("fusion", "kernels"), [("fine", 4), ("coarse", 1)])
def test_run_codegen_compiles_the_partitioned_functions(fusion: str, kernels: int) -> None:
    tvm_hybrid._autoload.register()
    plain = module(layers, (SHAPE, F))
    mod = partition_module(plain, PipelineOptions(TARGET, fusion=fusion), [])
    generated = relax.transform.RunCodegen()(mod)
    assert generated["main"].script().count("R.call_dps_packed") == kernels
    assert not region_functions(generated)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(F)
    expected = run(plain, [x])[0]
    result = run(generated, [x], target=TARGET)[0]
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_codegen_refuses_functions_of_others() -> None:
    function = module(layers, (SHAPE, F))["main"]
    with pytest.raises(CompileError, match="main is not a function of partition_for_tvm_hybrid"):
        compile_functions([function], {}, {})


@runs_here
def test_what_no_template_takes_gets_a_schedule_and_a_decision() -> None:
    mod = module(lambda x: op.sum(op.tanh(x), axis=[0]), (SHAPE, F))
    compiled = compile_module(mod, PipelineOptions(TARGET))
    assert [d.taken for d in compiled.decisions] == [False] * len(compiled.decisions)
    kernels = {
        str(gvar.name_hint): str(function.attrs[KERNEL])
        for gvar, function in compiled.mod.functions_items()
        if isinstance(function, tirx.PrimFunc)
    }
    assert {d.function: d.kernel for d in compiled.decisions} == kernels
    assert kernels and all(
        name.startswith("generic_") and name != "generic_serial" for name in kernels.values()
    )


def test_dump_ir_writes_the_module_after_every_pass(tmp_path) -> None:
    compile_module(module(layers, (SHAPE, F)), PipelineOptions(TARGET, dump_ir=tmp_path))
    names = " ".join(path.name for path in tmp_path.iterdir())
    for name in ("partition", "prepack", "lower_regions", "schedule_generic"):
        assert name in names
