"""Aliases and unused values are removed; a tidy module stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from tvm import IRModule, ir, relax
from tvm.ir import assert_structural_equal

from relay_passes.canonicalize.functions import isolate_casts
from relay_passes.ir.rewrite import block_pass
from relay_passes.ir.tidy import tidy, to_dataflow
from tests.relay_passes.graphs import module

op = relax.op
X = ((2, 3), "float32")
TYPE = relax.TensorType(*X)


def var(name: str) -> relax.DataflowVar:
    return relax.DataflowVar(name, TYPE)


def bound(target: relax.Var, value: relax.Expr) -> relax.Binding:
    return relax.VarBinding(target, relax.BlockBuilder().normalize(value))


def of_bindings(build: Callable[[relax.Var, relax.Var], list[relax.Binding]]) -> IRModule:
    """A function of one block, built from x and the variable that it returns."""
    x, result = relax.Var("x", TYPE), relax.Var("gv", TYPE)
    body = relax.SeqExpr([relax.DataflowBlock(build(x, result))], result)
    function = relax.Function([x], relax.BlockBuilder().normalize(body), TYPE)
    return IRModule({"main": function.with_attr("global_symbol", "main")})


def with_names(x: relax.Var, result: relax.Var) -> list[relax.Binding]:
    """Aliases of aliases, one of them in a tuple, and unused values."""
    exp, name, other, left, unused = map(var, ["lv", "lv1", "lv2", "lv3", "lv4"])
    joined = relax.DataflowVar("lv5", relax.TensorType((4, 3), "float32"))
    return [
        bound(exp, op.exp(x)),
        bound(name, exp),
        bound(other, name),
        bound(left, op.negative(x)),
        bound(unused, op.tanh(left)),
        bound(joined, op.concat([other, exp], axis=0)),
        bound(result, op.strided_slice(joined, [0], [0], [2])),
    ]


def by_tvm(mod: IRModule) -> IRModule:
    return relax.transform.DeadCodeElimination()(relax.transform.CanonicalizeBindings()(mod))


def forbidden(*_: object) -> None:
    raise AssertionError("a pass of TVM writes the module anew")


def without_tvm(run: ir.transform.Pass, mod: IRModule) -> IRModule:
    """The result of a pass that must not call TVM's passes."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("CanonicalizeBindings", "DeadCodeElimination", "ConvertToDataflow"):
            patched.setattr(relax.transform, name, forbidden)
        return run(mod)


@pytest.mark.parametrize("run", [tidy(), to_dataflow(), isolate_casts()])
def test_what_is_tidy_stays(run: ir.transform.Pass) -> None:
    mod = module(lambda x: op.nn.relu(op.exp(x)), X)
    assert without_tvm(run, mod).same_as(mod)


def test_names_and_unused_values_go() -> None:
    mod = of_bindings(with_names)
    renewed = block_pass("renewed", lambda graph: list(graph.bindings))
    found = without_tvm(renewed, mod)
    assert_structural_equal(found, by_tvm(mod))
    assert str(found) == str(by_tvm(mod))
    assert len(found["main"].body.blocks[0].bindings) == 3


def test_a_result_that_is_another_name_is_tidied_by_tvm() -> None:
    value = var("lv")
    mod = of_bindings(lambda x, result: [bound(value, op.exp(x)), bound(result, value)])
    found = tidy()(mod)
    assert_structural_equal(found, by_tvm(mod))
    assert len(found["main"].body.blocks[0].bindings) == 1


def test_tvm_gets_no_chain_of_unused_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM visits the whole function again for every link of such a chain."""

    def with_chain(x: relax.Var, result: relax.Var) -> list[relax.Binding]:
        links = [x, *(var(f"lv{i}") for i in range(9))]
        chain = [bound(to, op.exp(of)) for of, to in pairwise(links)]
        pair = relax.DataflowVar("lv9", relax.TupleType([TYPE, TYPE]))  # no call, so TVM removes it
        return [*chain, bound(pair, relax.Tuple([links[1], x])), bound(result, op.add(*links[:2]))]

    mod, seen = of_bindings(with_chain), []
    expected, canonical = by_tvm(mod), relax.transform.CanonicalizeBindings

    def noting() -> Callable[[IRModule], IRModule]:
        return lambda given: seen.append(given) or canonical()(given)

    monkeypatch.setattr(relax.transform, "CanonicalizeBindings", noting)
    assert_structural_equal(tidy()(mod), expected)
    assert len(seen[0]["main"].body.blocks[0].bindings) == 2


def test_unused_results_go() -> None:
    mod = of_bindings(
        lambda x, result: [bound(relax.Var("gv1", TYPE), op.tanh(x)), bound(result, op.exp(x))]
    )
    found = tidy()(mod)
    assert_structural_equal(found, by_tvm(mod))
    assert len(found["main"].body.blocks[0].bindings) == 1


def test_a_function_that_nobody_calls_goes() -> None:
    mod = module(op.exp, X)
    mod["unused"] = module(op.tanh, X)["main"].without_attr("global_symbol")
    assert_structural_equal(tidy()(mod), by_tvm(mod))
    assert len(tidy()(mod).functions) == 1


def test_plain_bindings_become_dataflow() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", TYPE)
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.exp(x)))
    (block,) = to_dataflow()(builder.get())["main"].body.blocks
    assert isinstance(block, relax.DataflowBlock)
