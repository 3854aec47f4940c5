// The thread pool of the process: runs the parallel regions of compiled kernels.
//
// A region is n tasks of one function. The calling thread runs task 0. Each other task is offered
// to an idle worker, task i to worker i - 1 if possible, so that a worker finds its part of the
// weights in its cache. A task that no worker accepts is loose: a thread that has finished a task
// takes a loose one. In the end the caller takes back the tasks that no worker has begun. So a
// region ends with any number of workers, and any number of threads can share a pool.
//
// Only a barrier needs all tasks of a region at once. A task that waits there too long for tasks
// that no thread has begun gives them to extra threads, which end when they have been idle a while.
//
// A waiting thread spins for a short time and then sleeps on a futex. A worker has one word, its
// box: its state, or an offer. A word of the region counts the helpers that may still use the
// region, which lies on the caller's stack.
//
// A thread without a setting of ours uses TVM's own pool: `launch`, `barrier` and `number` call
// TVM's functions. This file has the functions that TVM and Python call; the headers are parts of
// it, in the order of their includes. `tools/thread_pool_code.py` compiles all of it to pool.ll.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tvm_types.h"
#include "state.h"
#include "waiting.h"
#include "waking.h"
#include "tasks.h"
#include "threads.h"
#include "regions.h"
#include "barrier.h"

// Functions that TVM's code calls.

static int launch(Task task, void* data, int count) {
  State* state = pthread_getspecific(state_key);
  if (!state) return tvm.launch(task, data, count);
  return run_region(state, task, data, count > 0 ? count : state->count);
}

static int number(void* self, const Any* arguments, int32_t count, Any* result) {
  (void)self, (void)arguments, (void)count;
  State* state = pthread_getspecific(state_key);
  if (!state) return tvm.call(tvm.threads_of_tvm, NULL, 0, result);
  result->type = kInt;
  result->padding = 0;
  result->number = state->count;
  return 0;
}

// Functions that Python calls.

static Pool* pool_of(bool bound, const int* cpus, int cpu_count) {
  pthread_mutex_lock(&pools_lock);
  Pool* pool = pools;
  while (pool && !(pool->bound == bound &&
                   (!bound || (pool->cpu_count == cpu_count &&
                               memcmp(pool->cpus, cpus, cpu_count * sizeof(int)) == 0))))
    pool = pool->next;
  if (!pool && (pool = calloc(1, sizeof(Pool)))) {
    pool->cpus = malloc((cpu_count + 1) * sizeof(int));
    pthread_mutex_init(&pool->lock, NULL);
    pool->bound = bound;
    if (pool->cpus) {
      memcpy(pool->cpus, cpus, cpu_count * sizeof(int));
      pool->cpu_count = cpu_count;
      for (int i = 0; i < cpu_count; ++i) CPU_SET(cpus[i], &pool->all);
    }
    pool->next = pools;
    pools = pool;
  }
  pthread_mutex_unlock(&pools_lock);
  return pool;
}

// Sets how regions of the calling thread run; 0 threads: TVM's own pool. Returns 0 or an errno.
static int use(int count, int spin, int bound, const int* cpus, int cpu_count) {
  State* state = pthread_getspecific(state_key);
  if (count == 0) {
    pthread_setspecific(state_key, NULL);
    free(state);
    return 0;
  }
  Pool* pool = pool_of(bound, cpus, cpu_count);
  if (!state && pool && (state = calloc(1, sizeof(State)))) pthread_setspecific(state_key, state);
  if (!state || !pool) return ENOMEM;
  state->pool = pool;
  state->count = count <= kMostWorkers ? count : kMostWorkers;
  state->spin = spin;
  return 0;
}

// Changes the number of users of kAlways.
static void add_always(int change) { atomic_fetch_add(&always_users, change); }

// The child of a fork has no workers.
static void forget_threads(void) {
  pthread_mutex_init(&pools_lock, NULL);
  for (Pool* pool = pools; pool; pool = pool->next) {
    pthread_mutex_init(&pool->lock, NULL);
    atomic_store(&pool->size, 0);
    for (int i = 0; i < CPU_SETSIZE; ++i) atomic_store(&pool->awake[i], 0);
    pool->idle = NULL;
  }
}

// glibc's internal name of pthread_atfork, which no shared library exports.
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void*);

static int start(const Tvm* functions) {
  tvm = *functions;
  const int code = pthread_key_create(&state_key, free);
  return code ? code : __register_atfork(NULL, NULL, forget_threads, NULL);
}

// TVM calls this as the module's function "addresses": argument i returns the i-th address.
int __tvm_ffi_addresses(void* self, const Any* arguments, int32_t count, Any* result) {
  (void)self;
  void* const all[] = {(void*)start, (void*)use,     (void*)add_always,
                       (void*)launch, (void*)barrier, (void*)number};
  if (count != 1 || arguments[0].number < 0 ||
      arguments[0].number >= (int64_t)(sizeof(all) / sizeof(all[0])))
    return -1;
  result->type = kInt;
  result->padding = 0;
  result->number = (int64_t)all[arguments[0].number];
  return 0;
}
