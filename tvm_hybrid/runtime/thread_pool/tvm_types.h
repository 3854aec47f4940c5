// Types of TVM that the pool uses: see tvm/runtime/c_backend_api.h and tvm/ffi/c_api.h.

#pragma once

#include <stdint.h>

typedef struct {
  void* sync;
  int32_t count;
} Group;
typedef int (*Task)(int task, Group* group, void* data);
typedef struct {
  int32_t type;
  uint32_t padding;
  int64_t number;
} Any;
enum { kInt = 1 };  // a type of Any

typedef struct {
  int (*launch)(Task, void*, int);
  int (*barrier)(int, Group*);
  int (*call)(void* function, Any* arguments, int32_t count, Any* result);
  void (*take_error)(void** error);
  void (*raise_error)(void* error);
  int (*release)(void* object);
  void* threads_of_tvm;  // TVM's function runtime.NumThreads
} Tvm;
static Tvm tvm;
