"""Refuses (apache-tvm, apache-tvm-ffi) pairs that are known not to work, before TVM is imported.

Left alone, pip pairs apache-tvm 0.27 with apache-tvm-ffi 0.1.15, which crashes the process while
saving IR. A message with the command that mends it is worth more than a segmentation fault.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from microkernels.errors import UnsupportedTvmError

TVM_RELEASE = (0, 27)
FFI_RELEASE = (0, 1, 14)
MEND = 'pip install "apache-tvm==0.27.*" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'

_VERSION = re.compile(r"(?P<release>\d+(\.\d+)*)(?P<rest>.*)")
_POST = re.compile(r"\.post\d+")


def check() -> None:
    """Checks what is installed.

    Raises
    ------
    UnsupportedTvmError
        If a package is missing or the pair is not one that works; the message has the pip command.
    """
    check_pair(_installed("apache-tvm"), _installed("apache-tvm-ffi"))


def check_pair(tvm: str | None, ffi: str | None) -> None:
    """Checks a pair of version texts; None stands for a package that is not installed.

    Raises
    ------
    UnsupportedTvmError
        As `check`.
    """
    for name, found in (("apache-tvm", tvm), ("apache-tvm-ffi", ffi)):
        if found is None:
            raise UnsupportedTvmError(f"{name} is not installed; run: {MEND}")
    assert tvm is not None and ffi is not None
    tvm_release, _ = _parse(tvm)
    ffi_release, ffi_rest = _parse(ffi)
    if tvm_release[:2] != TVM_RELEASE:
        raise UnsupportedTvmError(f"apache-tvm {tvm} is not supported; run: {MEND}")
    if ffi_release != FFI_RELEASE or not _POST.match(ffi_rest):
        raise UnsupportedTvmError(
            f"apache-tvm-ffi {ffi} does not work with apache-tvm {tvm}; run: {MEND}"
        )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _parse(text: str) -> tuple[tuple[int, ...], str]:
    match = _VERSION.fullmatch(text)
    if match is None:
        return (), text
    return tuple(map(int, match["release"].split("."))), match["rest"]
