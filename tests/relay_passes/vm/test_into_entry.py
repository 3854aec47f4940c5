"""The entry that writes outputs into the caller's tensors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import IRModule, relax, te, tirx, topi
from tvm.ir import assert_structural_equal
from tvm.script import relax as R

from relay_passes.ir.functions import IN_PLACE, UNALIGNED
from relay_passes.ir.graph import is_call
from relay_passes.legalize.shapes import rewrite_reshapes
from relay_passes.vm.entries import INTO_ENTRY, INTO_OUTPUTS, SHAPES_ENTRY, into_entry

Body = Callable[[relax.BlockBuilder, relax.Var], relax.Expr]


def module(body: Body) -> IRModule:
    """main(x: float32[n, 4]), with the results of `body`."""
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(builder, x))
        builder.emit_func_output(result)
    return builder.get()


def next_of(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape, lambda i, j: x[i, j] + tirx.const(1, "float32"))


def two_of(x: te.Tensor) -> list[te.Tensor]:
    return [next_of(x), te.compute(x.shape, lambda i, j: x[i, j] * x[i, j])]


def test_an_output_is_a_parameter_that_its_kernel_writes() -> None:
    mod = into_entry()(module(lambda builder, x: builder.call_te(next_of, x)))
    kernel = next(gvar for gvar in mod.get_global_vars() if gvar.name_hint.startswith("next"))
    builder = relax.BlockBuilder()
    n = tirx.Var("n", "int64")
    ty = relax.TensorType((n, 4), "float32")
    x, out = relax.Var("x", ty), relax.Var("out0", ty)
    with builder.function(INTO_ENTRY, [x, out], attrs={INTO_OUTPUTS: [[0, -1, 0, 0]]}):
        with builder.dataflow():
            call = relax.op.call_tir_inplace(kernel, relax.Tuple([x, out]), [1], ty)
            result = builder.emit_output(builder.normalize(call))
        builder.emit_func_output(result)
    wanted = builder.get()[INTO_ENTRY].with_attr("global_symbol", INTO_ENTRY)
    found = relax.transform.Normalize()(mod)[INTO_ENTRY]
    assert_structural_equal(found, wanted, map_free_vars=True)
    (shape,) = mod[SHAPES_ENTRY].body.body.fields
    size, columns = shape.values
    assert size.same_as(mod[SHAPES_ENTRY].params[0].ty.shape[0])
    assert int(columns) == 4
    assert_structural_equal(into_entry()(mod), mod)


@pytest.mark.parametrize(
    "body",
    [
        lambda _builder, x: x,
        lambda _builder, x: relax.op.reshape(x, (-1,)),
        lambda builder, x: relax.Tuple([builder.emit(builder.call_te(next_of, x))] * 2),
    ],
    ids=["input", "view", "twice"],
)
def test_what_no_kernel_writes_for_this_output_alone_is_left(body: Body) -> None:
    mod = module(body)
    assert_structural_equal(into_entry()(mod), mod)


def second_only(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return relax.TupleGetItem(builder.emit(builder.call_te(two_of, x)), 1)


def first_and_more(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    made = builder.emit(builder.call_te(two_of, x))
    first, second = (builder.emit(relax.TupleGetItem(made, i)) for i in range(2))
    return relax.Tuple([builder.emit(builder.call_te(next_of, second)), first])


@pytest.mark.parametrize(("body", "places"), [(second_only, None), (first_and_more, [1, -1])])
def test_of_a_kernels_results_the_first_ones_may_be_given(
    body: Body, places: list[int] | None
) -> None:
    """Outputs may be given for a kernel's first results only: new tensors come after them."""
    mod = into_entry()(module(body))
    if places is None:
        assert INTO_ENTRY not in [gvar.name_hint for gvar in mod.get_global_vars()]
        return
    calls = [
        binding.value
        for block in mod[INTO_ENTRY].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    assert [list(map(int, call.attrs.inplace_indices)) for call in calls] == [places, [1]]
    assert [param.name for param in mod[INTO_ENTRY].params] == ["x", "out0", "out1"]


def written(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return builder.emit(builder.call_te(next_of, x))


def read_again(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return relax.Tuple([written(builder, x), builder.emit(builder.call_te(next_of, x))])


def returned(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    return relax.Tuple([written(builder, x), x])


@pytest.mark.parametrize(("body", "shared"), [(written, 0), (read_again, -1), (returned, -1)])
def test_an_input_that_nothing_else_reads_may_be_written_over(body: Body, shared: int) -> None:
    mod = module(body)
    kernel = next(gvar for gvar in mod.get_global_vars() if gvar.name_hint.startswith("next"))
    mod[kernel] = mod[kernel].with_attr(IN_PLACE, [[0, 0]]).with_attr(UNALIGNED, True)
    first, *_ = into_entry()(mod)[INTO_ENTRY].attrs[INTO_OUTPUTS]
    assert list(map(int, first)) == [0, shared, 1, int(shared >= 0)]


def test_sizes_that_data_decide_are_left() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        found = builder.emit(relax.op.nonzero(x))
        cast = builder.match_cast(found, R.Tensor((2, tirx.Var("k", "int64")), "int64"))
        return builder.call_te(lambda a: te.compute(a.shape, lambda i, j: a[i, j] + 1), cast)

    mod = module(body)
    assert_structural_equal(into_entry()(mod), mod)


def test_an_output_has_room_if_all_that_reads_it_takes_that() -> None:
    def read(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = written(builder, x)
        return relax.Tuple([made, builder.emit(builder.call_te(two_of, made))])

    mod = module(read)
    for gvar, function in mod.functions_items():
        if gvar.name_hint.startswith("next"):
            mod[gvar] = function.with_attr(IN_PLACE, [[0, 0]])
    first, *_ = into_entry()(mod)[INTO_ENTRY].attrs[INTO_OUTPUTS]
    assert list(map(int, first)) == [0, 0, 0, 0]


def test_sizes_that_integers_tell_are_those_of_the_outputs() -> None:
    builder, found = relax.BlockBuilder(), tirx.Var("found", "int64")
    x = relax.Var("x", relax.TensorType((1, 4), "float32"))
    asked = relax.Var("asked", relax.TensorType((1,), "int64"))

    def rows(x: te.Tensor, size: tirx.Var) -> te.Tensor:
        return te.compute((size, 4), lambda i, j: x[0, j] + tirx.const(1, "float32"))

    with builder.function("main", [x, asked]):
        shape = builder.emit(relax.op.tensor_to_shape(asked))
        builder.match_cast(shape, relax.ShapeType([found]))
        builder.emit_func_output(builder.emit(builder.call_te(rows, x, found)))
    mod = into_entry()(builder.get())
    assert [param.name for param in mod[INTO_ENTRY].params] == ["x", "asked", "out0"]
    (size, _) = mod[INTO_ENTRY].params[2].ty.shape.values
    casts = [
        binding.ty.values[0]
        for block in mod[INTO_ENTRY].body.blocks
        for binding in block.bindings
        if isinstance(binding, relax.MatchCast)
    ]
    assert len(casts) == 1
    assert size.same_as(casts[0])
    telling = [each for block in mod[SHAPES_ENTRY].body.blocks for each in block.bindings]
    assert len(telling) == 2
    (size, columns) = mod[SHAPES_ENTRY].body.body.fields[0].values
    assert size.same_as(telling[-1].ty.values[0])
    assert int(columns) == 4


def in_another_shape(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
    made = builder.emit(builder.call_te(next_of, x))
    n, columns = x.ty.shape.values
    return builder.call_te(topi.reshape, made, (n, 1, columns))


def test_an_output_that_is_a_result_in_another_shape_is_written_by_its_kernel() -> None:
    mod = into_entry()(rewrite_reshapes()(module(in_another_shape)))
    into = mod[INTO_ENTRY]
    assert [list(param.ty.shape)[1:] for param in into.params] == [[4], [1, 4]]
    values = [binding.value for block in into.body.blocks for binding in block.bindings]
    place, call, result = values
    assert is_call(place, "relax.reshape")
    assert place.args[0].same_as(into.params[1])
    assert is_call(call, "relax.call_tir_inplace")
    assert list(map(int, call.attrs.inplace_indices)) == [1]
    assert result.same_as(into.params[1])
    built = tvm.compile(mod, tvm.target.Target({"kind": "llvm"}))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    out = tvm.runtime.tensor(np.zeros((3, 1, 4), np.float32))
    relax.VirtualMachine(built, tvm.cpu())[INTO_ENTRY](tvm.runtime.tensor(x), out)
    np.testing.assert_array_equal(out.numpy(), (x + 1).reshape(3, 1, 4))


def test_an_output_in_another_shape_shares_no_input() -> None:
    mod = rewrite_reshapes()(module(in_another_shape))
    kernel = next(gvar for gvar in mod.get_global_vars() if gvar.name_hint.startswith("next"))
    mod[kernel] = mod[kernel].with_attr(IN_PLACE, [[0, 0]]).with_attr(UNALIGNED, True)
    first, *_ = into_entry()(mod)[INTO_ENTRY].attrs[INTO_OUTPUTS]
    assert list(map(int, first)) == [0, -1, 1, 0]


def test_of_a_result_and_its_view_only_the_result_is_given() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        made = builder.emit(builder.call_te(next_of, x))
        n, columns = x.ty.shape.values
        return relax.Tuple(
            [made, builder.emit(builder.call_te(topi.reshape, made, (n, 1, columns)))]
        )

    into = into_entry()(rewrite_reshapes()(module(body)))[INTO_ENTRY]
    assert [int(number) for number, *_ in into.attrs[INTO_OUTPUTS]] == [0]


def test_views_among_several_outputs_are_written_by_their_kernels() -> None:
    def body(builder: relax.BlockBuilder, x: relax.Var) -> relax.Expr:
        return relax.Tuple([x, builder.emit(in_another_shape(builder, x))])

    into = into_entry()(rewrite_reshapes()(module(body)))[INTO_ENTRY]
    assert [int(number) for number, *_ in into.attrs[INTO_OUTPUTS]] == [1]
    assert list(into.params[1].ty.shape)[1:] == [1, 4]
