"""How operators are taken apart before they are imported: torch's table, changed.

Left whole are activations and attention of float16. Taken apart is also what TVM's converters take
for something else, where torch has a decomposition:

    aten._native_batch_norm_legit_functional(x, weight, bias, mean, var, True, momentum, eps)
        ->  aten.var.correction, aten.mean.dim, ..., and the new statistics
"""

from __future__ import annotations

from typing import Any

import torch
from torch._decomp import decomposition_table

from .half_attention import with_half_attention
from .whole_activations import with_whole_activations

aten = torch.ops.aten

_OF_TORCH = (aten._native_batch_norm_legit_functional.default,)


def with_decompositions(table: Any) -> Any:
    """A table of decompositions such that the importer knows what is left.

    Parameters
    ----------
    table : dict or torch.export.decomp_utils.CustomDecompTable
        torch's; it is changed, and returned.
    """
    table = with_half_attention(with_whole_activations(table))
    table.update({operator: decomposition_table[operator] for operator in _OF_TORCH})
    table[aten.var_mean.correction] = _variance_and_mean
    return table


def _variance_and_mean(
    x: Any, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Any, Any]:
    axes = dim or list(range(x.dim()))
    return x.var(axes, correction=correction, keepdim=keepdim), x.mean(axes, keepdim)
