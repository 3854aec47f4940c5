"""Entry functions of a compiled module: their names, and the tensors that one of them returns.

Programs are loaded and run without the compiler, so this imports no pass.
"""

from __future__ import annotations

from tvm import IRModule
from tvm.runtime import Tensor

from .constants import constants_in

MAIN = "main"
"""The model's function."""

BITS_ENTRY = "main_bits"
"""Variant of `main` with uint16 in place of bfloat16, if an input or output is bfloat16."""

INTO_ENTRY = "main_into"
"""Variant of `main` that writes outputs into tensors of the caller."""

SHAPES_ENTRY = "main_shapes"
"""Computes the output shapes for `main_into`."""

WEIGHTS_ENTRY = "tvm_hybrid_weights"
"""Returns the large constants."""

RELEASE_ENTRY = "tvm_hybrid_release"
"""Releases the last results, in a program with large results."""


def weights_in(mod: IRModule) -> list[Tensor]:
    """The tensors that a module's weights entry returns; empty if the module has no such entry."""
    return [x.value for x in constants_in(mod[WEIGHTS_ENTRY])] if WEIGHTS_ENTRY in mod else []
