"""Turns assembly text into functions for ctypes, for programs that no compiler would write."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.amx_emulator import emulator


def assembled(functions: Mapping[str, str]) -> ctypes.CDLL:
    """Builds a library with one function per entry: name to instructions (AT&T, without `ret`).

    Arguments arrive in rdi, rsi, rdx, rcx, r8, r9 and on the stack.

    Raises
    ------
    RuntimeError
        If the assembler refuses the text.
    """
    text = [".text", ".p2align 4"]
    for name, body in functions.items():
        text += [f".globl {name}", f".type {name}, @function", f"{name}:", body, "ret"]
    text.append('.section .note.GNU-stack,"",@progbits\n')
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "program.s"), Path(folder, "program.so")
        source.write_text("\n".join(text))
        command = [emulator.compiler(), "-shared", "-nostdlib", str(source), "-o", str(library)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"the assembler refuses:\n{result.stderr[:2000]}")
        return ctypes.CDLL(str(library))  # stays mapped without its file
