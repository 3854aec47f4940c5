"""Checks of arguments at a function's entry: which ones stay, and what wrong arguments raise."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, tirx

import tvm_hybrid
from microkernels.base.tvm_compat.relax import ENTRY_CHECKS
from relay_passes.lower_module import lower_shared
from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module

op = relax.op
SHAPE = (4, 4)


def sums(x: relax.Expr, y: relax.Expr, w: relax.Expr) -> relax.Expr:
    return op.add(op.multiply(x, y), w)


def net(inputs: int | None) -> IRModule:
    """A sum of products; parameters after the first `inputs` ones are weights."""
    mod = module(sums, *[(SHAPE, "float32")] * 3)
    if inputs is None:
        return mod
    return IRModule({"main": mod["main"].with_attr("num_input", inputs)})


def checked(mod: IRModule, entry_checks: bool) -> set[str]:
    """The parameters that main checks."""
    options = PipelineOptions(TARGET, entry_checks=entry_checks)
    with TARGET:
        passes = phases(options, [])[Phase.LOWER_TO_VM]
        lowered = ir.transform.Sequential(passes)(lower_shared(mod, options, []))
    values = [each.value for block in lowered["main"].body.blocks for each in block.bindings]
    calls = [each for each in values if isinstance(each, relax.Call)]
    names = [getattr(call.op, "global_symbol", "") for call in calls]
    return {
        str(call.args[0].name)
        for call, name in zip(calls, names, strict=True)
        if str(name) in ENTRY_CHECKS
    }


def test_kernels_check_what_functions_need_not() -> None:
    assert checked(net(None), entry_checks=False) == set()
    assert checked(net(2), entry_checks=False) == set()


def test_dynamic_inputs_keep_their_checks() -> None:
    """These checks tell the sizes, which no kernel can compare."""
    x = relax.Var("x", relax.TensorType([tirx.Var("n", "int64"), 4], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.nn.relu(x))
        builder.emit_func_output(result)
    assert "x" in checked(builder.get(), entry_checks=False)


def test_inputs_may_keep_their_checks() -> None:
    assert checked(net(None), entry_checks=True) == {"x0", "x1", "x2"}
    assert checked(net(2), entry_checks=True) == {"x0", "x1"}


@pytest.mark.parametrize("pipeline", ["default", "tvm_hybrid"])
def test_a_wrong_argument_raises_what_tvms_own_pipeline_does(pipeline: str) -> None:
    library = tvm.compile(net(2), tvm_hybrid.resolve_target(None), relax_pipeline=pipeline)
    main = relax.VirtualMachine(library, tvm.cpu())["main"]
    right, wrong, whole = (
        tvm.runtime.tensor(np.zeros(shape, dtype))
        for shape, dtype in [(SHAPE, "float32"), ((4, 5), "float32"), (SHAPE, "int32")]
    )
    with pytest.raises(RuntimeError, match=r"param=x1, .*shape\[1\] mismatch"):
        main(right, wrong, right)
    with pytest.raises(ValueError, match=r"param=x0, .*expect Tensor with dtype float32"):
        main(whole, right, right)
    with pytest.raises((RuntimeError, ValueError)):
        main(right, right, wrong)
    assert not main(right, right, right).numpy().any()
