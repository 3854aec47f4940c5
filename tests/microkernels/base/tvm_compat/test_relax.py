"""Parts of TVM that `microkernels.base.tvm_compat.relax` needs; tests fail if TVM lacks them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import IRModule, ir, relax, te, tirx
from tvm.ir.instrument import pass_instrument
from tvm.tirx.compilation_pipeline import get_tir_pipeline

from microkernels.base.tvm_compat import relax as tvm_compat
from relay_passes.pipeline import Phase, phases
from relay_passes.pipeline_options import PipelineOptions
from tests.relay_passes.graphs import TARGET, module

op = relax.op
SQUARE = ((4, 4), "float32")


def doubled() -> tirx.PrimFunc:
    """y = 2 x, of four elements."""
    x = te.placeholder((4,), "float32", "x")
    function = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0, "y")])
    return function.without_attr("global_symbol")


def test_a_global_variable_takes_a_type_once_it_is_made() -> None:
    var, ty = ir.GlobalVar("f"), relax.TensorType((2,), "float32")
    tvm_compat.set_type(var, ty)
    assert var.ty.same_as(ty)


def test_expressions_of_one_structure_have_one_key() -> None:
    x, y = (relax.Var("x", relax.TensorType((2,), "float32")) for _ in range(2))
    key = tvm_compat.structural_key(op.exp(x))
    assert {key: 1}.get(tvm_compat.structural_key(op.exp(x))) == 1
    assert key != tvm_compat.structural_key(op.exp(y))
    assert key != tvm_compat.structural_key(op.log(x))
    one, other = (tvm_compat.structural_key(doubled()) for _ in range(2))
    assert one == other


def test_an_object_has_one_address() -> None:
    var = relax.Var("x", relax.TensorType((2,), "float32"))
    address = tvm_compat.object_address(var.ty)
    assert address == tvm_compat.object_address(var.ty)
    assert address != tvm_compat.object_address(relax.TensorType((2,), "float32"))


def test_a_function_of_a_dataflow_block_is_as_from_a_builder() -> None:
    x = relax.Var("x", relax.TensorType((2, tirx.Var("n", "int64")), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], {"number": 1}, private=True):
        with builder.dataflow():
            y = builder.emit_output(builder.emit(op.exp(builder.emit(op.add(x, x)))))
        builder.emit_func_output(y)
    made = tvm_compat.dataflow_function(
        [x], lambda inner: inner.emit(op.exp(inner.emit(op.add(x, x)))), {"number": 1}
    )
    assert str(made.script()) == str(builder.get()["main"].script())


def test_the_compiler_is_a_mapped_file() -> None:
    library = tvm_compat.compiler_library()
    assert library is not None
    assert str(library) in Path("/proc/self/maps").read_text()


def test_attributes_are_made_anew_from_their_fields() -> None:
    x = relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32"))
    w = relax.Var("w", relax.TensorType((4, 3, 3, 3), "float32"))
    attrs = op.nn.conv2d(x, w, strides=2, padding=1).attrs
    changed = tvm_compat.attrs_with(attrs, groups=3)
    expected = op.nn.conv2d(x, w, strides=2, padding=1, groups=3).attrs
    ir.assert_structural_equal(changed, expected)


def test_patterns_have_the_numbers_that_tvm_gives_them() -> None:
    mod = relax.transform.LegalizeOps()(module(lambda x: op.matmul(x, x), SQUARE))
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    (matmul,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    assert int(matmul.attrs[tvm_compat.OP_PATTERN]) == tvm_compat.OUT_ELEMENTWISE_FUSABLE
    mod = relax.transform.LegalizeOps()(module(lambda x: op.permute_dims(x, [1, 0]), SQUARE))
    mod = relax.transform.AnnotateTIROpPattern()(mod)
    (transpose,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    assert int(transpose.attrs[tvm_compat.OP_PATTERN]) == tvm_compat.INJECTIVE


@pytest.mark.parametrize(("pattern", "calls"), [(None, 1), (tvm_compat.OPAQUE, 2)])
def test_fuse_ops_leaves_opaque_kernels_alone(pattern: int | None, calls: int) -> None:
    function = doubled()
    if pattern is not None:
        function = function.with_attr(tvm_compat.OP_PATTERN, pattern)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    kernel = builder.add_func(function, "doubled")
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.call_tir(kernel, [x], out_ty=x.ty))
            z = builder.emit_output(relax.call_tir(kernel, [y], out_ty=x.ty))
        builder.emit_func_output(z)
    passes = [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    fused = ir.transform.Sequential(passes)(builder.get())
    assert len(fused["main"].body.blocks[0].bindings) == calls


@pass_instrument
class Names:
    """Collects the names of the passes that run."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def run_before_pass(self, mod: IRModule, info: ir.transform.PassInfo) -> None:
        self.seen.add(str(info.name))


def test_passes_named_by_strings_are_part_of_tvms_lowering() -> None:
    names = Names()
    with ir.transform.PassContext(instruments=[names]):
        tvm.compile(doubled().with_attr("global_symbol", "doubled"), target=TARGET)
    missing = {*tvm_compat.SLOW_PASSES, *tvm_compat.GPU_PASSES} - names.seen
    assert not missing, "TVM lowers kernels without these: they may have other names"


def test_tvm_knows_the_setting() -> None:
    assert dict(ir.transform.PassContext(config=tvm_compat.WITHOUT_CSE).config)
    with pytest.raises(AttributeError, match="nonesuch"):
        ir.transform.PassContext(config={"tirx.nonesuch": True})


def test_functions_check_their_parameters_at_the_entry() -> None:
    passes = phases(PipelineOptions(TARGET), [])[Phase.LOWER_TO_VM]
    keep = [each for each in passes if each.info.name != "tvm_hybrid.drop_checks"]
    assert len(keep) == len(passes) - 1
    with TARGET:
        lowered = ir.transform.Sequential(keep)(module(lambda x: op.reshape(x, (16,)), SQUARE))
    main = lowered["main"]
    calls = [
        binding.value
        for block in main.body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, relax.ExternFunc)
    ]
    checks = [c for c in calls if str(c.op.global_symbol) in tvm_compat.ENTRY_CHECKS]
    assert {str(call.op.global_symbol) for call in checks} == set(tvm_compat.ENTRY_CHECKS)
    assert all(call.args[0].same_as(main.params[0]) for call in checks)


def test_tvms_own_legalisation_can_be_called() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        legal = tvm_compat.legalize_by_tvm(builder, builder.normalize(op.exp(x)))
        builder.emit_func_output(builder.emit(legal))
    assert legal.op == ir.Op.get("relax.call_tir")


def test_looking_for_a_function_makes_the_machine_code() -> None:
    built = tvm.compile(doubled().with_attr("global_symbol", "doubled"), target=TARGET).mod
    names = [str(name) for name in built.get_function("get_func_names")()]
    assert names == [f"{tvm_compat.SYMBOL_PREFIX}doubled"]
    tvm_compat.emit_machine_code(built)


def test_a_text_of_llvm_is_a_module() -> None:
    """A module from LLVM IR finds functions by name only, as TVM has no list of them."""
    built = tvm.compile(doubled().with_attr("global_symbol", "doubled"), target=TARGET).mod
    loaded = tvm_compat.load_llvm(built.inspect_source("ll"))
    assert loaded.kind == "llvm" and not len(loaded.get_function("get_func_names")())
    tvm_compat.emit_machine_code(loaded)
    assert loaded.get_function("doubled") is not None
    assert tvm_compat.llvm_version() >= 18


def test_the_text_of_an_object_has_all_of_its_numbers() -> None:
    """Kernels that differ in the last bit of a number have different keys."""
    third = np.float64(1) / 3
    numbers = [third, np.nextafter(third, 1), 0.0, -0.0, np.inf, -np.inf]
    texts = {tvm_compat.to_json(tirx.FloatImm("float64", float(each))) for each in numbers}
    assert len(texts) == len(numbers)
    assert tvm_compat.to_json(doubled()) == tvm_compat.to_json(doubled())


def test_the_pool_says_how_many_threads_it_has() -> None:
    """The first thread that asks starts its own pool, and is bound to one CPU from then on."""
    with ThreadPoolExecutor(1) as asking:
        assert asking.submit(tvm.get_global_func(tvm_compat.POOL_SIZE)).result() >= 1


def test_a_launch_passes_its_arguments_on() -> None:
    text = tvm_compat.parallel_launch("few", ["i32", "ptr"])
    assert "declare i32 @few_task(i32, ptr, ptr)" in text
    assert "define i32 @few(i32 %tasks, i32 %a0, ptr %a1)" in text
    assert "alloca [2 x i64]" in text


def test_the_virtual_machines_code_is_made_without_kernels() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(x)
    code = tvm_compat.virtual_machine_code(relax.transform.AttachGlobalSymbol()(builder.get()))
    assert not code.imports
    result = relax.VirtualMachine(code, tvm.cpu())["main"](tvm.runtime.tensor(np.ones(4, "f")))
    np.testing.assert_array_equal(result.numpy(), np.ones(4))


def test_kernels_check_the_kind_of_elements_by_dlpacks_numbers() -> None:
    mod = IRModule({"f": doubled().with_attr("global_symbol", "f")})
    lower, *_ = get_tir_pipeline("default")
    with TARGET:
        lowered = lower(tirx.transform.BindTarget(TARGET.with_host(TARGET))(mod))
    field = f"0, {tvm_compat.TYPE_CODE_AT}, "
    assert f'{field}"uint8") == T.uint8(2)' in lowered.script()  # kDLFloat
    assert tuple(int(tvm.DataType(name).type_code) for name in ("uint16", "bfloat16")) == (
        tvm_compat.UINT_CODE,
        tvm_compat.BFLOAT_CODE,
    )


def test_an_assertion_gets_another_condition() -> None:
    kind, parts = ir.StringImm("TypeError"), [ir.StringImm("wrong")]
    x = tirx.Var("x", "int32")
    make = tvm.get_global_func("tirx.AssertStmt")
    check = make(x > 1, kind, parts, None)
    changed = tvm_compat.with_condition(check, x > 2)
    assert "x > 2" in str(changed)
    assert changed.error_kind.value == "TypeError"
    assert [each.value for each in changed.message_parts] == ["wrong"]
