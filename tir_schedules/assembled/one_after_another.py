"""One after another: one kernel that runs others in turn, with what lies between them in its own
memory.

    def whole(A, B, C):
        lv = T.sblock_alloc_buffer((64, 32))
        with T.sblock("part0"): ...     # reads A, writes lv
        with T.sblock("part1"): ...     # reads lv and B, writes C
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from microkernels.vector.expressions import Expr
from tir_schedules.core.emission import with_body
from tir_schedules.generic.expressions import const_int, int64
from tir_schedules.generic.other_sizes import resized_buffers, with_sizes
from tir_schedules.generic.read_program import is_number

from .side_by_side import nested


@dataclass(frozen=True)
class Step:
    """A kernel and what it works on.

    Attributes
    ----------
    function : PrimFunc
        What runs.
    operands : tuple of (Var or Expr)
        A tensor for each of its parameters, of as many elements; a number for one that is none.
    shapes : tuple of (sequence of Expr)
        The shapes that its parameters have in this place, if they are known at run time only;
        () for a number, or for all others.
    """

    function: tirx.PrimFunc
    operands: tuple[Expr, ...]
    shapes: tuple[Sequence[Expr], ...] = ()


def one_after_another(
    steps: Sequence[Step], params: Sequence[tirx.Var], between: Sequence[tirx.Var]
) -> tirx.PrimFunc:
    """One kernel that runs others in turn.

    Parameters
    ----------
    steps : sequence of Step
        A function may stand there several times.
    params : sequence of Var
        The tensors that it is given.
    between : sequence of Var
        Those that it needs besides.

    Returns
    -------
    PrimFunc
    """
    bodies = [_body(step, f"part{number}") for number, step in enumerate(steps)]
    whole = bodies[0] if len(bodies) == 1 else tirx.SeqStmt(bodies)
    root = s_tir.SBlock([], [], [], "root", whole, None, list(between))
    return tirx.PrimFunc(list(params), s_tir.SBlockRealize([], True, root))


def _body(step: Step, name: str) -> tirx.Stmt:
    """What a kernel does, of other tensors."""
    function = s_tir.renew_defs(step.function)
    pairs: dict[tirx.Var, Any] = dict(zip(function.params, step.operands, strict=True))
    sizes = {each: pairs.pop(each) for each in [*pairs] if is_number(each)}
    for param, shape in zip(function.params, step.shapes, strict=False):
        if param in pairs:
            known = zip(param.shape, shape, strict=True)
            sizes |= {extent: size for extent, size in known if isinstance(extent, tirx.Var)}
    same = resized_buffers(pairs, sizes)
    views: list[tirx.Stmt] = []
    for param, buffer in pairs.items():
        view = same.get(param, param)
        if tvm_ffi.structural_equal(list(map(_wide, view.shape)), list(map(_wide, buffer.shape))):
            same[param] = buffer
        else:
            views.append(tirx.DeclBuffer(view, data=buffer.data))
    body = nested(with_sizes(function.body, sizes, same), name)
    if not views:
        return body
    block = body.block
    inside = tirx.SeqStmt([*views, block.body])
    return s_tir.SBlockRealize([], True, with_body(block, inside, block.annotations))


def _wide(extent: Expr) -> Expr:
    """An extent as it can be compared: a number of 64 bits, or what it is."""
    number = const_int(extent)
    return extent if number is None else int64(number)
