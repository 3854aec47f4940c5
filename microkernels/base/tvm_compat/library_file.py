"""A shared library's data as TVM's runtime finds it: modules, each with the name of its loader.

The layout is that of `ProcessLibraryBin` in tvm_ffi's library_module.cc: number of bytes; the
import tree as two vectors in compressed row form; then each module's kind and bytes, where the kind
"_lib" stands for the library's own code and has none. A module's bytes cannot be empty.
"""

from __future__ import annotations

import struct

DATA_SYMBOL = "__tvm_ffi__library_bin"
"""Where the runtime looks for the data when it opens a library."""

LOADER_PREFIX = "ffi.Module.load_from_bytes."
"""Followed by a module's kind: the global function that makes the module of its bytes."""

_OWN_CODE = "_lib"


def library_data(kind: str, has_code: bool) -> bytes:
    """The data of a library with one module of this kind, and one word of bytes that nobody reads.

    Parameters
    ----------
    kind : str
        The module's.
    has_code : bool
        Whether the module imports the library's own code.
    """
    tree = _vector([0, 1, 1]) + _vector([1]) if has_code else _vector([0, 0]) + _vector([])
    content = tree + _text(kind) + _text("guard") + (_text(_OWN_CODE) if has_code else b"")
    return struct.pack("<Q", len(content)) + content


def _vector(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers) + 1}Q", len(numbers), *numbers)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()
