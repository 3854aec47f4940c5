"""Merges the scores, the softmax and the product of an attention into one region.

Before

    lv = R.reshape(q, R.shape([2, 5, 8, 4]))        # q: [2, 5, 32]; lv1 and lv2 of k and v alike
    lv3 = fused_batch_matmul(lv, lv1, mask)         # attributes: a_axes, b_axes
    lv4 = fused_softmax(lv3)
    lv5 = fused_batch_matmul1(lv4, lv2)             # attribute: out_axes
    gv = R.reshape(lv5, R.shape([2, 5, 32]))

After

    gv = fused_attention(q, k, v, mask)             # attributes: q_strides = "160,4,32,1", ...

q, k and v are read in place: reshapes, permutations, slices and repeated heads become strides, and
the kernel widens k and v of a narrower type to float32, and rounds float32 to the type of the
products. The result is written to where the reshapes
and permutations after it would put it. A causal mask becomes a number (see causal_mask.py). A sink
is the score of one more key, whose value is 0. It is written as a column of the scores that the
softmax reads and the product does not:

    lv3 = R.concat((scores, sinks), axis=-1)        # sinks: [..., 1]
    lv4 = fused_softmax(lv3)
    lv5 = R.strided_slice(lv4, [-1], [0], [-1])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tvm import ir, relax

from microkernels.isa import Isa
from relay_passes.ir.graph import is_call, op_name, region_tensor, variables
from relay_passes.ir.strided_view import Source, StridedView, common_digits, sources, through
from relay_passes.ir.traits import RESHAPES
from tir_schedules.attention.problem import OPERANDS, SINK, WIDENED, with_columns
from tir_schedules.core.attributes import Attribute
from tir_schedules.core.region import Region, Tensor
from tir_schedules.core.template import template_for

from .causal_mask import without_causal_mask
from .merge_regions import Findings, Merge, RegionGraph, merging_pass

OP = "attention"
REASON = "template attention: scores, softmax and product in one program"
_NEEDED_ELSEWHERE = "the scores or the probabilities are needed elsewhere"
# The order in which a batch_matmul reads or stores axes.
_AXES = ("a_axes", "b_axes", "out_axes")


class _Refusal(Exception):
    """Why scores, softmax and product are not merged."""


def merge_attention(isa: Isa) -> ir.transform.Pass:
    """The pass for one instruction set."""

    reject = partial(template_for(OP).rejection, isa=isa)
    return merging_pass("tvm_hybrid.merge_attention", partial(find_attention, reject=reject))


def find_attention(graph: RegionGraph, reject: Callable[[Region], str | None]) -> Findings:
    """Finds every attention of a block, and the reason for every softmax of scores that is in none.

    `reject` returns why the template cannot build a region, or None.
    """
    found = Findings()
    for position in graph.calls("softmax"):
        around = _around(graph, position)
        if around is None:
            continue
        try:
            merge = _merge(graph, position, around)
            reason = reject(merge.region)
            if reason is not None:
                raise _Refusal(reason)
        except _Refusal as refusal:
            found.refusals[position] = f"no attention: {refusal}"
        else:
            found.merges.append(merge)
    return found


@dataclass
class _Around:
    """Positions of the scores and the product around a softmax, and of the glue between them.

    Attributes
    ----------
    sink : relax.Expr or None
        The last column that the softmax reads, if it is no score; else None.
    """

    scores: int = 0
    product: int = 0
    glue: set[int] = field(default_factory=set)
    sink: relax.Expr | None = None


def _around(graph: RegionGraph, softmax: int) -> _Around | None:
    """The scores and the product around a softmax; None if it lacks either."""
    found = _Around()
    glue, before = found.glue, graph.value(softmax).args[0]
    while is_call(made := graph.definition(before), *RESHAPES, "relax.concat"):
        glue.add(graph.position[before])
        if is_call(made, *RESHAPES):
            before = made.args[0]
            continue
        columns = made.args[0].fields if isinstance(made.args[0], relax.Tuple) else ()
        last = region_tensor(columns[-1]) if len(columns) == 2 else None
        if found.sink is not None or last is None or last.shape[-1] != 1:
            return None
        if int(made.attrs.axis) % len(last.shape) != len(last.shape) - 1:
            return None
        before, found.sink = columns
    scores = graph.region_of(before)
    after = graph.bindings[softmax].var
    users = graph.users.get(after, [])
    if found.sink is not None:
        if len(users) != 1 or not _drops_last_column(graph, users[0]):
            return None
        glue.add(users[0])
        after = graph.bindings[users[0]].var
        users = graph.users.get(after, [])
    while len(users) == 1 and op_name(graph.value(users[0])) in RESHAPES:
        glue.add(users[0])
        after = graph.bindings[users[0]].var
        users = graph.users.get(after, [])
    products = set(graph.calls("batch_matmul"))
    product = next((user for user in users if user in products), None)
    if scores is None or scores not in products or product is None:
        return None
    found.scores, found.product = scores, product
    return found if graph.value(product).args[0].same_as(after) else None


def _drops_last_column(graph: RegionGraph, position: int) -> bool:
    """Whether a call drops the last column of a tensor and nothing else."""
    call = graph.value(position)
    if not is_call(call, "relax.strided_slice"):
        return False
    given, kept = region_tensor(call.args[0]), region_tensor(graph.bindings[position].var)
    if given is None or kept is None or given.shape != (*kept.shape[:-1], kept.shape[-1] + 1):
        return False
    _, begins, _, *steps = ([int(getattr(x, "value", -1)) for x in y.fields] for y in call.args[1:])
    return not any(begins) and all(step == 1 for group in steps for step in group)


def _merge(graph: RegionGraph, softmax_at: int, around: _Around) -> Merge:
    """The merge of scores, softmax and product, and of reshapes between them.

    Raises
    ------
    _Refusal
        If no attention region can express them.
    """
    scores_at, product_at = around.scores, around.product
    calls = scores_at, softmax_at, product_at
    scores, softmax, product = map(graph.regions.__getitem__, calls)
    inner = {*calls, *around.glue}
    if graph.still_needed(sorted(inner), product_at):
        raise _Refusal(_NEEDED_ELSEWHERE)
    if around.sink is not None and not softmax.operands:
        softmax = with_columns(softmax, scores.output.shape[-1])
    _check(scores, softmax, product)
    *batch, m, n = softmax.output.shape
    batches = math.prod(batch)
    q_shape, e = scores.inputs[0].shape, product.output.shape[-1]
    d = q_shape[scores.numbers("a_axes", range(len(q_shape)))[-1]]

    masked = _operands(graph, scores_at)
    visible = without_causal_mask(graph, scores, masked)
    parts = (
        _part(visible.region, batch, (m, d), (d, n)),
        softmax,
        _part(product, batch, (m, n), (n, e)),
    )
    choices = [
        list(_read(graph, scores_at, 0, (batches, m, d))),
        # As one row per key.
        [
            replace(place, view=place.view.permuted((0, 2, 1)))
            for place in _read(graph, scores_at, 1, (batches, d, n))
        ],
        list(_read(graph, product_at, 1, (batches, n, e))),
        list(_written(graph, product_at, (batches, m, e))),
    ]
    if around.sink is not None:
        column, axes = (*batch, m, 1), range(len(batch) + 2)
        found = sources(graph, around.sink)
        choices.append(list(_viewed(found, axes, column, (batches, m, 1))))
    for places in itertools.product(*choices):
        attrs = _layout(places)
        if attrs is not None:
            break
    else:
        raise _Refusal("its operands split the heads differently")
    if visible.causal is not None:
        attrs["causal"] = visible.causal

    dropped = [expr for expr in masked if not any(expr.same_as(kept) for kept in visible.operands)]
    members = {*inner, *_computed(graph, dropped)}
    members.update(position for place in places for position in place.members)
    *stored, out = (place.expr for place in places[: len(OPERANDS)])
    sink = [place.expr for place in places[len(OPERANDS) :]]
    arguments = (*stored, *visible.operands, *_operands(graph, product_at), *sink)
    if any(graph.position.get(argument) in inner for argument in arguments):
        raise _Refusal(_NEEDED_ELSEWHERE)
    tensors = [region_tensor(expr) for expr in (*stored, out, *sink)]
    q, k, v, shape, *sinks = (tensor for tensor in tensors if tensor is not None)
    parts = _of_stored(parts[0], k), softmax, _of_stored(parts[2], v)
    region = Region(
        op=OP,
        inputs=(q, k, v, *parts[0].operands, *parts[2].operands, *sinks),
        output=Tensor(shape.shape, product.output.dtype),
        attrs=attrs,
        parts=parts,
    )
    return Merge(tuple(sorted(members)), region, arguments, REASON)


def _check(scores: Region, softmax: Region, product: Region) -> None:
    """Refuses what an attention region cannot express."""
    *batch, m, n = softmax.output.shape
    if softmax.attrs["axis"] != len(batch) + 1:
        raise _Refusal("the softmax is not along the last axis")
    if softmax.operands:
        raise _Refusal("an operator after the softmax reads another tensor")
    if len(scores.inputs) != 2 or len(product.inputs) != 2:
        raise _Refusal("a zero point is not known at compile time")
    rank = len(scores.output.shape)
    if scores.numbers("out_axes", range(rank)) != tuple(range(rank)):
        raise _Refusal("the scores are stored permuted")
    rank = len(product.inputs[0].shape)
    if product.numbers("a_axes", range(rank)) != tuple(range(rank)):
        raise _Refusal("the probabilities are permuted")
    for shape, last in (
        (scores.output.shape, (m, n)),
        (product.inputs[0].shape, (m, n)),
        (product.output.shape, (m, product.output.shape[-1])),
    ):
        if tuple(shape[-2:]) != last or math.prod(shape[:-2]) != math.prod(batch):
            raise _Refusal("scores, probabilities and result have different batches")


def _operands(graph: RegionGraph, position: int) -> tuple[relax.Expr, ...]:
    """The operands of the epilogue of a call."""
    return tuple(graph.value(position).args)[len(graph.regions[position].inputs) :]


def _part(
    region: Region, batch: Sequence[int], left: tuple[int, int], right: tuple[int, int]
) -> Region:
    """A batch_matmul as a part: its tensors in the shapes in which they are multiplied."""
    before = region.output.shape[:-2]
    return region.replace(
        inputs=tuple(
            Tensor((*batch, *shape), tensor.dtype)
            for shape, tensor in zip((left, right), region.inputs, strict=True)
        ),
        operands=tuple(_rebatched(tensor, before, batch) for tensor in region.operands),
        output=Tensor((*batch, left[0], right[1]), region.output.dtype),
        attrs={name: value for name, value in region.attrs.items() if name not in _AXES},
    )


def _of_stored(part: Region, stored: Tensor) -> Region:
    """A part whose kernel rounds its second operand if that is stored as float32."""
    left, right = part.inputs
    if stored.dtype == "float32":
        right = Tensor(right.shape, stored.dtype)
    return part.replace(inputs=(left, right))


def _rebatched(tensor: Tensor, before: Sequence[int], batch: Sequence[int]) -> Tensor:
    """An operand reshaped to another batch shape of equal size."""
    leading = (1,) * (len(before) + 2 - len(tensor.shape)) + tensor.shape[:-2]
    if list(before) == list(batch) or len(tensor.shape) <= 2:
        return tensor
    if math.prod(leading) == 1:
        return Tensor(tensor.shape[-2:], tensor.dtype)
    if leading == tuple(before):
        return Tensor((*batch, *tensor.shape[-2:]), tensor.dtype)
    raise _Refusal(f"the operand {tensor} has no form for the batch {batch} instead of {before}")


def _read(
    graph: RegionGraph, position: int, index: int, shape: tuple[int, int, int]
) -> Iterator[Source]:
    """The tensors from which a batch_matmul's input may be read, the furthest first."""
    region = graph.regions[position]
    axes = region.numbers(_AXES[index], range(len(region.inputs[index].shape)))
    logical = (*region.output.shape[:-2], *shape[1:])
    given = graph.value(position).args[index]
    same = [partial(_stored, graph, region.attrs.get("rounded"))] * (index == 1)
    found = sources(graph, given, *same)

    def is_free(source: Source) -> bool:
        """Whether nothing else needs the casts passed on the way: each is a kernel of its own."""
        needed = graph.still_needed([*source.members, position], position)
        return not any(member in graph.regions for member in needed)

    yield from _viewed(filter(is_free, found), axes, logical, shape)


def _stored(graph: RegionGraph, rounded: Attribute | None, expr: relax.Expr) -> relax.Expr | None:
    """The tensor before a cast that the kernel does itself: from a narrower type to float32, or
    from float32 to its type `rounded`; else None."""
    call, at = graph.definition(expr), graph.region_of(expr)
    if at is not None:
        region = graph.regions[at]
        steps = [step.op for step in region.epilogue]
        if region.op != "elementwise" or region.operands or steps != ["cast"]:
            return None
    elif not is_call(call, "relax.astype"):
        return None
    assert call is not None
    before, after = region_tensor(call.args[0]), region_tensor(expr)
    if before is None or after is None or before.shape != after.shape:
        return None
    widens = before.dtype in WIDENED and after.dtype == "float32"
    rounds = (before.dtype, after.dtype) == ("float32", rounded)
    return call.args[0] if widens or rounds else None


def _viewed(
    found: Iterable[Source],
    axes: Sequence[int],
    logical: Sequence[int],
    shape: tuple[int, int, int],
) -> Iterator[Source]:
    """The sources that have rows once their axes are permuted, broadcast and reshaped."""
    for source in found:
        view = source.view.permuted(axes).broadcast(logical).reshaped(shape)
        if view is not None and _has_rows(view):
            yield replace(source, view=view)


def _written(graph: RegionGraph, position: int, shape: tuple[int, int, int]) -> Iterator[Source]:
    """The places to which the result may be written, the furthest first, its own place last."""
    region = graph.regions[position]
    var = graph.bindings[position].var
    view: StridedView | None = StridedView.contiguous(region.output.shape)
    assert view is not None
    view = view.permuted(region.numbers("out_axes", range(len(region.output.shape))))
    members: tuple[int, ...] = ()
    places = []
    while view is not None:
        logical = view.inverse().reshaped(shape)
        if logical is not None and _has_rows(logical) and _stride(logical, 2, 1) == 1:
            places.append(Source(var, members, logical))
        user = graph.only_user(var)
        if user is None or op_name(graph.value(user)) not in (*RESHAPES, "relax.permute_dims"):
            break
        var = graph.bindings[user].var
        members = (*members, user)
        view = through(graph, view, var)
    return reversed(places)


def _has_rows(view: StridedView) -> bool:
    """Whether rows and columns each have one stride."""
    return len(view.dims[1]) <= 1 and len(view.dims[2]) <= 1


def _stride(view: StridedView, axis: int, default: int) -> int:
    """Stride of a dimension with at most one digit; `default` if it has none."""
    return view.dims[axis][0][1] if view.dims[axis] else default


def _layout(places: Sequence[Source]) -> dict[str, Attribute] | None:
    """Attributes with the strides of q, k, v and the result; None if heads split differently."""
    digits = common_digits([StridedView(place.view.dims[:1]) for place in places])
    if digits is None:
        return None
    batch, strides = digits
    attrs: dict[str, Attribute] = {"batch": tuple(batch)}
    names = (*OPERANDS, SINK)[: len(places)]
    for name, place, leading in zip(names, places, strides, strict=True):
        last = (_stride(place.view, 1, 0), _stride(place.view, 2, 1))
        attrs[f"{name}_strides"] = (*leading, *last)
        if place.view.offset:
            attrs[f"{name}_offset"] = place.view.offset
    return attrs


def _computed(graph: RegionGraph, exprs: Sequence[relax.Expr]) -> set[int]:
    """Positions of all bindings of the block that some values are computed from."""
    found: set[int] = set()
    pending = [*exprs]
    while pending:
        position = graph.position.get(pending.pop())
        if position is not None and position not in found:
            found.add(position)
            pending += variables(graph.value(position))
    return found
