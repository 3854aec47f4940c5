// Data structures: states of calling threads, regions, workers, extra threads and pools.

#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "tvm_types.h"

enum { kRun, kAlways, kNever };  // how long to spin
static int64_t spin_ns[] = {100000, INT64_MAX, 0};
static atomic_int always_users;

enum { kMostWorkers = 8192, kInlineWords = 2, kLine = 64 };
static const int64_t kPatience = 50000;          // ns until a barrier starts extra threads
static const int64_t kRecheck = 10000000;        // ns until a barrier looks again
static const int64_t kExtraIdle = 1000000000ll;  // ns until an idle extra thread ends

typedef struct Pool Pool;

typedef struct {  // state of a calling thread or of a worker
  Pool* pool;
  int count, spin;
  int depth;  // nesting depth of regions
} State;
static pthread_key_t state_key;

typedef struct {
  Group group;  // must be first; its `sync` holds its own address
  Task task;
  void* data;
  _Atomic uint32_t pending;  // number of helpers that may still use this, and kSleeping
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
static const uint32_t kSleeping = 1u << 31;  // the caller sleeps

// States of a box. Larger values are an offer: the region's address, with the task in the upper
// 16 bits. kWaking: still asleep, but a caller is about to make an offer and to wake the worker.
enum { kIdle, kAsleep, kWaking, kBusy };
enum { kTaskShift = 48 };

typedef struct {
  _Alignas(2 * kLine) _Atomic uint64_t box;
  Pool* pool;
  int number;
  pid_t thread;
  int cpu;        // CPU on which it woke
  // The owner of the box owns the following fields: the waker at kWaking, else the worker.
  bool movable;   // its affinity may be changed
  bool kept_off;  // its affinity is reduced to `left` until it has woken
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
  atomic_int size;          // number of workers
  bool bound;               // worker i is bound to CPU i + 1
  int cpu_count;
  int* cpus;
  cpu_set_t all;            // `cpus` as a set
  atomic_ushort awake[CPU_SETSIZE];  // for each CPU: workers that woke there and are awake
  Extra* idle;
  Worker* workers[kMostWorkers];
};
static Pool* pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
