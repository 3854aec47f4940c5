"""Pins this CPU's estimates to a description, so that decisions are equal on all CPUs.

A test marked `machine(name)` asserts a decision based on cost estimates: which regions merge, which
tile a kernel takes. `python -m tests.pinned_machine FOLDER` writes all pinned descriptions for
`make test-machines`, which runs tests with each of them in `TVM_HYBRID_MACHINE`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec

from microkernels.machines.description import describe, described
from microkernels.machines.host import MACHINE_VARIABLE

# Numbers from the operating system, unless a file states them.
_CACHES = ("l1_bytes", "l2_bytes", "l3_bytes")


def write_pinned(name: str, folder: Path) -> Path:
    """Writes a description of this host's CPU with all numbers of a shipped description.

    Returns
    -------
    Path
        The file, for `TVM_HYBRID_MACHINE`.
    """
    found = describe(name)
    caches = {size: msgspec.to_builtins(found.numbers[size]) for size in _CACHES}
    path = folder / f"{name}.json"
    text = {"title": f"{found.title}, pinned by tests", "inherits": name, "numbers": caches}
    path.write_text(json.dumps(text))
    return path


@contextmanager
def pinned(name: str) -> Iterator[None]:
    """Within, this process and its children estimate with a shipped description's numbers."""
    with mock.patch.dict(os.environ, {MACHINE_VARIABLE: str(_in_this_process(name))}):
        yield


@functools.cache
def _in_this_process(name: str) -> Path:
    return write_pinned(name, Path(_folder().name))


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tvm_hybrid-machines-")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(*(write_pinned(name, folder) for name in described()), sep="\n")
