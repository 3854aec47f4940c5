"""An error in a pass names the pass and the variable at which it fails."""

from __future__ import annotations

import pytest
from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass

from microkernels.base.errors import CompileError
from relay_passes.ir.graph import op_name
from relay_passes.lower_module import failing_binding, run_passes
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import GENERIC


def chain(dataflow: bool) -> IRModule:
    """tanh(exp(add(x, x)))."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        if dataflow:
            with builder.dataflow():
                value = builder.emit(relax.op.exp(builder.emit(relax.op.add(x, x), "add_n0_")),
                                     "exp_n1_")  # fmt: skip
                result = builder.emit_output(relax.op.tanh(value))
        else:
            value = builder.emit(relax.op.exp(builder.emit(relax.op.add(x, x), "add_n0_")),
                                 "exp_n1_")  # fmt: skip
            result = builder.emit(relax.op.tanh(value))
        builder.emit_func_output(result)
    return builder.get()


@module_pass(opt_level=0, name="no_exp")
def no_exp(mod: IRModule, _context: PassContext) -> IRModule:
    """Fails as TVM does, without naming the place."""
    values = [each.value for block in mod["main"].body.blocks for each in block.bindings]
    if any(op_name(value) == "relax.exp" for value in values):
        raise ValueError("Parameter expression 5\nand more")
    return mod


@pytest.mark.parametrize("dataflow", [False, True])
def test_the_variable_is_found(dataflow: bool) -> None:
    mod = chain(dataflow)
    with pytest.raises(
        CompileError, match=r"^pass no_exp fails at exp_n1_: Parameter.*5$"
    ) as found:
        run_passes(mod, [no_exp], PipelineOptions(GENERIC))
    assert isinstance(found.value.__cause__, ValueError)


def test_no_variable_without_main() -> None:
    @module_pass(opt_level=0, name="never")
    def never(_mod: IRModule, _context: PassContext) -> IRModule:
        raise ValueError("no")

    mod = IRModule({})
    assert failing_binding(mod, never, ValueError("no")) is None
    with pytest.raises(CompileError, match=r"^pass never fails: no$"):
        run_passes(mod, [never], PipelineOptions(GENERIC))


def test_an_error_of_ours_stays() -> None:
    @module_pass(opt_level=0, name="refuses")
    def refuses(_mod: IRModule, _context: PassContext) -> IRModule:
        raise CompileError("as it is")

    with pytest.raises(CompileError, match=r"^as it is$"):
        run_passes(chain(True), [refuses], PipelineOptions(GENERIC))
