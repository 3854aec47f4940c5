"""Constant factors of products, which compilation may fold into the product's weight.

A folded factor changes where a sum overflows: a sum beyond float32's range times 0 is NaN, and the
sum with a weight of zeros is 0. `relay_passes.canonicalize.products.fold_factors` folds these
factors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from .operator_kinds import PRODUCTS

Array = NDArray[Any]


def folded_factors(
    nodes: Sequence[onnx.NodeProto],
    values: Mapping[str, Array],
    constants: Set[str],
    outputs: Sequence[str],
) -> dict[str, Array]:
    """For each value that folding skips, the factor that its product's weight gets.

    These values are the product's result and, if several factors follow, their results except the
    last. A factor is a scalar constant or one constant for each channel, and nothing else may read
    the value before it.

    Parameters
    ----------
    nodes : sequence of onnx.NodeProto
        The graph.
    values : mapping from str to numpy.ndarray
        Every value of the graph.
    constants : set of str
        Names of the graph's constants.
    outputs : sequence of str
        Names of the graph's outputs.
    """
    readings = Counter([name for node in nodes for name in node.input] + list(outputs))
    reader = {name: node for node in nodes for name in node.input}
    found: dict[str, Array] = {}
    for node in nodes:
        if node.op_type not in PRODUCTS or constants.isdisjoint(node.input[:2]):
            continue
        skipped, product = [], np.ones(())
        name = node.output[0]
        while readings[name] == 1 and name in reader:
            factor = _factor(reader[name], name, values, constants)
            if factor is None:
                break
            product = product * factor
            skipped.append(name)
            name = reader[name].output[0]
        found.update(dict.fromkeys(skipped, product))
    return found


def _factor(
    node: onnx.NodeProto, name: str, values: Mapping[str, Array], constants: Set[str]
) -> Array | None:
    """The constant by which a node multiplies a value; None if the node does anything else."""
    if node.op_type not in ("Mul", "Div"):
        return None
    other = node.input[1 if node.input[0] == name else 0]
    if other not in constants or (node.op_type == "Div" and node.input[0] != name):
        return None
    if values[node.output[0]].shape != values[name].shape:
        return None
    constant = values[other].astype(np.float64)
    if constant.size > max(constant.shape, default=1):  # more than one number for each channel
        return None
    with np.errstate(all="ignore"):
        factor = constant if node.op_type == "Mul" else 1 / constant
    return np.asarray(factor) if np.isfinite(factor).all() else None
