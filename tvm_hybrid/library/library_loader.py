"""The C++ part of an exported library: its data, and the choice of the code that this CPU runs.

TVM's runtime opens a library, finds the symbol `__tvm_ffi__library_bin`, and gives every module in
that data to the loader registered for the module's kind. We store one module, of a kind of our own.
Its loader is registered by the library's constructor, compiled for plain x86-64. The library holds
one program or two, as executables of TVM's virtual machine. The loader asks `cpuid` for the
features that the kernels of each need and, if they use AMX, Linux for tile data. It hands the first
program that runs here on to TVM's own loader, or raises a TVM error that says why there is none. So
the check runs in any process that loads the library, Python or not, before any kernel can, and
costs nothing afterwards. The global function `tvm_hybrid.chosen.<digest>` tells which it took.

Weights lie behind the library, as `weights_file` says. The library looks for its own file, checks
that this still is the one that was exported, and maps the weights for reading only: processes share
the pages, and nothing is read before a kernel reads it. The virtual machine asks for each weight by
a function of the library, named after the program, with its number. The mapping goes when the
library is closed; tensors that somebody still holds then keep their pages. A program may have
weights of its own instead: the global function `tvm_hybrid.own_weights.<digest>` takes the name of
a global function, and returns a program that asks that one. The library's function
`tvm_hybrid_giving` makes such a function of tensors.
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
    """Some bytes of a file.

    Attributes
    ----------
    path : Path
        The file.
    start, size : int
        In bytes.
    """

    path: Path
    start: int
    size: int


@dataclass(frozen=True)
class LoadableProgram:
    """One of the programs of a library.

    Attributes
    ----------
    cpu : str
        What it is compiled for; for messages.
    features : tuple of str
        What its kernels need; names in `cpu_features.FEATURES`.
    pieces : tuple of Piece
        What makes up the virtual machine's executable. A piece that is also one of a program before
        this one is stored once.
    """

    cpu: str
    features: tuple[str, ...]
    pieces: tuple[Piece, ...]


def loader_source(
    digest: str, frame: Path, programs: Sequence[LoadableProgram], weights: WeightsFile
) -> str:
    """The C++ source of the loader.

    Parameters
    ----------
    digest : str
        What tells the library from others; letters and digits.
    frame : Path
        File with the content of `__tvm_ffi__library_bin`: a module of kind `KIND_PREFIX` + digest.
    programs : sequence of LoadableProgram
        The best first.
    weights : WeightsFile
        What is behind the library, by program.
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
    """The symbol of a piece's first byte, which is behind the last one of the piece before it."""
    return f"tvm_hybrid_piece{place}"


def _data(place: int, piece: Piece) -> str:
    """Assembly, as C++ string literals, of a piece."""
    return (
        f'    "{_label(place)}:\\n"\n'
        f'    ".incbin " {_quoted_twice(piece.path)} ", {piece.start}, {piece.size}\\n"\n'
    )


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers as ranges of successive ones, each with its end."""
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
    """The name of the function that gives the weights of a library's program, 0 for the first.

    All have the same length.
    """
    return _WEIGHTS_FUNCTION.format(place)


def _weights_source(file: WeightsFile) -> dict[str, str]:
    """What replaces the names that concern weights."""
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
# A library registers its loader with TVM when it is opened, under a name that its copies share: the
# last one that was opened has it. Were that one unloaded while another copy is still open, nobody
# would register anew, and the name would lead to memory that is gone.


_paths: dict[str, set[str]] = {}
_lock = threading.Lock()


def pin_copies(digest: str, path: str) -> None:
    """Pins a library that is about to be opened, for as long as the process lives, if a copy was.

    Parameters
    ----------
    digest : str
        What tells the library from all but its copies.
    path : str
        The file.
    """
    with _lock:
        known = _paths.setdefault(digest, set())
        known.add(path)
        if len(known) > 1:
            ctypes.CDLL(path)  # which is never closed


def loader_name(path: Path) -> str:
    """A name by which the dynamic loader opens just this file.

    It takes a file whose name it knows for the library that it opened by that name, and would not
    see that the file has been replaced since. It looks at inodes only where it does not know the
    name.

    The path of a file, written in a way that tells its inode.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        Its absolute path. Before the last part, "//" stands for a 0 of the inode's number and "/./"
        for a 1; both mean what "/" does.

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
    """The program of a library once more, with copies of the weights.

    Parameters
    ----------
    module : tvm.runtime.Module
        The program as the library gives it.
    digest : str
        What tells the library from others.

    Returns
    -------
    tuple of tvm.runtime.Module and str
        The program, and the name of the global function that gives its virtual machines their
        weights when they are made. Machines keep the weights; so does the name until it is removed.
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
