"""Copies a call of any Relax operator with other operands and some other attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from microkernels.base.tvm_compat.relax import attrs_with


def with_args(call: relax.Call, args: Sequence[relax.Expr], **changed: Any) -> relax.Call:
    """The same operator of other operands.

    Parameters
    ----------
    call : relax.Call
        A call of an operator.
    args : sequence of relax.Expr
        All operands.
    **changed
        Attributes that have other values than in `call`.
    """
    attrs = attrs_with(call.attrs, **changed) if changed else call.attrs
    return relax.Call(call.op, list(args), attrs, call.ty_args)
