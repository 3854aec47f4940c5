"""The C++ part of an exported library: its data, and the check of the CPU that it runs on.

TVM's runtime opens a library, finds the symbol `__tvm_ffi__library_bin`, and gives every module in
that data to the loader registered for the module's kind. We store the virtual machine's executable
under a kind of our own. Its loader is registered by the library's constructor, compiled for plain
x86-64; it asks `cpuid` for the features that the kernels need, and either raises a TVM error that
names those that are missing, or hands the data on to TVM's own loader. If kernels use AMX, it also
asks Linux for tile data; a denial is an error that says so and why. So the check runs in any
process that loads the library, Python or not, before any kernel can, and costs nothing afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from microkernels import amx_permission

from .cpu_features import AMX_STATE, FEATURES

_SOURCE = r"""
#include <cpuid.h>
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

// A process without TVM may still open the library; it then has nothing to register with.
#pragma weak TVMFFIFunctionCreate
#pragma weak TVMFFIFunctionSetGlobal
#pragma weak TVMFFIFunctionGetGlobal
#pragma weak TVMFFIFunctionCall
#pragma weak TVMFFIErrorSetRaisedFromCStr
#pragma weak TVMFFIObjectDecRef

asm(".section .tvm_hybrid_model, \"a\", @progbits\n"
    ".balign 64\n"
    ".globl __tvm_ffi__library_bin\n"
    ".type __tvm_ffi__library_bin, @object\n"
    "__tvm_ffi__library_bin:\n"
@DATA@    ".previous\n");

namespace {

struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  int word;  // eax, ebx, ecx, edx
  int bit;
  unsigned state;  // of XCR0
};

const Feature kFeatures[] = {
@FEATURES@    {nullptr, 0, 0, 0, 0, 0}};

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

void Append(char* text, size_t capacity, const char* more) {
  strncat(text, more, capacity - strlen(text) - 1);
}

int Load(void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {
  const unsigned state = SavedState();
  const bool emulated = Emulated();
  char text[2048] = "this library was compiled by tvm_hybrid for " @CPU@ " and needs ";
  bool missing = false, tiles = false;
  for (const Feature* feature = kFeatures; feature->name; ++feature) {
    if (feature->state == kTileState) {
      // Whether the state of tiles may be used is a question to Linux, below.
      tiles = true;
      if (emulated || Has(*feature, kTileState)) continue;
    } else if (Has(*feature, state)) {
      continue;
    }
    if (missing) Append(text, sizeof(text), ", ");
    Append(text, sizeof(text), feature->name);
    missing = true;
  }
  if (missing) {
    Append(text, sizeof(text),
           ", which this CPU lacks; run it on such a CPU, or compile the model for this one");
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
    return -1;
  }
  if (const char* reason = tiles && !emulated ? Denied() : nullptr) {
    Append(text, sizeof(text), "AMX tiles, and Linux denies them: ");
    Append(text, sizeof(text), reason);
    Append(text, sizeof(text), "; " @ADVICE@);
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
    return -1;
  }
  const char* name = "ffi.Module.load_from_bytes.relax.VMExecutable";
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle loader = nullptr;
  if (TVMFFIFunctionGetGlobal(&key, &loader) != 0) return -1;
  if (loader == nullptr) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "this TVM runtime has no Relax virtual machine");
    return -1;
  }
  const int code =
      TVMFFIFunctionCall(loader, const_cast<TVMFFIAny*>(args), num_args, result);
  TVMFFIObjectDecRef(loader);
  return code;
}

__attribute__((constructor)) void RegisterLoader() {
  if (!TVMFFIFunctionCreate || !TVMFFIFunctionSetGlobal) return;
  const char* name = "ffi.Module.load_from_bytes." @KIND@;
  TVMFFIByteArray key = {name, strlen(name)};
  TVMFFIObjectHandle loader = nullptr;
  if (TVMFFIFunctionCreate(nullptr, Load, nullptr, &loader) != 0) return;
  TVMFFIFunctionSetGlobal(&key, loader, 1);
  TVMFFIObjectDecRef(loader);
}

}  // namespace
"""

_WORDS = {"eax": 0, "ebx": 1, "ecx": 2, "edx": 3}


def guard_source(
    kind: str, cpu: str, features: tuple[str, ...], data: Sequence[tuple[Path, int]]
) -> str:
    """The C++ source of the guard.

    Parameters
    ----------
    kind : str
        The module kind that the data names; letters, digits, dots and underscores.
    cpu : str
        What the library is compiled for; for the message.
    features : tuple of str
        Names in `cpu_features.FEATURES`.
    data : sequence of (Path, int)
        The library's data: files, each from an offset to its end, one after the other.
    """
    rows = "".join(
        f'    {{"{feature.name}", {feature.leaf:#x}u, {feature.subleaf}, '
        f"{_WORDS[feature.register]}, {feature.bit}, {feature.state:#x}u}},\n"
        for feature in (FEATURES[name] for name in features)
    )
    included = "".join(
        f'    ".incbin " {_quoted_twice(path)} ", {offset}\\n"\n' for path, offset in data
    )
    replacements = {
        "@DATA@": included,
        "@FEATURES@": rows,
        "@CPU@": json.dumps(cpu),
        "@KIND@": json.dumps(kind),
        "@TILE_STATE@": f"{AMX_STATE:#x}u",
        "@REFUSALS@": "".join(
            f"    {{{code or 0}, {json.dumps(reason)}}},\n"
            for code, reason in amx_permission.REFUSALS.items()
        ),
        "@EMULATOR@": json.dumps(amx_permission.EMULATOR),
        "@ARCH_PRCTL@": str(amx_permission.ARCH_PRCTL),
        "@REQUEST@": f"{amx_permission.REQUEST:#x}",
        "@TILE_DATA@": str(amx_permission.TILE_DATA),
        "@ADVICE@": json.dumps(amx_permission.ADVICE),
    }
    source = _SOURCE
    for mark, text in replacements.items():
        source = source.replace(mark, text)
    return source


def _quoted_twice(path: Path) -> str:
    """A C string literal that holds an assembler string literal."""
    return json.dumps(json.dumps(str(path), ensure_ascii=False), ensure_ascii=False)
