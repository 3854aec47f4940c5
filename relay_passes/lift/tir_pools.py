"""Reads blocks that are a pool together.

Before

    padded[n, c, i, j] = T.if_then_else(..., x[n, c, i - 1, j - 1], T.float32(-3.4028235e38))
    y[n, c, i, j] = T.max(y[n, c, i, j], padded[n, c, i * 2 + u, j * 2 + v])

After

    gv = R.nn.max_pool2d(x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])

Attributes are read from the indices. They are right if TVM legalises that operator to these very
blocks, which is simpler to see than what the number is that a mean divides a sum by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad

from microkernels.vector.expressions import Expr
from relay_passes.ir.graph import size_of
from relay_passes.ir.rewrite import is_kernel
from tir_schedules.generic.expressions import substitute, variables_of
from tir_schedules.generic.nest import Nest, read_program
from tir_schedules.tensorize.arrangement import RefusedError

from .emission import Emission
from .in_turns import in_caller_sizes
from .tir_convolution import SPATIAL, factor_of
from .tir_elements import Tensors, shown
from .tir_values import only_reader, padding_of

_OPERATORS: dict[Any, dict[int, Callable[..., relax.Expr]]] = {
    tirx.Max: {rank: getattr(relax.op.nn, f"max_pool{rank}d") for rank in (1, 2, 3)},
    tirx.Add: {rank: getattr(relax.op.nn, f"avg_pool{rank}d") for rank in (1, 2, 3)},
}


@dataclass(frozen=True)
class Pool:
    """Blocks that may be one pool.

    Attributes
    ----------
    source : tirx.Var
        What is pooled.
    nests : tuple of Nest
        All blocks, in order.
    members : tuple of int
        Those before the last one.
    kind : type
        tirx.Max, or tirx.Add of a mean.
    padding : tuple of int
        Numbers before and after each dimension.
    load : TensorLoad
        What is reduced.
    """

    source: tirx.Var
    nests: tuple[Nest, ...]
    members: tuple[int, ...]
    kind: type
    padding: tuple[int, ...]
    load: TensorLoad


def find_pools(nests: Sequence[Nest]) -> dict[int, Pool]:
    """The pools of a function, by the position of their last block."""
    found: dict[int, Pool] = {}
    writers = {store.buffer: number for number, nest in enumerate(nests) for store in nest.stores}
    for number, nest in enumerate(nests):
        read = _reduced(nest)
        if read is None:
            continue
        kind, load = read
        source, members = load.source, [number]
        widths: tuple[int, ...] = (0,) * (2 * len(load.indices))
        before = writers.get(source)
        around = None if before is None else padding_of(nests[before])
        if before is not None and around is not None and only_reader(nests, before) == number:
            source, widths = around.source, around.widths
            members.insert(0, before)
        if kind is tirx.Add:
            divided = only_reader(nests, number)
            if divided is None or nests[divided].reduce:
                continue
            members.append(divided)
        blocks = tuple(nests[member] for member in members)
        found[members[-1]] = Pool(source, blocks, tuple(members[:-1]), kind, widths, load)
    return found


def read_pool(block: Emission, tensors: Tensors, pool: Pool) -> relax.Expr:
    """Emits a pool.

    Raises
    ------
    RefusedError
        If TVM has none that is these blocks.
    """
    if pool.source not in tensors:
        raise RefusedError("a tensor that is not written yet")
    x = tensors[pool.source]
    for attrs in _guesses(pool):
        operator = _OPERATORS[pool.kind][len(attrs["pool_size"])]
        if _is_written_as(relax.Var("x", x.ty), operator, attrs, pool):
            return block.emit(operator(x, **attrs))
    raise RefusedError("a pool that no operator is")


def _reduced(nest: Nest) -> tuple[type, TensorLoad] | None:
    """What a block reduces over windows, and how; None if it does not."""
    if not nest.reduce or len(nest.stores) != 1 or nest.lets or nest.epilogue:
        return None
    store = nest.stores[0]
    kind = type(store.value)
    if kind not in _OPERATORS:
        return None
    loads = [shown(side) for side in (store.value.a, store.value.b)]
    others = [
        load
        for load in loads
        if isinstance(load, TensorLoad) and not load.source.same_as(store.buffer)
    ]
    if len(others) != 1 or len(others[0].indices) != len(store.indices):
        return None
    reduced = {axis.var for axis in nest.reduce}
    windows = [index for index in others[0].indices if variables_of(index) & reduced]
    plain = all(isinstance(index, tirx.Var) for index in windows)
    return None if plain else (kind, others[0])


def _guesses(pool: Pool) -> Iterator[dict[str, Any]]:
    """Attributes that the blocks may have been made of."""
    nest = pool.nests[-1 if pool.kind is tirx.Max else -2]
    indices, out = pool.load.indices, nest.stores[0].indices
    spatial = SPATIAL.get(len(indices) - 2)
    if spatial is None:
        return
    for layout in (f"NC{spatial}", f"N{spatial}C"):
        places = [layout.index(letter) for letter in spatial]
        windows = [_window(indices[place], out[place], nest) for place in places]
        known = [window for window in windows if window is not None]
        if len(known) < len(windows):
            continue
        sizes, strides, dilation = map(list, zip(*known, strict=True))
        before = [pool.padding[2 * place] for place in places]
        after = [pool.padding[2 * place + 1] for place in places]
        for padding, ceil in (([*before, *after], False), ([*before, *before], True)):
            for counted in (False, True) if pool.kind is tirx.Add else (False,):
                yield {
                    "pool_size": sizes,
                    "strides": strides,
                    "padding": padding,
                    "dilation": dilation,
                    "ceil_mode": ceil,
                    "count_include_pad": counted,
                    "layout": layout,
                    "out_layout": layout,
                }


def _window(index: Expr, place: Expr, nest: Nest) -> tuple[int, int, int] | None:
    """(taps, stride, dilation) along an axis."""
    inside = [axis for axis in nest.reduce if axis.var in variables_of(index)]
    stride = factor_of(index, place)
    if len(inside) > 1 or stride is None:
        return None
    if not inside:
        return 1, stride or 1, 1
    dilation = factor_of(index, inside[0].var)
    return None if not dilation else (inside[0].extent, stride or 1, dilation)


def _is_written_as(x: relax.Var, operator: Any, attrs: dict[str, Any], pool: Pool) -> bool:
    """Whether TVM writes an operator as the blocks of a pool."""
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(operator(x, **attrs)))
        builder.emit_func_output(result)
    written = relax.transform.LegalizeOps()(builder.get())
    (function,) = filter(is_kernel, written.functions.values())
    call = written["main"].body.blocks[0].bindings[0].value
    function, _ = in_caller_sizes(function, list(call.args[1].fields), [result.ty])
    theirs = read_program(function, size_of).nests
    if len(theirs) != len(pool.nests):
        return False
    same: dict[tirx.Var, Expr] = {function.params[0]: pool.source}
    return all(_is_same(one, other, same) for one, other in zip(theirs, pool.nests, strict=True))


def _is_same(theirs: Nest, mine: Nest, same: dict[tirx.Var, Expr]) -> bool:
    """Whether two blocks compute the same; `same` has what theirs reads, and receives more."""
    pairs = (theirs.spatial, mine.spatial), (theirs.reduce, mine.reduce)
    if any([a.extent for a in x] != [a.extent for a in y] for x, y in pairs):
        return False
    same |= {a.var: b.var for a, b in zip(theirs.axes(), mine.axes(), strict=True)}
    (their,), (own,) = theirs.stores, mine.stores
    if [*map(theirs.size, their.buffer.shape)] != [*map(mine.size, own.buffer.shape)]:
        return False
    same[their.buffer] = own.buffer
    values = [*their.indices, their.value], [*own.indices, own.value]
    if (their.init is None) != (own.init is None):
        return False
    if their.init is not None and own.init is not None:
        values[0].append(their.init)
        values[1].append(own.init)
    return all(
        tvm_ffi.structural_equal(substitute(a, same), b) for a, b in zip(*values, strict=True)
    )
