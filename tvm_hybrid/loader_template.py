"""The C++ source of a library's loader, with marks where `library_loader` puts what is its own."""

from __future__ import annotations

TEMPLATE = r"""
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
