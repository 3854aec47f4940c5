"""Copies a call of any Relax operator with other operands and some other attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, relax


def with_attrs(call: relax.Call, args: Sequence[relax.Expr], **changed: Any) -> relax.Call:
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
    attrs = call.attrs
    if changed:
        info = type(attrs).__tvm_ffi_type_info__
        values = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = ir.make_node(info.type_key, **{**values, **changed})
    return relax.Call(call.op, list(args), attrs, call.ty_args)
