"""Gives a loaded program weights of its own, in place of pages that processes share."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import Tensor

from relay_passes.ir.constants import memory_of

from .library_loader import CHOSEN_PREFIX, GIVING, OWN_WEIGHTS_PREFIX, weights_function

_NAME = "tvm_hybrid.weights."
_numbers = itertools.count()


def with_own_weights(module: Any, digest: str) -> tuple[Any, str]:
    """The program of a library once more, with copies of the weights.

    Parameters
    ----------
    module : tvm.runtime.Module
        The program as the library gives it.
    digest : str
        What tells the library from others.

    Returns
    -------
    tuple of tvm.runtime.Module and str
        The program, and the name of the global function that gives its virtual machines their
        weights when they are made. Machines keep the weights; so does the name until it is removed.
    """
    place = int(tvm.get_global_func(CHOSEN_PREFIX + digest)())
    (library,) = module.imports
    shared = weights_function(place)
    given = library.get_function(shared)
    copies = [_copy(given(number)) for number in range(int(given()))]
    name = _NAME + f"{next(_numbers):0{len(shared) - len(_NAME)}}"
    tvm_ffi.register_global_func(name, library.get_function(GIVING)(*copies))
    program = tvm.get_global_func(OWN_WEIGHTS_PREFIX + digest)(name)
    program.import_module(library)
    return program, name


def _copy(tensor: Tensor) -> Tensor:
    copy = tvm.runtime.empty(tensor.shape, str(tensor.dtype))
    np.copyto(np.frombuffer(memory_of(copy), np.uint8), np.frombuffer(memory_of(tensor), np.uint8))
    return copy
