"""Replaces Linux's answer to the request for AMX tile data, by a seccomp filter.

The filter applies to one thread and its children. This file imports none of our packages: processes
that run an exported library without them execute it too.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from typing import Any

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM = 158, 0x1023
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06  # instructions of classic BPF
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def answer_here(code: int) -> None:
    """From now on, Linux answers this thread's requests with this errno; 0 means success."""
    instructions = [
        (_LOAD, 0, 0, 0),  # the number of the system call
        (_IF_EQUAL, 0, 3, _ARCH_PRCTL),
        (_LOAD, 0, 0, 16),  # the low half of its first argument
        (_IF_EQUAL, 0, 1, _ARCH_REQ_XCOMP_PERM),
        (_RETURN, 0, 0, _ERRNO | code),
        (_RETURN, 0, 0, _ALLOW),
    ]
    text = b"".join(struct.pack("<HBBI", *instruction) for instruction in instructions)
    program = _Program(len(instructions), text)
    libc = ctypes.CDLL(None, use_errno=True)
    zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, one, zero, zero, zero),
        (_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(program), zero, zero),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def where_linux_answers(code: int, action: Callable[[], Any]) -> Any:
    """Calls `action` in a thread with this answer; returns its result or raises its error."""
    outcome: list[Any] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer_here(code)
            outcome.append(action())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
