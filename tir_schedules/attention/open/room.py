"""Keys and values in tensors that may have room for more rows: heads lie apart then.

Caches of a decoder are such tensors where a caller keeps them in a larger array; see
`cache_parameter`.
"""

from __future__ import annotations

import math

from microkernels.vector.expressions import Expr
from tir_schedules.attention.problem import AttentionProblem
from tir_schedules.core.cache_parameter import cache_parameter
from tir_schedules.core.emission import tensor_parameter
from tir_schedules.core.size import is_open

from .growing_cache import with_room


def reject_room(problem: AttentionProblem, name: str) -> str | None:
    """Why the heads of "k" or "v" have to lie as closely as they can, or None."""
    whole, layout = problem.tensors[name], problem.layouts[name]
    columns = problem.d if name == "k" else problem.e
    if whole.dtype != "float32":
        return f"{name} is of type {whole.dtype}"
    if whole.shape[-2:] != (problem.n, columns) or (layout.row, layout.column) != (columns, 1):
        return f"rows of {name} are not behind each other"
    heads, stride = 1, columns * problem.n
    for factor, step in zip(reversed(problem.factors), reversed(layout.batch), strict=True):
        shared = heads == 1 and step == 0  # by queries that lie next to each other
        if factor != 1 and not shared:
            if step != stride:
                return f"heads of {name} are not behind each other"
            heads, stride = heads * factor, stride * factor
    if layout.offset or math.prod(whole.shape[:-2]) != heads:
        return f"{name} has more heads than the attention"
    return None


def keys_and_values(problem: AttentionProblem) -> tuple[list[Expr], dict[str, int]]:
    """The parameters of k and v; of those that may have room, how far heads are apart."""
    parameters: list[Expr] = []
    apart: dict[str, int] = {}
    for number, name in enumerate("kv", 1):
        tensor = problem.tensors[name]
        if is_open((problem.n,)) and reject_room(problem, name) is None:
            parameter, apart[name] = cache_parameter(f"input{number}", tensor)
        else:
            parameter = tensor_parameter(f"input{number}", tensor)
        parameters.append(parameter)
    return parameters, apart


def give_room(problem: AttentionProblem, apart: dict[str, int]) -> None:
    """Has an attention find heads where they are; after `read_extents`."""
    for name, distance in apart.items():
        with_room(problem, name, distance)
