"""Tensors of PyTorch as constants of Relax, copied: who changes a tensor does not change programs.

Copies have the alignment that kernels expect.
"""

from __future__ import annotations

from typing import Any

import torch
import tvm
from tvm import relax

from microkernels.base.errors import UnsupportedOperatorError

_TYPES = {
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}


def type_name(dtype: Any) -> str:
    """TVM's name of an element type.

    Raises
    ------
    UnsupportedOperatorError
        There is none.
    """
    if dtype not in _TYPES:
        raise UnsupportedOperatorError(f"tensors of type {dtype} are not supported")
    return _TYPES[dtype]


def constant_of(tensor: Any) -> relax.Expr:
    """A tensor's values now, whatever its strides, as a constant."""
    memory = tvm.runtime.empty(tuple(tensor.shape), type_name(tensor.dtype))
    if tensor.numel():
        torch.from_dlpack(memory).copy_(tensor.detach())
    return relax.const(memory)
