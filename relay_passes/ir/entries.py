"""The functions of a compiled module that others call: their names, and what one of them returns.

Programs are loaded and run without the compiler, so this imports no pass.
"""

from __future__ import annotations

from tvm import IRModule
from tvm.runtime import Tensor

from .constants import constants_in

MAIN = "main"
"""The function that a model is."""

BITS_ENTRY = "main_bits"
"""The same with uint16 in place of bfloat16, of a model that has such inputs or outputs."""

INTO_ENTRY = "main_into"
"""The same that writes outputs into tensors of the caller."""

SHAPES_ENTRY = "main_shapes"
"""The shapes of these outputs."""

WEIGHTS_ENTRY = "tvm_hybrid_weights"
"""Hands out the large constants."""

RELEASE_ENTRY = "tvm_hybrid_release"
"""Lets go of the last results, in a program whose results are large."""


def weights_in(mod: IRModule) -> list[Tensor]:
    """What the entry of a module that has it returns; nothing if there is none."""
    return [x.value for x in constants_in(mod[WEIGHTS_ENTRY])] if WEIGHTS_ENTRY in mod else []
