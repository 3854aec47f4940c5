"""Converters of the front end's own operators for attention.

operator                                 Relax
CausalMask(rows=M, columns=N, last=c)    R.triu(R.broadcast_to(-inf, (M, N)), k=c + 1)
CausalMask(rows=M, columns=N, first=c)   R.tril(R.broadcast_to(-inf, (M, N)), k=c - 1)

TVM 0.27 cannot lower R.full of infinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .expressions import Converter, Expr, literal


def _causal_mask(builder: relax.BlockBuilder, inputs: Sequence[Any], attrs: dict[str, Any]) -> Expr:
    hidden = literal(np.array(-np.inf, np.float32))
    shape = (attrs["rows"], attrs["columns"])
    full = builder.normalize(relax.op.broadcast_to(hidden, shape))
    if "last" in attrs:
        return relax.op.triu(full, attrs["last"] + 1)
    return relax.op.tril(full, attrs["first"] - 1)


ATTENTION_CONVERTERS: dict[str, Converter] = {"CausalMask": _causal_mask}
