// What lies in memory: the states of calling threads, regions, workers, extra threads and pools.

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tvm_types.h"

enum { kRun, kAlways, kNever };  // for how long to spin
static int64_t spin_ns[] = {100000, INT64_MAX, 0};
static atomic_int always_users;

enum { kMostWorkers = 8192, kInlineWords = 2, kLine = 64 };
static const int64_t kPatience = 50000;          // ns before a barrier starts extra threads
static const int64_t kRecheck = 10000000;        // ns until it looks again
static const int64_t kExtraIdle = 1000000000ll;  // ns until an extra thread ends

typedef struct Pool Pool;

typedef struct {  // of a calling thread, or a worker
  Pool* pool;
  int count, spin;
  int depth;  // of regions
} State;
static pthread_key_t state_key;

typedef struct {
  Group group;  // the first; its `sync` is its own address
  Task task;
  void* data;
  _Atomic uint32_t pending;  // helpers that may still use this, and kSleeping
  int spin;
  Pool* pool;
  void* _Atomic error;
  atomic_bool failed;
  int words;
  _Atomic uint64_t* loose;  // a bit for each task
  _Atomic uint32_t generation;
  atomic_int arrived, sleepers;  // at the barrier
  _Atomic uint64_t inline_words[kInlineWords];
} Region;
static const uint32_t kSleeping = 1u << 31;  // the caller does

// A box. Larger values are an offer: the region's address, and in the upper 16 bits the task.
// kWaking: still asleep, but a caller is about to offer something and to wake it.
enum { kIdle, kAsleep, kWaking, kBusy };
enum { kTaskShift = 48 };

typedef struct {
  _Alignas(2 * kLine) _Atomic uint64_t box;
  Pool* pool;
  int number;
  pid_t thread;
  int cpu;        // where it woke
  // Who owns the box owns what follows: the waker at kWaking, else the worker.
  bool movable;   // may be kept off CPUs
  bool kept_off;  // is, until it has woken; then `left` is where it may run
  cpu_set_t left;
} Worker;

typedef struct Extra {
  struct Extra* next;
  _Atomic uint32_t given;
  Region* region;
  int task;
  Pool* pool;
} Extra;

struct Pool {
  Pool* next;
  pthread_mutex_t lock;
  atomic_int size;          // workers
  bool bound;               // worker i to CPU i + 1
  int cpu_count;
  int* cpus;
  cpu_set_t all;            // the same
  atomic_ushort awake[CPU_SETSIZE];  // for each CPU, workers that woke there and are awake
  Extra* idle;
  Worker* workers[kMostWorkers];
};
static Pool* pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
