"""The helpers that rewrite functions and blocks."""

from __future__ import annotations

from tvm import IRModule, relax, tirx
from tvm.ir import assert_structural_equal

from relay_passes.ir.functions import emit_body, is_region_function, region_function
from relay_passes.ir.graph import DataflowGraph, op_name
from relay_passes.ir.rewrite import Bindings, block_pass, with_values
from tests.relay_passes.graphs import constant, module, partitioned, regions

op = relax.op
X = ((4, 8), "float32")


def sigmoids(graph: DataflowGraph) -> list[relax.Binding] | None:
    """Writes sigmoid(x) in place of relu(x)."""
    block = Bindings()
    for binding in graph.bindings:
        relu = op_name(binding.value) == "relax.nn.relu"
        value = op.sigmoid(binding.value.args[0]) if relu else binding.value
        block.bind(binding.var, value)
    values = [binding.value for binding in graph.bindings]
    relu = any(op_name(value) == "relax.nn.relu" for value in values)
    return block.bindings if relu else None


def operators(mod: IRModule) -> list[str]:
    """The operators that the functions of a module call, each once."""
    called = (b.value for f in mod.functions.values() for b in bindings(f))
    return sorted({op_name(value) for value in called} - {""})


def bindings(function: relax.Function) -> list[relax.Binding]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def test_region_functions_stay_as_their_templates_know_them() -> None:
    weight = constant(8, 3)
    plain = module(lambda x: op.nn.relu(op.matmul(x, weight)), X)
    mod, _ = partitioned(plain)
    apply = block_pass("test", sigmoids)
    assert operators(apply(plain)) == ["relax.matmul", "relax.sigmoid"]
    assert operators(apply(mod)) == operators(mod) == ["relax.matmul", "relax.nn.relu"]


def test_other_values_leave_match_casts_and_blocks() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(ndim=2, dtype="float32"))
    with builder.function("main", [x]):
        shape = (tirx.Var("n", "int64"), tirx.const(8, "int64"))
        known = builder.match_cast(x, relax.TensorType(shape, "float32"))
        with builder.dataflow():
            result = builder.emit_output(op.nn.relu(known))
        builder.emit_func_output(result)
    function = builder.get()["main"]
    seen = []

    def change(binding: relax.VarBinding) -> relax.Expr | None:
        seen.append(op_name(binding.value))
        return relax.BlockBuilder().normalize(op.exp(known))

    changed = with_values(function, change)
    assert seen == ["relax.nn.relu"]
    assert [type(block) for block in changed.body.blocks] == [
        type(block) for block in function.body.blocks
    ]
    cast, value = bindings(changed)
    assert isinstance(cast, relax.MatchCast) and op_name(value.value) == "relax.exp"


def test_a_region_function_emitted_anew_is_the_same() -> None:
    weight = constant(8, 3)
    mod, _ = partitioned(module(lambda x: op.nn.relu(op.matmul(x, weight)), X))
    (region,) = regions(mod)
    (function,) = [f for _, f in mod.functions_items() if is_region_function(f)]
    parameters = [relax.Var(each.name, each.ty) for each in function.params]
    values = dict(zip(function.params, parameters, strict=True))
    again = region_function(
        region, parameters, lambda builder: emit_body(builder, function, values)
    )
    assert_structural_equal(again, function)


def test_what_is_tidy_is_what_tvm_makes_of_it() -> None:
    plain = module(lambda x: op.nn.relu(op.exp(x)), X)
    written = block_pass("test", sigmoids)(plain)
    tidy = relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(written))
    assert_structural_equal(written, tidy)


def test_names_for_other_names_and_what_is_unused_go() -> None:
    def exp_alone(graph: DataflowGraph) -> list[relax.Binding] | None:
        first, *others, last = graph.bindings
        return [first, *others, relax.VarBinding(last.var, first.var)]

    plain = module(lambda x: op.nn.relu(op.negative(op.exp(x))), X)
    assert operators(block_pass("test", exp_alone)(plain)) == ["relax.exp"]
    (binding,) = bindings(block_pass("test", exp_alone)(plain)["main"])
    assert op_name(binding.value) == "relax.exp"
