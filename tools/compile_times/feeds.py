"""Makes the inputs of a model's first run."""

from __future__ import annotations

import numpy as np
from onnx import helper

from .graph import Model


def feeds_of(model: Model) -> dict[str, np.ndarray]:
    """Random floats, random zeros and ones (only ones for masks), and the model's own values."""
    rng = np.random.default_rng(1)
    found = {}
    for info in model.proto.graph.input:
        if info.name in model.values:
            found[info.name] = model.values[info.name]
            continue
        kind = info.type.tensor_type
        shape = [model.sizes.get(each.dim_param, each.dim_value) for each in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if dtype.kind == "f":
            found[info.name] = rng.standard_normal(shape).astype(dtype)
        else:
            whole = np.ones(shape) if "mask" in info.name else rng.integers(0, 2, shape)
            found[info.name] = np.asarray(whole, dtype)
    return found
