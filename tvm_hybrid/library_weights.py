"""The C++ part of an exported library that maps the weights behind it.

`weights_file` says how they lie in the file. The library looks for its own file, checks that this
still is the one that was exported, and maps the weights, for reading only: processes share the
pages, and nothing is read before a kernel reads it. The virtual machine asks for each weight by a
function of the library, named after the program, with its number. What is mapped goes when the
library is closed; tensors that somebody still holds then keep their pages.

A program may have weights of its own instead: the global function `tvm_hybrid.own_weights.<digest>`
takes the name of a global function, and returns a program that asks that one. The library's
function `tvm_hybrid_giving` makes such a function of tensors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from relay_passes.tvm_compat import SYMBOL_PREFIX

from .weights_file import MAGIC, PAGE, Weight, WeightsFile

OWN_WEIGHTS_PREFIX = "tvm_hybrid.own_weights."
GIVING = "tvm_hybrid_giving"
_NAME = "tvm_hybrid_weight_of_{:08}"

SOURCE = r"""
struct Weight {
  unsigned long long offset;  // from the first one's place
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

// One of some tensors, by the number that is the argument; without one, how many there are.
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
"""

EXPORTS = r"""
#define TVM_HYBRID_EXPORT extern "C" __attribute__((visibility("default")))

// A function that gives these tensors by their numbers.
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

@GETTERS@
"""

_GETTER = r"""
TVM_HYBRID_EXPORT int {symbol}(void*, const TVMFFIAny* arguments, int32_t count,
                               TVMFFIAny* result) {{
  if (!HaveWeights()) return -1;
  return Give(weights + {first}, {number}, arguments, count, result);
}}
"""


def weights_function(place: int) -> str:
    """The name of the function that gives the weights of a library's program, 0 for the first.

    All have the same length.
    """
    return _NAME.format(place)


def weights_source(file: WeightsFile) -> dict[str, str]:
    """What to put into `SOURCE` and `EXPORTS`."""
    rows = [weight for program in file.programs for weight in program]
    getters, first = [], 0
    for place, program in enumerate(file.programs):
        symbol = SYMBOL_PREFIX + weights_function(place)
        getters.append(_GETTER.format(symbol=symbol, first=first, number=len(program)))
        first += len(program)
    return {
        "@WEIGHT_ROWS@": _tables(rows),
        "@HEAD@": json.dumps((MAGIC + file.identity.encode()).decode()),
        "@BYTES@": f"{file.size}ull",
        "@COUNT@": str(len(rows)),
        "@PAGE@": str(PAGE),
        "@GIVING@": SYMBOL_PREFIX + GIVING,
        "@GETTERS@": "".join(getters),
    }


def _tables(rows: Sequence[Weight]) -> str:
    shapes = "".join(
        f"const long long kShape{number}[] = {{{', '.join(map(str, row.shape)) or '0'}}};\n"
        for number, row in enumerate(rows)
    )
    items = "".join(
        f"    {{{row.offset}ull, {{{', '.join(map(str, row.dtype))}}}, {len(row.shape)}, "
        f"kShape{number}}},\n"
        for number, row in enumerate(rows)
    )
    return f"{shapes}const Weight kWeights[] = {{\n{items}    {{0, {{0, 0, 0}}, 0, nullptr}}}};\n"
