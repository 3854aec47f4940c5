"""The C++ part of an exported library: its data, and the choice of the code that this CPU runs.

TVM's runtime opens a library, finds the symbol `__tvm_ffi__library_bin`, and gives each module in
that data to the loader registered for the module's kind. We store one module, of our own kind. The
library's constructor, compiled for plain x86-64, registers the loader of that kind. The library
holds one or two programs, as executables of TVM's virtual machine. The loader asks `cpuid` for the
features that each program's kernels need and, if they use AMX, asks Linux for tile data. It passes
the first program that runs here to TVM's own loader; if none runs, it raises a TVM error that says
why. So the check runs in any process that loads the library, with or without Python, before any
kernel can, and costs nothing afterwards. The global function `tvm_hybrid.chosen.<digest>` returns
the number of the chosen program.

The weights are behind the library in the file, as `weights_file` describes. The library looks for
its own file, checks that it is still the exported one, and maps the weights read-only: processes
share the pages, and nothing is read before a kernel reads it. The virtual machine gets each weight
from a function of the library, named after the program, by its number. The mapping ends when the
library is closed; tensors that are still held then keep their pages. A program may have its own
weights instead: the global function `tvm_hybrid.own_weights.<digest>` takes the name of a global
function, and returns a program that gets its weights from that function. The library's function
`tvm_hybrid_giving` makes such a function from tensors.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm.runtime import Tensor

from microkernels.amx import permission as amx_permission
from microkernels.base.tvm_compat.relax import SYMBOL_PREFIX
from microkernels.base.tvm_compat.vm_file import DATA_SYMBOL, LOADER_PREFIX
from microkernels.base.tvm_compat.vm_file import KIND as VM_KIND
from relay_passes.ir.constants import memory_of

from ..targets.cpu_features import AMX_STATE, FEATURES
from .weights_file import MAGIC, PAGE, WeightsFile

KIND_PREFIX = "tvm_hybrid."
CHOSEN_PREFIX = "tvm_hybrid.chosen."
OWN_WEIGHTS_PREFIX = "tvm_hybrid.own_weights."
GIVING = "tvm_hybrid_giving"

_SOURCE = Path(__file__).with_name("loader.cc")
_WEIGHTS_FUNCTION = "tvm_hybrid_weight_of_{:08}"
_WORDS = {"eax": 0, "ebx": 1, "ecx": 2, "edx": 3}


@dataclass(frozen=True)
class Piece:
    """A range of bytes in a file.

    Attributes
    ----------
    path : Path
        The file.
    start, size : int
        Offset and length in bytes.
    """

    path: Path
    start: int
    size: int


@dataclass(frozen=True)
class StoredProgram:
    """One of the programs in a library.

    Attributes
    ----------
    cpu : str
        The CPU that the program is compiled for; used in messages.
    features : tuple of str
        The CPU features that its kernels need, by their names in `cpu_features.FEATURES`.
    pieces : tuple of Piece
        The parts of the virtual machine's executable, in order. A piece that an earlier program
        has too is stored once.
    """

    cpu: str
    features: tuple[str, ...]
    pieces: tuple[Piece, ...]


def loader_source(
    digest: str, frame: Path, programs: Sequence[StoredProgram], weights: WeightsFile
) -> str:
    """The C++ source of the loader.

    Parameters
    ----------
    digest : str
        Letters and digits that identify the library.
    frame : Path
        File with the content of `__tvm_ffi__library_bin`: a module of kind `KIND_PREFIX` + digest.
    programs : sequence of StoredProgram
        The programs, best first.
    weights : WeightsFile
        The weights behind the library, by program.
    """
    order = {
        piece: place
        for place, piece in enumerate(
            dict.fromkeys(piece for program in programs for piece in program.pieces)
        )
    }
    runs = [_runs([order[piece] for piece in program.pieces]) for program in programs]
    replacements = {
        **_weights_source(weights),
        "@OWN_WEIGHTS@": json.dumps(OWN_WEIGHTS_PREFIX + digest),
        "@FRAME@": _quoted_twice(frame),
        "@DATA@": "".join(map(_data, order.values(), order)) + f'    "{_label(len(order))}:\\n"\n',
        "@LABELS@": "".join(
            f'extern "C" __attribute__((visibility("hidden"))) const char {_label(place)}[];\n'
            for place in range(len(order) + 1)
        ),
        "@FEATURES@": "".join(
            f"const Feature kFeatures{place}[] = {{\n{_rows(program.features)}"
            "    {nullptr, 0, 0, 0, 0, 0}};\n"
            for place, program in enumerate(programs)
        ),
        "@RUNS@": "".join(
            f"const Run kRuns{place}[] = {{\n"
            + "".join(
                f"    {{{_label(first)}, static_cast<size_t>({_label(end)} - {_label(first)})}},\n"
                for first, end in runs[place]
            )
            + "};\n"
            for place in range(len(programs))
        ),
        "@PROGRAMS@": "".join(
            f"    {{{json.dumps(program.cpu)}, kFeatures{place}, kRuns{place}, "
            f"{len(runs[place])}, {json.dumps(weights_function(place))}}},\n"
            for place, program in enumerate(programs)
        ),
        "@SYMBOL@": DATA_SYMBOL,
        "@LOADER@": json.dumps(LOADER_PREFIX + VM_KIND),
        "@OWN_LOADER@": json.dumps(LOADER_PREFIX + KIND_PREFIX + digest),
        "@CHOSEN@": json.dumps(CHOSEN_PREFIX + digest),
        "@TILE_STATE@": f"{AMX_STATE:#x}u",
        "@REFUSALS@": "".join(
            f"    {{{code or 0}, {json.dumps(reason)}}},\n"
            for code, reason in amx_permission.REFUSALS.items()
        ),
        "@EMULATOR@": json.dumps(amx_permission.EMULATOR),
        "@ADVICE@": json.dumps(amx_permission.ADVICE),
        "@ARCH_PRCTL@": str(amx_permission.ARCH_PRCTL),
        "@REQUEST@": f"{amx_permission.REQUEST:#x}",
        "@TILE_DATA@": str(amx_permission.TILE_DATA),
    }
    source = _SOURCE.read_text(encoding="utf-8")
    for mark, text in replacements.items():
        source = source.replace(mark, text)
    return source


def _label(place: int) -> str:
    """The symbol of a piece's first byte, which is also the end of the piece before it."""
    return f"tvm_hybrid_piece{place}"


def _data(place: int, piece: Piece) -> str:
    """Assembly for one piece, as C++ string literals."""
    return (
        f'    "{_label(place)}:\\n"\n'
        f'    ".incbin " {_quoted_twice(piece.path)} ", {piece.start}, {piece.size}\\n"\n'
    )


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Joins successive numbers into ranges (first, end)."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


def _rows(features: tuple[str, ...]) -> str:
    return "".join(
        f'    {{"{feature.name}", {feature.leaf:#x}u, {feature.subleaf}, '
        f"{_WORDS[feature.register]}, {feature.bit}, {feature.state:#x}u}},\n"
        for feature in (FEATURES[name] for name in features)
    )


def _quoted_twice(path: Path) -> str:
    """A C string literal that holds an assembler string literal."""
    return json.dumps(json.dumps(str(path), ensure_ascii=False), ensure_ascii=False)


def weights_function(place: int) -> str:
    """The name of the function that returns the weights of program number `place`.

    All these names have equal length, because `with_own_weights` replaces one in the code.
    """
    return _WEIGHTS_FUNCTION.format(place)


def _weights_source(file: WeightsFile) -> dict[str, str]:
    """The replacements for the names in loader.cc that concern weights."""
    rows = [weight for program in file.programs for weight in program]
    getters, first = [], 0
    for place, program in enumerate(file.programs):
        symbol = SYMBOL_PREFIX + weights_function(place)
        getters.append(f"TVM_HYBRID_WEIGHTS({symbol}, {first}, {len(program)})\n")
        first += len(program)
    shapes = "".join(
        f"const long long kShape{number}[] = {{{', '.join(map(str, row.shape)) or '0'}}};\n"
        for number, row in enumerate(rows)
    )
    items = "".join(
        f"    {{{row.offset}ull, {{{', '.join(map(str, row.dtype))}}}, {len(row.shape)}, "
        f"kShape{number}}},\n"
        for number, row in enumerate(rows)
    )
    last = "    {0, {0, 0, 0}, 0, nullptr}};\n"
    return {
        "@WEIGHT_ROWS@": f"{shapes}const Weight kWeights[] = {{\n{items}{last}",
        "@HEAD@": json.dumps((MAGIC + file.identity.encode()).decode()),
        "@BYTES@": f"{file.size}ull",
        "@COUNT@": str(len(rows)),
        "@PAGE@": str(PAGE),
        "@GIVING@": SYMBOL_PREFIX + GIVING,
        "@GETTERS@": "".join(getters),
    }


# Keeps copies of one exported library from being unloaded.
#
# Opening a library registers its loader with TVM, under a name that all its copies share, so the
# copy that was opened last owns the name. If that copy were unloaded while another is open, nobody
# would register the loader again, and the name would point to freed memory.


_paths: dict[str, set[str]] = {}
_lock = threading.Lock()


def pin_copies(digest: str, path: str) -> None:
    """Pins a library for the life of the process if a copy of it was opened before.

    Parameters
    ----------
    digest : str
        Identifies the library and its copies.
    path : str
        The file that is about to be opened.
    """
    with _lock:
        known = _paths.setdefault(digest, set())
        known.add(path)
        if len(known) > 1:
            ctypes.CDLL(path)  # never closed


def loader_name(path: Path) -> str:
    """A path of the file that differs if the file is replaced by another.

    For a known path, the dynamic loader returns the library that it opened by that path, without
    looking whether the file was replaced since; it compares inodes only for an unknown path. So
    the path spells the inode's number.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        The absolute path. Before its last part, "//" stands for a 0 of the inode's number and "/./"
        for a 1; both mean "/".

    Raises
    ------
    OSError
        If there is no such file.
    """
    resolved = path.resolve()
    number = f"{resolved.stat().st_ino:b}"
    return f"{resolved.parent}/{number.replace('0', '/').replace('1', './')}{resolved.name}"


_NAME = "tvm_hybrid.weights."
_numbers = itertools.count()


def with_own_weights(module: Any, digest: str) -> tuple[Any, str]:
    """Loads a library's program again, with copies of the weights.

    Parameters
    ----------
    module : tvm.runtime.Module
        The program as the library returns it.
    digest : str
        Identifies the library.

    Returns
    -------
    tuple of tvm.runtime.Module and str
        The program, and the name of the global function from which its virtual machines get their
        weights when they are made. The weights live as long as a machine or the function.
    """
    place = int(tvm.get_global_func(CHOSEN_PREFIX + digest)())
    (library,) = module.imports
    shared = weights_function(place)
    given = library.get_function(shared)
    copies = [_copy(given(number)) for number in range(int(given()))]
    name = _NAME + f"{next(_numbers):0{len(shared) - len(_NAME)}}"
    tvm_ffi.register_global_func(name, library.get_function(GIVING)(*copies))
    program = tvm.get_global_func(OWN_WEIGHTS_PREFIX + digest)(name)
    program.import_module(library)
    return program, name


def _copy(tensor: Tensor) -> Tensor:
    copy = tvm.runtime.empty(tensor.shape, str(tensor.dtype))
    np.copyto(np.frombuffer(memory_of(copy), np.uint8), np.frombuffer(memory_of(tensor), np.uint8))
    return copy
