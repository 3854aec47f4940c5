"""The least time of a token: reading all weights from memory, and nothing else.

A token multiplies one row with every weight. Weights that do not fit into the caches are read from
memory, which takes longer than multiplying. This time over an engine's time is the fraction of the
bandwidth that the engine uses (roofline model: Williams et al., CACM 2009, section 3). Weights that
are less than a few times as large as L3 come partly from there, for engines and reader alike.
"""

from __future__ import annotations

import ctypes
import mmap
import subprocess
from pathlib import Path

import numpy as np

from tvm_hybrid.report.timing import ContestantError

from .engines import STEPS
from .llama import BLOCK, Sizes
from .onnx_files import BF16, F32, INT4, INT8

READER = "reading the weights"
SOURCE = Path(__file__).with_name("reader.cc")
STREAMS = 1, 2, 4, 8  # which of them is fastest differs from CPU to CPU
BYTES = {F32: 4.0, BF16: 2.0, INT8: 1.0, INT4: 0.5 + 2 / BLOCK}
"""Bytes of a weight, for each kind; 4 bits with scales of float16."""


def weight_bytes(sizes: Sizes, kind: str) -> int:
    """Bytes of all matrices of a model."""
    count = sum(outer * inner for outer, inner in sizes.matrices().values())
    return int(count * BYTES[kind])


class Reader:
    """Reads as many bytes as a token needs, on some threads.

    Raises
    ------
    ContestantError
        If there is no C++ compiler.
    """

    def __init__(self, folder: Path, size: int, threads: int) -> None:
        self.data = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        self.data[:] = 1  # else all pages are one page of zeros
        self.threads = threads
        library = folder / "reader.so"
        command = ["g++", "-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        try:
            subprocess.run([*command, SOURCE, "-o", library], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ContestantError(f"{READER}: g++ fails: {error}") from error
        self.read_seconds = ctypes.CDLL(str(library)).read_seconds
        self.read_seconds.restype = ctypes.c_double
        size_t, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
        self.read_seconds.argtypes = [pointer, size_t, number, number]

    def steps(self, _past: int) -> list[float]:
        """Seconds of reading all bytes, with the best number of streams."""
        best = min(STREAMS, key=lambda streams: min(self.read(streams) for _ in range(3)))
        return [self.read(best) for _ in range(STEPS)]

    def read(self, streams: int) -> float:
        """Seconds of reading all bytes once."""
        place = self.data.ctypes.data
        return float(self.read_seconds(place, self.data.nbytes, self.threads, streams))
