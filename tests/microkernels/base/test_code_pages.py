"""Which pages of a mapped file are returned to Linux."""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from microkernels.base.memory import return_pages

PAGES = 64
SIZE = PAGES * mmap.PAGESIZE


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(range(1, 129)) * (SIZE // 128))
    return path


def mapped(library: Path) -> mmap.mmap:
    """Maps the file as a program's code is mapped: writes stay private to the process."""
    with library.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)


def forbid_writing(memory: mmap.mmap) -> None:
    """Makes the mapping read-only, as the dynamic linker does after relocation."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert protect(start, SIZE, mmap.PROT_READ) == 0


def resident(library: Path) -> int:
    """How many bytes of a file's mappings are in memory."""
    of_file = re.escape(str(library)) + r"\n(?:.*\n)*?Rss: +(\d+) kB"
    found = re.findall(of_file, Path("/proc/self/smaps").read_text())
    return sum(map(int, found)) * 1024


def test_pages_that_were_read_go_and_come_back(library: Path) -> None:
    memory = mapped(library)
    content = bytes(memory)
    forbid_writing(memory)
    assert resident(library) == SIZE
    return_pages(library)
    assert resident(library) == 0
    assert bytes(memory) == content


def test_a_page_that_was_written_stays(library: Path) -> None:
    memory = mapped(library)
    memory[5] = 0
    content = bytes(memory)
    forbid_writing(memory)
    return_pages(library)
    assert bytes(memory) == content
    assert memory[5] == 0


def test_what_can_be_written_stays(library: Path) -> None:
    memory = mapped(library)
    content = bytes(memory)
    return_pages(library)
    assert resident(library) == SIZE
    assert bytes(memory) == content


def test_other_files_stay(library: Path, tmp_path: Path) -> None:
    memory = mapped(library)
    assert bytes(memory)[0] == 1  # the whole file has been read
    forbid_writing(memory)
    return_pages(tmp_path / "another.so")
    assert resident(library) == SIZE
