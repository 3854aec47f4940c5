"""The C++ compiler as a child process: leaves nothing behind, and says briefly why it failed."""

from __future__ import annotations

import errno
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tvm.support import cc

from microkernels.base.errors import CompileError
from microkernels.base.logs import logger
from microkernels.base.output_file import undisturbed

# What compiler, assembler and linker say of a full disk comes from the system.
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LINES = 3


def find_compiler() -> str:
    """The compiler's command.

    Raises
    ------
    CompileError
        If there is none.
    """
    compiler = cc.get_cc()
    if compiler is None:
        raise CompileError(
            "exporting a library needs a C++ compiler, and none is installed: install g++, or "
            "name one in the environment variable CXX"
        )
    return str(compiler)


def run_compiler(compiler: str, arguments: Sequence[str], folder: Path) -> None:
    """Runs the compiler; its own temporary files go into a folder.

    Raises
    ------
    CompileError
        If it does not start, or fails.
    OSError
        If the disk is full.
    """
    command = [*shlex.split(compiler), *arguments]
    try:
        code, text = _run(command, folder)
    except OSError as error:
        raise CompileError(f"the C++ compiler {compiler!r} does not start: {error}") from error
    if code == 0:
        return
    logger.debug("%s failed with code %d:\n%s", shlex.join(command), code, text)
    if "File size limit exceeded" in text:  # a linker that died of SIGXFSZ
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    for number in _NOT_WRITTEN:
        if os.strerror(number) in text:
            raise OSError(number, os.strerror(number))
    raise CompileError(
        f"linking failed: {command[0]} ended with code {code}: {_reason(text)} "
        "(TVM_HYBRID_LOG=debug shows all)"
    )


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """Exit code and what was said. The compiler and its children are a session of their own."""
    process: subprocess.Popen[str] | None = None
    try:
        with undisturbed():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"},
                start_new_session=True,
            )
        text, _ = process.communicate()
        return process.returncode, text
    except BaseException:
        if process is not None:
            with undisturbed():
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()  # until the last of them has closed its end
        raise


def _reason(text: str) -> str:
    """The lines that name the error; the last ones if none does."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return "; ".join(line[:300] for line in telling[-_LINES:]) or "it says nothing"
