"""The C++ part of an exported library: its data, and the choice of the code that this CPU runs.

TVM's runtime opens a library, finds the symbol `__tvm_ffi__library_bin`, and gives every module in
that data to the loader registered for the module's kind. We store one module, of a kind of our own.
Its loader is registered by the library's constructor, compiled for plain x86-64. The library holds
one program or two, as executables of TVM's virtual machine. The loader asks `cpuid` for the
features that the kernels of each need and, if they use AMX, Linux for tile data. It hands the first
program that runs here on to TVM's own loader, or raises a TVM error that says why there is none. So
the check runs in any process that loads the library, Python or not, before any kernel can, and
costs nothing afterwards. The global function `tvm_hybrid.chosen.<digest>` tells which it took.
What concerns weights is in `library_weights`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from microkernels.amx import permission as amx_permission

from .cpu_features import AMX_STATE, FEATURES
from .library_weights import (
    EXPORTS,
    OWN_WEIGHTS_PREFIX,
    SOURCE,
    weights_function,
    weights_source,
)
from .tvm_compat.library_file import DATA_SYMBOL, LOADER_PREFIX
from .tvm_compat.vm_file import KIND as VM_KIND
from .weights_file import WeightsFile

_SOURCE = r"""
#include <cpuid.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

// A process without TVM may still open the library; it then has nothing to register with.
#pragma weak TVMFFIFunctionCreate
#pragma weak TVMFFIFunctionSetGlobal
#pragma weak TVMFFIFunctionGetGlobal
#pragma weak TVMFFIFunctionCall
#pragma weak TVMFFIErrorSetRaisedFromCStr
#pragma weak TVMFFIObjectDecRef
#pragma weak TVMFFIObjectIncRef
#pragma weak TVMFFITensorFromDLPack

asm(".section .tvm_hybrid_model, \"a\", @progbits\n"
    ".balign 64\n"
    ".globl @SYMBOL@\n"
    ".type @SYMBOL@, @object\n"
    "@SYMBOL@:\n"
    ".incbin " @FRAME@ "\n"
@DATA@    ".previous\n");

@LABELS@
namespace {

struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  int word;  // eax, ebx, ecx, edx
  int bit;
  unsigned state;  // of XCR0
};

@FEATURES@
struct Run {
  const char* data;
  size_t size;
};

@RUNS@
struct Program {
  const char* cpu;
  const Feature* features;
  const Run* runs;  // the virtual machine's executable, one after the other
  int count;
  const char* weights;  // the function that it asks for its weights
};

const Program kPrograms[] = {
@PROGRAMS@};
const int kCount = sizeof(kPrograms) / sizeof(kPrograms[0]);

int chosen = -1;

const unsigned kTileState = @TILE_STATE@;

struct Refusal {
  int code;  // 0: any other
  const char* reason;
};

const Refusal kRefusals[] = {
@REFUSALS@};

bool Emulated() {
  typedef int (*Active)(void);
  Active active = reinterpret_cast<Active>(dlsym(RTLD_DEFAULT, @EMULATOR@));
  return active && active();
}

// Linux's answer: null if it is yes, else the reason.
const char* Denied() {
  if (syscall(@ARCH_PRCTL@, @REQUEST@, @TILE_DATA@) == 0) return nullptr;
  const Refusal* refusal = kRefusals;
  while (refusal->code && refusal->code != errno) ++refusal;
  return refusal->reason;
}

unsigned SavedState() {
  unsigned words[4];
  if (!__get_cpuid(1, &words[0], &words[1], &words[2], &words[3])) return 0;
  if (!(words[2] & bit_OSXSAVE)) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

bool Has(const Feature& feature, unsigned state) {
  unsigned words[4] = {0, 0, 0, 0};
  if (!__get_cpuid_count(feature.leaf, feature.subleaf, &words[0], &words[1], &words[2], &words[3]))
    return false;
  return (words[feature.word] >> feature.bit & 1) && (state & feature.state) == feature.state;
}

struct Text {
  char data[4096] = "this library was compiled by tvm_hybrid ";
  const char* advice = nullptr;
  void Append(const char* more) { strncat(data, more, sizeof(data) - strlen(data) - 1); }
};

// Whether a program runs here; if not, appends the CPU that it is for, what is missing and, unless
// there is one already, an advice.
bool Runs(const Program& program, Text* text) {
  const unsigned state = SavedState();
  const bool emulated = Emulated();
  bool missing = false, tiles = false;
  for (const Feature* feature = program.features; feature->name; ++feature) {
    if (feature->state == kTileState) {
      // Whether the state of tiles may be used is a question to Linux, below.
      tiles = true;
      if (emulated || Has(*feature, kTileState)) continue;
    } else if (Has(*feature, state)) {
      continue;
    }
    text->Append(missing ? ", " : "for ");
    if (!missing) {
      text->Append(program.cpu);
      text->Append(" and needs ");
    }
    text->Append(feature->name);
    missing = true;
  }
  if (missing) {
    text->Append(", which this CPU lacks");
    if (!text->advice) text->advice = "; run it on such a CPU, or compile the model for this one";
    return false;
  }
  const char* reason = tiles && !emulated ? Denied() : nullptr;
  if (!reason) return true;
  text->Append("for ");
  text->Append(program.cpu);
  text->Append(" and needs AMX tiles, and Linux denies them: ");
  text->Append(reason);
  if (!text->advice) text->advice = "; " @ADVICE@;
  return false;
}

@WEIGHTS@
// A program that shares pieces with another lies scattered; null if there is no memory.
char* Join(const Program& program, size_t* size) {
  *size = 0;
  for (int i = 0; i < program.count; ++i) *size += program.runs[i].size;
  char* joined = static_cast<char*>(malloc(*size));
  if (!joined) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", "no memory for the code of a program");
    return nullptr;
  }
  size_t end = 0;
  for (int i = 0; i < program.count; end += program.runs[i++].size)
    memcpy(joined + end, program.runs[i].data, program.runs[i].size);
  return joined;
}

// Gives a program to TVM's own loader.
int Open(const TVMFFIByteArray& bytes, TVMFFIAny* result) {
  const char* name = @LOADER@;
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle loader = nullptr;
  if (TVMFFIFunctionGetGlobal(&key, &loader) != 0) return -1;
  if (loader == nullptr) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "this TVM runtime has no Relax virtual machine");
    return -1;
  }
  TVMFFIAny argument;
  argument.type_index = kTVMFFIByteArrayPtr;
  argument.zero_padding = 0;
  argument.v_ptr = const_cast<TVMFFIByteArray*>(&bytes);
  const int code = TVMFFIFunctionCall(loader, &argument, 1, result);
  TVMFFIObjectDecRef(loader);
  return code;
}

int Load(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  Text text;
  int place = 0;
  while (place < kCount && !Runs(kPrograms[place], &text))
    if (++place < kCount) text.Append("; also ");
  if (place == kCount) {
    text.Append(text.advice);
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", text.data);
    return -1;
  }
  if (kWeightCount > 0 && !HaveWeights()) return -1;
  const Program& program = kPrograms[chosen = place];
  if (program.count == 1) return Open({program.runs[0].data, program.runs[0].size}, result);
  size_t size;
  char* joined = Join(program, &size);
  if (!joined) return -1;
  const int code = Open({joined, size}, result);
  free(joined);
  return code;
}

// The chosen program, asking the global function of this name for its weights.
int LoadWithOwnWeights(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  const Program& program = kPrograms[chosen < 0 ? 0 : chosen];
  const size_t length = strlen(program.weights);
  const TVMFFIByteArray* name = nullptr;
  if (count == 1 && arguments[0].type_index == kTVMFFIStr)
    name = TVMFFIBytesGetByteArrayPtr(arguments[0].v_obj);
  if (chosen < 0 || !name || name->size != length) {
    TVMFFIErrorSetRaisedFromCStr("ValueError", "no program was loaded, or the name is too long");
    return -1;
  }
  size_t size;
  char* joined = Join(program, &size);
  if (!joined) return -1;
  const char* end = joined + size;
  char* found = joined;
  while ((found = static_cast<char*>(memmem(found, end - found, program.weights, length))))
    memcpy(found, name->data, length);
  const int code = Open({joined, size}, result);
  free(joined);
  return code;
}

int Chosen(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {
  result->type_index = kTVMFFIInt;
  result->zero_padding = 0;
  result->v_int64 = chosen;
  return 0;
}

void Register(const char* name, TVMFFISafeCallType function) {
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle handle = nullptr;
  if (TVMFFIFunctionCreate(nullptr, function, nullptr, &handle) != 0) return;
  TVMFFIFunctionSetGlobal(&key, handle, 1);
  TVMFFIObjectDecRef(handle);
}

__attribute__((constructor)) void RegisterLoader() {
  if (!TVMFFIFunctionCreate || !TVMFFIFunctionSetGlobal) return;
  Register(@OWN_LOADER@, Load);
  Register(@CHOSEN@, Chosen);
  Register(@OWN_WEIGHTS@, LoadWithOwnWeights);
}

}  // namespace

@EXPORTS@"""

KIND_PREFIX = "tvm_hybrid."
CHOSEN_PREFIX = "tvm_hybrid.chosen."

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
        "@WEIGHTS@": SOURCE,
        "@EXPORTS@": EXPORTS,
        **weights_source(weights),
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
    source = _SOURCE
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
