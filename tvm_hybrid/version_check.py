"""The version of tvm_hybrid, and a check of TVM's version.

Refuses pairs of apache-tvm and apache-tvm-ffi that are known not to work, before TVM is imported.
By default pip installs apache-tvm-ffi 0.1.15 with apache-tvm 0.27; that pair crashes the process
when it saves IR. The error has the right pip command.
"""

from __future__ import annotations

import re
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

__version__ = "0.3.0"

TVM_RELEASE = (0, 27)
FFI_RELEASE = (0, 1, 14)
MEND = 'pip install "apache-tvm==0.27.*" "apache-tvm-ffi>=0.1.14.post0,<0.1.15"'

_VERSION = re.compile(r"(?P<release>\d+(\.\d+)*)(?P<rest>.*)")
_POST = re.compile(r"\.post\d+")


def check() -> None:
    """Checks the installed versions.

    Raises
    ------
    UnsupportedTvmError
        If a package is missing or the pair does not work; the message has the pip command.
    """
    check_pair(_installed("apache-tvm"), _installed("apache-tvm-ffi"))


def check_pair(tvm: str | None, ffi: str | None) -> None:
    """Checks a pair of versions; None stands for a package that is not installed.

    Raises
    ------
    UnsupportedTvmError
        See `check`.
    """
    if problem := _problem(tvm, ffi):
        raise _error_type()(f"{problem}; run: {MEND}")


def _problem(tvm: str | None, ffi: str | None) -> str | None:
    if tvm is None or ffi is None:
        return f"apache-tvm{'' if tvm is None else '-ffi'} is not installed"
    tvm_release, _ = _parse(tvm)
    ffi_release, ffi_rest = _parse(ffi)
    if tvm_release[:2] != TVM_RELEASE:
        return f"apache-tvm {tvm} is not supported"
    if ffi_release != FFI_RELEASE or not _POST.match(ffi_rest):
        return f"apache-tvm-ffi {ffi} does not work with apache-tvm {tvm}"
    return None


def _error_type() -> type[Exception]:
    """Finds UnsupportedTvmError without importing its package, which would import TVM."""
    name = "microkernels.base.errors"
    if name not in sys.modules:
        package = PathFinder.find_spec("microkernels", [str(Path(__file__).parents[1])])
        assert package is not None and package.origin is not None
        spec = spec_from_file_location(name, Path(package.origin).parent / "base" / "errors.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name].UnsupportedTvmError


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
