"""Snapshots of a program's kernels: their TIR and machine code, in files, and their differences."""

from __future__ import annotations

import difflib
import gzip
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import tvm
from tvm import tirx

import tvm_hybrid
from microkernels.base.tvm_compat.relax import llvm_version
from microkernels.isa import LADDER
from relay_passes.lower import native_code
from relay_passes.lower.codegen import GLOBAL_SYMBOL, KernelCode, kernel_key
from tools.compile_times.corpus import build
from tvm_hybrid import api
from tvm_hybrid.cache.cache_folder import CACHE_VARIABLE

LEVELS = {isa.name: isa.cpu for isa in LADDER if isa.vector_bits > 32}
"""A CPU of each instruction set level."""

THREADS = 2
"""Threads of every program."""

_ONNX = (
    *(("minilm", "auto"), ("minilm", "bf16"), ("minilm_qdq", "auto")),
    *(("t5_encoder", "auto"), ("t5_decoder", "bf16")),
    *(("squeezenet", "auto"), ("shufflenet", "auto"), ("shufflenet", "bf16")),
    *(("voice_activity", "auto"), ("events", "auto"), ("atoms", "auto")),
    *(("tagger", "auto"), ("lstm_59", "auto"), ("gru_31", "auto")),
)
_TORCH = (("mlp", "bfloat16"), ("cnn", "float32"), ("encoder", "float32"), ("gpt", "float32"))


@dataclass(frozen=True)
class SnapshotModel:
    """A model that is compiled to a program of a snapshot."""

    source: str  # "onnx" or "torch"
    model: str  # name in `tools.compile_times.corpus` or in `tools.doors.torch_models`
    kind: str  # option "precision" of an ONNX model, or type of a torch module's weights
    dynamic: bool  # whether it has dynamic sizes

    @property
    def name(self) -> str:
        """Name in files and on the command line."""
        return "_".join((self.source, self.model, self.kind, *["dynamic"] * self.dynamic))

    def arguments(self) -> dict[str, Any]:
        """Arguments of `tvm_hybrid.compile`: the model and its sizes."""
        if self.source == "onnx":
            made = build(self.model + "_dynamic" * self.dynamic)
            # Inputs that decide what is computed, for example the condition of a branch.
            values = made.values if self.dynamic else None
            return {
                "model": made.proto,
                "precision": self.kind,
                "keep_dynamic": self.dynamic,
                "values": values,
            }
        import torch

        from tools.doors.torch_models import torch_model

        module = torch_model(self.model, self.kind, small=True)
        first = {0: torch.export.Dim.AUTO}
        return {
            "model": module.module,
            "example_inputs": module.inputs,
            "dynamic_shapes": tuple(first for _ in module.inputs) if self.dynamic else None,
            "keep_dynamic": self.dynamic,
        }


def compile_for(cpu: str, arguments: dict[str, Any]) -> None:
    """Compiles a model for a CPU."""
    tvm_hybrid.compile(target=cpu, num_threads=THREADS, records=[], **arguments)


PROGRAMS = {
    program.name: program
    for source, models in (("onnx", _ONNX), ("torch", _TORCH))
    for (model, kind), dynamic in itertools.product(models, (False, True))
    for program in [SnapshotModel(source, model, kind, dynamic)]
}
"""The models of all programs, by name."""


def ordered(script: str) -> str:
    """A kernel's text with its sizes named in the order of their first use.

    TVM's printer numbers sizes of equal names by address.
    """
    head, mark, body = script.partition("@T.prim_func")
    declared = set(re.findall(r"^(\w+) = TypeVar\(.*\)$", head, re.M))
    word = r"\b\w+\b(?!=[^=])"  # except names of arguments
    used = dict.fromkeys(name for name in re.findall(word, body) if name in declared)
    names = {name: f"size_{place}" for place, name in enumerate(used)}
    body = re.sub(word, lambda found: names.get(found[0], found[0]), body)
    return re.sub(r"^\w+ = TypeVar\(.*\)\n", "", head, flags=re.M) + mark + body


_SUFFIX = ".kernels"


class Kernel(msgspec.Struct, frozen=True):
    """A kernel as it goes to LLVM, and its assembler text."""

    tir: str
    code: str  # without the kernel's name; "" if LLVM does not compile the kernel alone


class Snapshot(msgspec.Struct, frozen=True):
    """The kernels of a program by name, and the versions of TVM and LLVM that made them."""

    versions: tuple[str, int]
    kernels: dict[str, Kernel]


def taken(name: str, levels: list[str]) -> Iterator[tuple[str, Snapshot]]:
    """The kernels of a program for each level.

    Kernels that compute sizes have no parallel loops and no vectors. They are in no snapshot,
    because TVM orders their statements by address.
    """
    arguments = PROGRAMS[name].arguments()
    for level in levels:
        with _Recorder() as recorder:
            compile_for(LEVELS[level], arguments)
        yield level, Snapshot((tvm.__version__, llvm_version()), recorder.kernels())


class _Recorder:
    """A store of kernels that is always empty, and records the kernels compiled meanwhile."""

    def __init__(self) -> None:
        self._tir: dict[str, tuple[str, str | None]] = {}
        self._codes: dict[str, str] = {}
        self._patches: list[Any] = [
            patch.dict(os.environ, {CACHE_VARIABLE: "1"}),
            patch.object(api, "kernel_cache", lambda: self),
            patch.object(native_code, "kernel_key", self._note),
        ]

    def __enter__(self) -> _Recorder:
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for each in self._patches:
            each.stop()

    def _note(self, kernel: tirx.PrimFunc, *how: Any) -> str | None:
        key = kernel_key(kernel, *how)
        self._tir[str(kernel.attrs[GLOBAL_SYMBOL])] = ordered(str(kernel.script())), key
        return key

    def find(self, _key: str) -> None:
        """Finds nothing, as an empty `KernelStore`."""

    def keep(self, key: str, code: KernelCode) -> None:
        """Records machine code, as `KernelStore.keep` stores it."""
        self._codes[key] = str(code.text)

    def finish(self) -> None:
        """Does nothing; `KernelCache` has this method."""

    def kernels(self) -> dict[str, Kernel]:
        return {
            name: Kernel(tir, "" if key is None else self._codes.get(key, ""))
            for name, (tir, key) in sorted(self._tir.items())
        }


def path_of(folder: Path, program: str, level: str) -> Path:
    """The file of a snapshot."""
    return folder / f"{program}.{level}{_SUFFIX}"


def write(snapshot: Snapshot, path: Path) -> None:
    """Writes a snapshot; the file is replaced as a whole."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(gzip.compress(msgspec.json.encode(snapshot), 3))
    draft.replace(path)


def read(path: Path) -> Snapshot:
    """Reads a snapshot; ValueError if it is damaged."""
    try:
        return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=Snapshot)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} is damaged ({error}); save the snapshot again") from error


def differences(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """Differences by kernel: "gone", "new", or changed lines of TIR, else of machine code."""
    found = {}
    for name in sorted({*before.kernels, *after.kernels}):
        first, second = before.kernels.get(name), after.kernels.get(name)
        if first is None or second is None:
            found[name] = "new" if first is None else "gone"
        elif first != second:
            part = "tir" if first.tir != second.tir else "code"
            old, new = (getattr(each, part).splitlines() for each in (first, second))
            lines = difflib.unified_diff(old, new, f"{part} before", f"{part} after", lineterm="")
            found[name] = "\n".join(lines)
    return found
