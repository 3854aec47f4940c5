// The loader of an exported library. `library_loader.py` replaces the names between @ signs.

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
  const Run* runs;  // concatenated, they are the virtual machine's executable
  int count;
  const char* weights;  // the function that returns its weights
};

const Program kPrograms[] = {
@PROGRAMS@};
const int kCount = sizeof(kPrograms) / sizeof(kPrograms[0]);

int chosen = -1;

const unsigned kTileState = @TILE_STATE@;

struct Refusal {
  int code;  // errno; 0 stands for all others
  const char* reason;
};

const Refusal kRefusals[] = {
@REFUSALS@};

bool Emulated() {
  typedef int (*Active)(void);
  Active active = reinterpret_cast<Active>(dlsym(RTLD_DEFAULT, @EMULATOR@));
  return active && active();
}

// Asks Linux for tile data: null if it is permitted, else the reason.
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

// Whether a program runs here; if not, appends the CPU that it is for and what is missing, and sets
// the advice unless there is one already.
bool Runs(const Program& program, Text* text) {
  const unsigned state = SavedState();
  const bool emulated = Emulated();
  bool missing = false, tiles = false;
  for (const Feature* feature = program.features; feature->name; ++feature) {
    if (feature->state == kTileState) {
      // Whether Linux permits tile state is asked below.
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

struct Weight {
  unsigned long long offset;  // from the start of the head
  DLDataType dtype;
  int ndim;
  const long long* shape;
};

@WEIGHT_ROWS@
const char kWeightsHead[] = @HEAD@;
const unsigned long long kWeightsBytes = @BYTES@;
const int kWeightCount = @COUNT@;

pthread_mutex_t weights_lock = PTHREAD_MUTEX_INITIALIZER;
char* weights_place = nullptr;
void* weights_memory = nullptr;  // what tensors need besides
TVMFFIObjectHandle weights[kWeightCount + 1];
int weights_ready = 0;

bool Fail(const char* path, const char* reason) {
  char text[4096];
  snprintf(text, sizeof(text), "the weights of %s cannot be used: %s; export it again", path,
           reason);
  TVMFFIErrorSetRaisedFromCStr("RuntimeError", text);
  return false;
}

// Where weights begin in the file of a library: at the page behind the table of sections.
bool FindWeights(int file, unsigned long long* start) {
  Elf64_Ehdr header;
  if (pread(file, &header, sizeof(header), 0) != sizeof(header)) return false;
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  *start = header.e_shoff + 1ull * header.e_shentsize * header.e_shnum;
  *start = (*start + @PAGE@ - 1) / @PAGE@ * @PAGE@;
  return true;
}

char* MapFile(const char* path, int file) {
  unsigned long long start;
  struct stat state;
  if (fstat(file, &state) != 0) return Fail(path, strerror(errno)), nullptr;
  const unsigned long long size = state.st_size;
  if (!FindWeights(file, &start) || size < start || size - start < kWeightsBytes)
    return Fail(path, "it is truncated"), nullptr;
  char head[sizeof(kWeightsHead) - 1];
  if (pread(file, head, sizeof(head), start) != sizeof(head) ||
      memcmp(head, kWeightsHead, sizeof(head)) != 0)
    return Fail(path, "they are those of another library"), nullptr;
  void* place = mmap(nullptr, kWeightsBytes, PROT_READ, MAP_SHARED, file, start);
  if (place == MAP_FAILED) return Fail(path, strerror(errno)), nullptr;
  return static_cast<char*>(place);
}

char* MapWeights() {
  Dl_info info;
  if (!dladdr(&weights_lock, &info) || !info.dli_fname)
    return Fail("a library", "its file is not known"), nullptr;
  char* resolved = realpath(info.dli_fname, nullptr);
  const char* path = resolved ? resolved : info.dli_fname;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  char* place = nullptr;
  if (file < 0) {
    Fail(path, strerror(errno));
  } else {
    place = MapFile(path, file);
    close(file);
  }
  free(resolved);
  return place;
}

bool MakeTensors(char* place) {
  size_t sizes = 0;
  for (int i = 0; i < kWeightCount; ++i) sizes += kWeights[i].ndim;
  char* memory = static_cast<char*>(
      calloc(1, kWeightCount * sizeof(DLManagedTensor) + sizes * sizeof(int64_t)));
  if (!memory) return Fail("a library", "there is no memory"), false;
  DLManagedTensor* managed = reinterpret_cast<DLManagedTensor*>(memory);
  int64_t* shape = reinterpret_cast<int64_t*>(managed + kWeightCount);
  int made = 0;
  for (; made < kWeightCount; ++made) {
    const Weight& weight = kWeights[made];
    DLTensor* tensor = &managed[made].dl_tensor;
    tensor->data = place + weight.offset;
    tensor->device.device_type = kDLCPU;
    tensor->ndim = weight.ndim;
    tensor->dtype = weight.dtype;
    tensor->shape = shape;
    for (int i = 0; i < weight.ndim; ++i) *shape++ = weight.shape[i];
    if (TVMFFITensorFromDLPack(&managed[made], 64, 1, &weights[made]) != 0) break;
  }
  if (made == kWeightCount) {
    weights_memory = memory;
    return true;
  }
  while (made > 0) TVMFFIObjectDecRef(weights[--made]);
  free(memory);
  return false;
}

// Makes the weights' tensors, the first time; false if an error is raised.
bool HaveWeights() {
  if (__atomic_load_n(&weights_ready, __ATOMIC_ACQUIRE)) return true;
  pthread_mutex_lock(&weights_lock);
  if (!weights_ready) {
    char* place = MapWeights();
    if (place && MakeTensors(place)) {
      weights_place = place;
      __atomic_store_n(&weights_ready, 1, __ATOMIC_RELEASE);
    } else if (place) {
      munmap(place, kWeightsBytes);
    }
  }
  pthread_mutex_unlock(&weights_lock);
  return weights_ready;
}

uint64_t* Uses(TVMFFIObjectHandle handle) {
  return &static_cast<TVMFFIObject*>(handle)->combined_ref_count;
}

__attribute__((destructor)) void DropWeights() {
  if (!weights_ready) return;
  bool used = false;
  for (int i = 0; i < kWeightCount; ++i) {
    used = used || __atomic_load_n(Uses(weights[i]), __ATOMIC_ACQUIRE) % (1ull << 32) != 1;
    TVMFFIObjectDecRef(weights[i]);
  }
  weights_ready = 0;
  if (used) return;  // a tensor that outlives the library needs its pages and its shape
  munmap(weights_place, kWeightsBytes);
  free(weights_memory);
}

// Returns one of the items, by the number in the argument; without an argument, their count.
int Give(TVMFFIObjectHandle* items, int count, const TVMFFIAny* arguments, int given,
         TVMFFIAny* result) {
  if (given == 0) {
    result->type_index = kTVMFFIInt;
    result->zero_padding = 0;
    result->v_int64 = count;
    return 0;
  }
  if (given != 1 || arguments[0].type_index != kTVMFFIInt || arguments[0].v_int64 < 0 ||
      arguments[0].v_int64 >= count) {
    TVMFFIErrorSetRaisedFromCStr("IndexError", "there is no weight of this number");
    return -1;
  }
  TVMFFIObject* item = static_cast<TVMFFIObject*>(items[arguments[0].v_int64]);
  TVMFFIObjectIncRef(item);
  result->type_index = item->type_index;
  result->zero_padding = 0;
  result->v_obj = item;
  return 0;
}

struct Given {
  int count;
  TVMFFIObjectHandle items[1];
};

int GiveGiven(void* self, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  Given* given = static_cast<Given*>(self);
  return Give(given->items, given->count, arguments, count, result);
}

void DropGiven(void* self) {
  Given* given = static_cast<Given*>(self);
  for (int i = 0; i < given->count; ++i) TVMFFIObjectDecRef(given->items[i]);
  free(given);
}

// Joins the pieces of a program that shares some with another; null if there is no memory.
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

// Passes a program to TVM's own loader.
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

// The chosen program, made to get its weights from the global function of this name.
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

#define TVM_HYBRID_EXPORT extern "C" __attribute__((visibility("default")))

// Returns a function that returns these tensors by their numbers.
TVM_HYBRID_EXPORT int @GIVING@(void*, const TVMFFIAny* arguments, int32_t count,
                               TVMFFIAny* result) {
  Given* given =
      static_cast<Given*>(malloc(sizeof(Given) + count * sizeof(TVMFFIObjectHandle)));
  if (!given) return Fail("a library", "there is no memory"), -1;
  for (int i = 0; i < count; ++i) {
    if (arguments[i].type_index != kTVMFFITensor) {
      free(given);
      TVMFFIErrorSetRaisedFromCStr("TypeError", "weights are tensors");
      return -1;
    }
    given->items[i] = arguments[i].v_obj;
  }
  given->count = count;
  TVMFFIObjectHandle function = nullptr;
  for (int i = 0; i < count; ++i) TVMFFIObjectIncRef(given->items[i]);
  if (TVMFFIFunctionCreate(given, GiveGiven, DropGiven, &function) != 0) return -1;
  result->type_index = kTVMFFIFunction;
  result->zero_padding = 0;
  result->v_obj = static_cast<TVMFFIObject*>(function);
  return 0;
}

// A function of the library that returns a program's weights by their numbers.
#define TVM_HYBRID_WEIGHTS(symbol, first, number)                                          \
  TVM_HYBRID_EXPORT int symbol(void*, const TVMFFIAny* arguments, int32_t count,           \
                               TVMFFIAny* result) {                                        \
    if (!HaveWeights()) return -1;                                                         \
    return Give(weights + first, number, arguments, count, result);                        \
  }

@GETTERS@
