"""Which chains become one attention, where it reads its operands and writes its result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import IRModule, relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from microkernels.isa import isa_named
from relay_passes.ir.functions import COMPOSITE, REASON, REGION
from relay_passes.ir.graph import op_name
from relay_passes.regions.merge_attention import REASON as ONE_PROGRAM
from relay_passes.regions.merge_attention import find_attention, merge_attention
from relay_passes.regions.merge_regions import merging_pass
from relay_passes.regions.partition import partition
from tests.relay_passes.graphs import Body, module, regions, run
from tests.relay_passes.quantized import constant as number
from tests.relay_passes.quantized import quantize
from tests.relay_passes.region_checks import assert_equal
from tir_schedules.core.region import EpilogueOp, Region, Tensor
from tir_schedules.core.template import template_for

op = relax.op
F, B, U8, I8, I32 = "float32", "bfloat16", "uint8", "int8", "int32"
ISA = isa_named("avx512_bf16")
RNG = np.random.default_rng(0)
INFINITY = np.float32(np.inf)
Expr = relax.Expr
Shapes = tuple[tuple[tuple[int, ...], str], ...]

S, H, D = 5, 4, 3  # rows, heads, columns
ROWS: Shapes = (((2, S, H * D), F),) * 3
MASK = ((2, 1, 1, S), F)


def attention(q: Expr, k: Expr, v: Expr, *mask: Expr, scale: float = 0.5) -> Expr:
    """Attention of heads stored as [B, H, S, D], the result as well."""
    q, k, v = (normal(x) for x in (q, k, v))
    axes = [*range(len(k.ty.shape.values))]
    scores = op.matmul(q, op.permute_dims(k, [*axes[:-2], axes[-1], axes[-2]]))
    scores = op.multiply(scores, relax.const(np.float32(scale)))
    for each in mask:
        scores = op.add(scores, each)
    return op.matmul(op.nn.softmax(scores, axis=-1), v)


def heads(x: Expr, count: int = H) -> Expr:
    """[B, S, H D] as [B, H, S, D]."""
    x = normal(x)
    batch, rows, columns = (int(extent.value) for extent in x.ty.shape.values)
    return op.permute_dims(op.reshape(x, (batch, rows, count, columns // count)), (0, 2, 1, 3))


def rows(x: Expr) -> Expr:
    """The inverse of `heads`."""
    x = normal(x)
    batch, count, length, columns = (int(extent.value) for extent in x.ty.shape.values)
    return op.reshape(op.permute_dims(x, (0, 2, 1, 3)), (batch, length, count * columns))


def normal(x: Expr) -> Expr:
    """Binds an expression, so that its type is known."""
    return relax.BlockBuilder.current().emit(x)


def merged(body: Body, *shapes: tuple[tuple[int, ...], str]) -> tuple[IRModule, IRModule]:
    """The partitioned module, and the module with attentions merged."""
    mod = module(body, *shapes)
    result = merge_attention(ISA)(partition(ISA, [])(mod))
    relax.analysis.well_formed(result)
    return mod, result


def check(body: Body, *shapes: tuple[tuple[int, ...], str], **attrs: Any) -> Region:
    """The only region of a body is an attention that computes what the body does.

    The template's reference, which reads and writes by the strides, is compared with TVM's own
    kernels on the original module. `attrs` must be among the region's attributes.
    """
    mod, result = merged(body, *shapes)
    (region,) = regions(result)
    assert region.op == "attention"
    assert {name: region.attrs.get(name) for name in attrs} == attrs
    arrays = [RNG.standard_normal(shape).astype(dtype) for shape, dtype in shapes]
    wanted = run(mod, arrays)
    # Operators and their order are equal; FMA in other fused kernels may round once less.
    assert_equal(run(result, arrays), wanted)
    values = dict(zip(result["main"].params, arrays, strict=True))
    *views, binding = result["main"].body.blocks[0].bindings
    for view in views:
        assert op_name(view.value) == "relax.reshape", "something is left beside the call"
        shape = [int(extent.value) for extent in view.var.ty.shape.values]
        values[view.var] = values[view.value.args[0]].reshape(shape)
    stored = [
        values[argument] if argument in values else argument.value.numpy()
        for argument in binding.value.args
    ]
    reference = template_for("attention").reference(region, stored)
    # Errors of f32: sums of at most 8 products of a few units each, each to 2^-24.
    np.testing.assert_allclose(reference, wanted[0], rtol=1e-5, atol=1e-5)
    return region


def plain(q: Expr, k: Expr, v: Expr, *mask: Expr) -> Expr:
    """As exporters write it: reshape, permute, matmul, scale, mask, softmax, matmul, and back."""
    return rows(attention(*(heads(x) for x in (q, k, v)), *mask))


PARTS = (
    Region(
        op="batch_matmul",
        inputs=(Tensor((2, H, S, D), F), Tensor((2, H, D, S), F)),
        operands=(Tensor((2, 1, 1, S), F),),
        output=Tensor((2, H, S, S), F),
        epilogue=(
            EpilogueOp("constant", value=np.float32(1.7).item()),
            EpilogueOp("divide", (0, 2)),
            EpilogueOp("add", (3, 1)),
        ),
    ),
    Region(
        op="softmax",
        inputs=(Tensor((2, H, S, S), F),),
        output=Tensor((2, H, S, S), F),
        attrs={"axis": 3},
    ),
    Region(
        op="batch_matmul",
        inputs=(Tensor((2, H, S, S), F), Tensor((2, H, S, D), F)),
        output=Tensor((2, H, S, D), F),
    ),
)
STRIDES = ("q_strides", "k_strides", "v_strides", "out_strides")
JSON = Region(
    op="attention",
    inputs=(*(Tensor((2, S, H * D), F),) * 3, Tensor((2, 1, 1, S), F)),
    output=Tensor((2, S, H * D), F),
    attrs={"batch": (2, 4)}
    | {f"{name}_strides": (60, 3, 12, 1) for name in ("q", "k", "v", "out")},
    parts=PARTS,
).to_json()


def test_the_plain_form_becomes_one_function() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(
            q: R.Tensor((2, 5, 12), F),
            k: R.Tensor((2, 5, 12), F),
            v: R.Tensor((2, 5, 12), F),
            mask: R.Tensor((2, 1, 1, 5), F),
        ):
            with R.dataflow():
                lv = R.reshape(q, R.shape([2, 5, 4, 3]))
                lv1 = R.reshape(k, R.shape([2, 5, 4, 3]))
                lv2 = R.reshape(v, R.shape([2, 5, 4, 3]))
                lv3 = R.permute_dims(lv, axes=[0, 2, 1, 3])
                lv4 = R.permute_dims(lv1, axes=[0, 2, 3, 1])
                lv5 = R.matmul(lv3, lv4)
                lv6 = R.divide(lv5, R.const(1.7, F))
                lv7 = R.add(lv6, mask)
                lv8 = R.nn.softmax(lv7)
                lv9 = R.permute_dims(lv2, axes=[0, 2, 1, 3])
                lv10 = R.matmul(lv8, lv9)
                lv11 = R.permute_dims(lv10, axes=[0, 2, 1, 3])
                gv = R.reshape(lv11, R.shape([2, 5, 12]))
                R.output(gv)
            return gv

    @I.ir_module
    class After:
        @R.function(private=True)
        def fused_attention(
            p0: R.Tensor((2, 5, 12), F),
            p1: R.Tensor((2, 5, 12), F),
            p2: R.Tensor((2, 5, 12), F),
            p3: R.Tensor((2, 1, 1, 5), F),
        ):
            R.func_attr({COMPOSITE: "tvm_hybrid.attention", REASON: ONE_PROGRAM, REGION: JSON})
            with R.dataflow():
                lv = R.reshape(p0, R.shape([2, 5, 4, 3]))
                lv1 = R.reshape(p1, R.shape([2, 5, 4, 3]))
                lv2 = R.reshape(p2, R.shape([2, 5, 4, 3]))
                lv3 = R.permute_dims(lv, axes=[0, 2, 1, 3])
                lv4 = R.permute_dims(lv1, axes=[0, 2, 3, 1])
                lv5 = R.matmul(lv3, lv4)
                lv6 = R.divide(lv5, R.const(1.7, F))
                lv7 = R.add(lv6, p3)
                lv8 = R.nn.softmax(lv7)
                lv9 = R.permute_dims(lv2, axes=[0, 2, 1, 3])
                lv10 = R.matmul(lv8, lv9)
                lv11 = R.permute_dims(lv10, axes=[0, 2, 1, 3])
                lv12 = R.reshape(lv11, R.shape([2, 5, 12]))
                gv: R.Tensor((2, 5, 12), F) = lv12
                R.output(gv)
            return gv

        @R.function
        def main(
            q: R.Tensor((2, 5, 12), F),
            k: R.Tensor((2, 5, 12), F),
            v: R.Tensor((2, 5, 12), F),
            mask: R.Tensor((2, 1, 1, 5), F),
        ):
            cls = After
            with R.dataflow():
                gv = cls.fused_attention(q, k, v, mask)
                R.output(gv)
            return gv

    result = merge_attention(ISA)(partition(ISA, [])(Before))
    assert_structural_equal(result, After)


def test_masks_and_scales_stay_steps_of_the_scores() -> None:
    region = check(plain, *ROWS, MASK, ((2, H, S, S), F))
    assert [step.op for step in region.parts[0].epilogue] == ["constant", "multiply", "add", "add"]
    assert [tensor.shape for tensor in region.inputs[3:]] == [(2, 1, 1, S), (2, H, S, S)]


def test_grouped_heads_have_stride_0() -> None:
    def repeated(x: Expr) -> Expr:
        x = op.expand_dims(heads(x, 2), 2)
        return op.reshape(op.broadcast_to(x, (2, 2, 2, S, D)), (2, H, S, D))

    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        return rows(attention(heads(q), repeated(k), repeated(v)))

    few = ((2, S, 2 * D), F)
    check(
        body,
        ROWS[0],
        few,
        few,
        batch=(2, 2, 2),
        q_strides=(60, 6, 3, 12, 1),
        k_strides=(30, 3, 0, 6, 1),
    )


def test_one_head_for_all_queries_by_broadcasting_or_repeating() -> None:
    def repeated(q: Expr, k: Expr, v: Expr) -> Expr:
        return attention(q, op.repeat(k, H, 1), op.repeat(v, H, 1))

    q, one = ((2, H, S, D), F), ((2, 1, S, D), F)
    for body in (repeated, attention):
        check(body, q, one, one, batch=(2, 4), k_strides=(15, 0, 3, 1), v_strides=(15, 0, 3, 1))


def test_slices_of_one_projection_are_read_from_it() -> None:
    def sliced(x: Expr) -> Expr:
        parts = [op.strided_slice(x, [2], [12 * i], [12 * i + 12]) for i in range(3)]
        return plain(*parts)

    def split(x: Expr) -> Expr:
        return plain(*normal(op.split(x, 3, axis=-1)))

    def first_permuted(x: Expr) -> Expr:
        x = op.permute_dims(op.reshape(x, (2, S, 3, H, D)), (2, 0, 3, 1, 4))
        parts = [op.squeeze(op.strided_slice(x, [0], [i], [i + 1]), 0) for i in range(3)]
        return rows(attention(*parts))

    for body in (sliced, split, first_permuted):
        region = check(
            body, ((2, S, 3 * H * D), F), q_strides=(180, 3, 36, 1), k_offset=12, v_offset=24
        )
        assert "q_offset" not in region.attrs
        assert region.inputs == (Tensor((2, S, 36), F),) * 3


def test_heads_in_three_dimensions() -> None:
    flat = ((2 * H, S, D), F)
    check(attention, flat, flat, flat, batch=(8,), q_strides=(15, 3, 1), out_strides=(15, 3, 1))


def test_reshapes_between_the_three_are_passed() -> None:
    def body(q: Expr, k: Expr, v: Expr, mask: Expr) -> Expr:
        scores = op.add(op.matmul(q, op.permute_dims(k, (0, 2, 1))), mask)
        probabilities = op.nn.softmax(op.reshape(scores, (2, H, S, S)))
        return op.matmul(op.reshape(probabilities, (2 * H, S, S)), v)

    flat = ((2 * H, S, D), F)
    region = check(body, flat, flat, flat, ((2 * H, S, S), F), batch=(8,))
    assert region.parts[0].operands == (Tensor((2, H, S, S), F),)
    assert region.inputs[3] == Tensor((2, H, S, S), F)


def test_lengths_and_widths_may_differ() -> None:
    q, k, v = ((1, H, 2, D), F), ((1, H, 7, D), F), ((1, H, 7, 6), F)
    region = check(attention, q, k, v, batch=(4,), v_strides=(42, 6, 1))
    assert region.output == Tensor((1, H, 2, 6), F)


@pytest.mark.sampled
@pytest.mark.parametrize("lower", [-INFINITY, np.float32(-3.4e38)])
def test_a_constant_causal_mask_becomes_a_number(lower: np.float32) -> None:
    mask = np.where(np.tri(S, S, dtype=bool), np.float32(0), lower)[None, None]
    region = check(lambda *x: plain(*x, relax.const(mask)), *ROWS, causal=0)
    assert len(region.inputs) == 3 and region.parts[0].operands == ()


def test_a_causal_mask_that_is_made_of_operators_becomes_a_number() -> None:
    shapes = ((1, H, 2, D), F), ((1, H, 7, D), F), ((1, H, 7, D), F)

    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        full = normal(op.broadcast_to(relax.const(-INFINITY), (2, 7)))
        return attention(q, k, v, op.triu(full, 6))

    result = merge_attention(ISA)(partition(ISA, [])(_as_written(body, *shapes)))
    (region,) = regions(result)
    assert region.attrs["causal"] == 5 and len(region.inputs) == 3
    (binding,) = result["main"].body.blocks[0].bindings  # the mask is in the function
    assert len(binding.value.args) == 3
    check(body, *shapes, causal=5)


def _as_written(body: Body, *shapes: tuple[tuple[int, ...], str]) -> IRModule:
    """main(*shapes) without folding of constants."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{i}", relax.TensorType(*shape)) for i, shape in enumerate(shapes)]
    with builder.function("main", parameters):
        with builder.dataflow():
            gv = builder.emit_output(builder.normalize(body(*parameters)))
        builder.emit_func_output(gv)
    return relax.transform.CanonicalizeBindings()(builder.get())


def test_scores_chosen_by_a_causal_condition() -> None:
    visible = relax.const(np.tri(S, S, dtype=bool)[None, None])
    hidden = relax.const(~np.tri(S, S, dtype=bool))
    low = relax.const(-INFINITY)

    def body(q: Expr, k: Expr, v: Expr, exchanged: bool = False) -> Expr:
        scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
        chosen = op.where(hidden, low, scores) if exchanged else op.where(visible, scores, low)
        return op.matmul(op.nn.softmax(op.multiply(chosen, relax.const(0.5))), v)

    shapes = (((2, H, S, D), F),) * 3
    for choice in (body, lambda *x: body(*x, exchanged=True)):
        region = check(choice, *shapes, causal=0)
        assert [step.op for step in region.parts[0].epilogue] == ["constant", "multiply"]


def test_padding_beside_a_causal_mask_stays() -> None:
    mask = relax.const(np.where(np.tri(S, S, dtype=bool), 0, -INFINITY).astype(F))
    region = check(lambda *x: plain(*x, mask), *ROWS, MASK, causal=0)
    assert region.parts[0].operands == (Tensor((2, 1, 1, S), F),)


def test_int8_with_constant_scales() -> None:
    def factors(a: Expr, b: Expr, a_zero: int, b_zero: int) -> Expr:
        a = op.subtract(op.astype(a, I32), number(a_zero, I32))
        b = op.subtract(op.astype(b, I32), number(b_zero, I32)) if b_zero else op.astype(b, I32)
        return op.astype(op.matmul(a, b, out_dtype=I32), F)

    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        q, k, v = (heads(x) for x in (q, k, v))
        scores = factors(q, op.permute_dims(k, (0, 1, 3, 2)), 118, 0)
        p = quantize(op.nn.softmax(op.multiply(scores, relax.const(1e-4))), 1 / 255, 0)
        result = op.multiply(factors(p, v, 3, 7), relax.const(2e-5))
        return rows(quantize(result, 0.02, 100))

    shapes = ((2, S, 12), U8), ((2, S, 12), I8), ((2, S, 12), I8)
    _, result = merged(body, *shapes)
    (region,) = regions(result)
    scores, softmax, product = region.parts
    assert scores.attrs == {"a_zero_point": 118}
    assert product.attrs == {"a_zero_point": 3, "b_zero_point": 7}
    assert [step.op for step in softmax.epilogue] == ["constant", "constant", "quantize"]
    assert region.output == Tensor((2, S, 12), U8) and region.attrs["q_strides"] == (60, 3, 12, 1)


def test_bfloat16_and_what_is_rounded_on_the_way() -> None:
    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        q, k, v = (heads(op.astype(x, B)) for x in (q, k, v))
        scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)), out_dtype=F)
        probabilities = op.astype(op.nn.softmax(scores), B)
        return rows(op.astype(op.matmul(probabilities, v, out_dtype=F), B))

    for dtype in (F, B):
        shape = ((2, S, 12), dtype)
        _, result = merged(body, shape, shape, shape)
        *_, region = regions(result)
        assert [part.attrs.get("rounded") for part in region.parts] == [B, None, B]
        assert [step.op for step in region.parts[1].epilogue] == ["cast"]
        assert region.output == Tensor((2, S, 12), B)


def test_keys_and_values_that_are_rounded_and_repeated() -> None:
    """Grouped queries over caches of float32: the kernel rounds what it reads."""

    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        q = op.astype(q, B)
        k, v = (op.reshape(op.astype(x, B), (2, 2, 1, S, 4)) for x in (k, v))
        k, v = (op.reshape(op.broadcast_to(x, (2, 2, 2, S, 4)), (2, 4, S, 4)) for x in (k, v))
        scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)), out_dtype=F)
        probabilities = op.astype(op.nn.softmax(scores), B)
        return op.matmul(probabilities, v, out_dtype=F)

    few, many = ((2, 2, S, 4), F), ((2, 4, S, 4), F)
    _, result = merged(body, many, few, few)
    *others, region = regions(result)
    assert [part.attrs.get("rounded") for part in region.parts] == [B, None, B]
    assert [tensor.dtype for tensor in region.inputs] == [F, F, F]
    assert not others
    assert region.attrs["k_strides"] == (4 * S, 0, 4, 1)  # two heads of q share one of k


def refusals(body: Body, *shapes: tuple[tuple[int, ...], str]) -> list[str]:
    """The reasons why chains of a body are no attention."""
    _, result = merged(body, *shapes)
    found = regions(result)
    assert all(region.op != "attention" for region in found)
    return [
        str(function.attrs[REASON]).removeprefix("template softmax; no attention: ")
        for _, function in result.functions_items()
        if REASON in function.attrs
    ]


def test_values_that_are_needed_elsewhere_keep_the_chain_apart() -> None:
    heads_of = (((2, H, S, D), F),) * 3
    needed = "the scores or the probabilities are needed elsewhere"

    def probabilities(q: Expr, k: Expr, v: Expr) -> list[Expr]:
        p = normal(op.nn.softmax(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))))
        return [op.matmul(p, v), op.tanh(p)]

    def scores(q: Expr, k: Expr, v: Expr) -> list[Expr]:
        s = normal(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))))
        return [op.matmul(op.nn.softmax(s), v), op.tanh(s)]

    def twice(q: Expr, k: Expr, v: Expr) -> Expr:
        p = normal(op.nn.softmax(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))))
        return op.matmul(p, p)

    for body in (probabilities, scores, twice):
        assert refusals(body, *heads_of) == [needed]


def test_a_softmax_along_another_axis_is_no_attention() -> None:
    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        scores = op.matmul(q, op.permute_dims(k, (0, 1, 3, 2)))
        return op.matmul(op.nn.softmax(scores, axis=2), v)

    shapes = (((2, H, S, D), F),) * 3
    assert refusals(body, *shapes) == ["the softmax is not along the last axis"]


def test_probabilities_that_are_permuted_are_no_attention() -> None:
    """Each row of such a product sums over queries."""

    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        probabilities = op.nn.softmax(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))))
        return op.matmul(op.permute_dims(probabilities, (0, 1, 3, 2)), v)

    assert refusals(body, *(((2, H, S, D), F),) * 3) == ["the probabilities are permuted"]


def test_a_zero_point_that_is_found_at_run_time_is_refused() -> None:
    def body(q: Expr, k: Expr, v: Expr, zero: Expr) -> Expr:
        a = op.subtract(op.astype(q, I32), op.astype(zero, I32))
        b = op.astype(op.permute_dims(k, (0, 1, 3, 2)), I32)
        scores = op.astype(op.matmul(a, b, out_dtype=I32), F)
        return op.matmul(op.nn.softmax(scores), v)

    integer, floating = ((2, H, S, D), U8), ((2, H, S, D), F)
    shapes = integer, ((2, H, S, D), I8), floating, ((), U8)
    assert refusals(body, *shapes) == ["a zero point is not known at compile time"]


def test_what_the_template_refuses_stays_apart() -> None:
    mod = partition(ISA, [])(module(attention, *(((2, H, S, D), F),) * 3))
    refuse = merging_pass("test", lambda graph: find_attention(graph, lambda _: "not today"))
    reasons = [str(f.attrs[REASON]) for _, f in refuse(mod).functions_items() if REASON in f.attrs]
    assert reasons == ["template softmax; no attention: not today"]


def test_a_softmax_without_both_products_is_not_mentioned() -> None:
    def body(q: Expr, k: Expr, v: Expr) -> list[Expr]:
        return [op.nn.softmax(op.matmul(q, k)), op.matmul(op.nn.softmax(v), q)]

    shapes = (((2, 4, S, S), F),) * 3
    assert refusals(body, *shapes) == []


SINKED: Shapes = (*((((2, H, S, D), F),) * 3), ((H,), F))


def with_sink(kept: int = S, first: int = 0, columns: int = 1) -> Body:
    """Sinks as GPT-OSS writes them: columns of the scores that the product does not read."""

    def body(q: Expr, k: Expr, v: Expr, sink: Expr) -> Expr:
        scores = normal(op.multiply(op.matmul(q, op.permute_dims(k, (0, 1, 3, 2))), number(0.5, F)))
        column = op.broadcast_to(op.reshape(sink, (1, H, 1, 1)), (2, H, S, columns))
        shares = normal(op.nn.softmax(normal(op.concat([scores, column], axis=-1)), axis=-1))
        return op.matmul(normal(op.strided_slice(shares, [3], [first], [first + kept])), v)

    return body


def test_a_sink_is_read_by_head() -> None:
    region = check(with_sink(), *SINKED, sink_strides=(0, 1, 0, 1))
    assert [part.output.shape for part in region.parts[:2]] == [(2, H, S, S)] * 2
    assert region.inputs[3] == Tensor((H,), F)


@pytest.mark.parametrize("other", [{"first": 1}, {"kept": S + 1, "columns": 2}, {"columns": 2}])
def test_other_columns_are_no_sink(other: dict[str, int]) -> None:
    """No sink: the first column is dropped, two columns are dropped, or one of two is."""
    _, result = merged(with_sink(**other), *SINKED[:2], ((2, H, other.get("kept", S), D), F),
                       SINKED[3])  # fmt: skip
    assert "attention" not in [region.op for region in regions(result)]


@pytest.mark.parametrize("narrow", ["float16", B, I8])
def test_keys_and_values_are_read_before_they_are_widened(narrow: str) -> None:
    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        return attention(q, op.astype(k, F), op.astype(v, F))

    stored = ((2, H, S, D), narrow)
    _, result = merged(body, SINKED[0], stored, stored)
    region = next(each for each in regions(result) if each.op == "attention")
    assert [tensor.dtype for tensor in region.inputs] == [F, narrow, narrow]
    assert [part.inputs[1].dtype for part in region.parts[::2]] == [F, F]


@pytest.mark.parametrize("narrow", ["float16", B])
def test_a_cast_that_is_needed_elsewhere_stays(narrow: str) -> None:
    """A cast from bfloat16 with another user is a kernel of its own, so attention reads f32."""

    def body(q: Expr, k: Expr, v: Expr) -> Expr:
        wide = normal(op.astype(k, F))
        return op.add(attention(q, wide, v), attention(v, wide, q))

    _, result = merged(body, SINKED[0], ((2, H, S, D), narrow), SINKED[0])
    found = [each for each in regions(result) if each.op == "attention"]
    assert [each.inputs[1].dtype for each in found] == [F if narrow == B else narrow] * 2
