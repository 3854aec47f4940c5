"""Replaces sizes in programs: variables that extents are made of, and the buffers that have them.

Before

    buffer = T.sblock_alloc_buffer((n, 64))     # n -> batch * 2

After

    buffer = T.sblock_alloc_buffer((batch * 2, 64))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tvm import tirx

from .expressions import substitute, variables_of
from .read_program import folded


def resized_buffers(
    buffers: Iterable[tirx.Var], values: Mapping[tirx.Var, Any]
) -> dict[tirx.Var, tirx.Var]:
    """For each buffer with an extent that changes, one with the others."""
    found = {}
    for buffer in buffers:
        shape = getattr(buffer, "shape", None)
        if shape is None or not any(variables_of(extent) & values.keys() for extent in shape):
            continue
        found[buffer] = tirx.decl_buffer(
            [folded(substitute(extent, values)) for extent in shape],
            str(buffer.dtype),
            str(buffer.name),
            strides=[substitute(stride, values) for stride in buffer.strides],
            elem_offset=substitute(buffer.elem_offset, values),
            scope=buffer.scope(),
            data_alignment=int(buffer.data_alignment),
            offset_factor=int(buffer.offset_factor),
            layout=None,
        )
    return found


def with_sizes(
    body: tirx.Stmt,
    values: Mapping[tirx.Var, Any],
    known: Mapping[tirx.Var, tirx.Var] | None = None,
) -> tirx.Stmt:
    """A statement with other sizes.

    Parameters
    ----------
    body : tirx.Stmt
        It stays as it is.
    values : mapping
        Variable -> what stands in its place.
    known : mapping, optional
        Buffers that have a replacement already.
    """
    renewed = {**resized_buffers(variables_of(body), values), **(known or {})}
    return substitute(body, {**values, **renewed})
