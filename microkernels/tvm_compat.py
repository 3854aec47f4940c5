"""What kernels need of TVM 0.27 beyond its public interface: one function or constant each.

Who moves to another TVM looks here; `tests/microkernels/test_tvm_compat.py` says what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import tvm.tirx.script.builder.ir as I

NO_ALIAS = {"tirx.noalias": True}
"""An attribute of kernels: no two parameters overlap, so LLVM may load before it stores."""

IMPORT_LLVM = "pragma_import_llvm"
"""An attribute of statements: text in LLVM's language, linked to the code of the kernel."""


@contextmanager
def llvm_functions(*texts: str) -> Iterator[None]:
    """A scope of a kernel that may call functions written in LLVM's language.

    Needs the attribute `IMPORT_LLVM`, which TVM's code generator for LLVM looks for.

    Parameters
    ----------
    *texts
        Definitions of the functions; empty texts are left out.
    """
    with ExitStack() as stack:
        for text in filter(None, texts):
            stack.enter_context(I.attr(0, IMPORT_LLVM, text))
        yield
