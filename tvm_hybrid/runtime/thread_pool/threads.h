// Threads of a pool: starting them, and the loops of workers and extra threads.

#pragma once

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "state.h"
#include "tasks.h"
#include "waiting.h"
#include "waking.h"

RARE static bool start_thread(Pool* pool, int worker, void* (*run)(void*), void* argument) {
  cpu_set_t cpus = pool->all;
  if (pool->bound && worker >= 0 && worker + 1 < pool->cpu_count) {
    CPU_ZERO(&cpus);
    CPU_SET(pool->cpus[worker + 1], &cpus);
  }
  // Block all signals for the program's threads; but not those that this thread's code causes.
  sigset_t blocked, before;
  sigfillset(&blocked);
  const int own[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGSYS};
  for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); ++i) sigdelset(&blocked, own[i]);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  // If a CPU has gone offline, the thread runs where this one may.
  pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
  int code = pthread_create(&thread, &attributes, run, argument);
  if (code == EINVAL) {
    sched_getaffinity(0, sizeof(cpus), &cpus);
    pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
    code = pthread_create(&thread, &attributes, run, argument);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return code == 0;
}

// Sets the state of a thread of the pool: regions inside a task run in its thread alone.
static void become_helper(Pool* pool, const char* name) {
  State* state = calloc(1, sizeof(State));
  if (state) {
    state->pool = pool;
    state->count = 1;
    state->spin = kNever;
    pthread_setspecific(state_key, state);
  }
  pthread_setname_np(pthread_self(), name);
}

static void* run_worker(void* argument) {
  Worker* worker = argument;
  become_helper(worker->pool, "tvm_hybrid");
  begin_work(worker);
  Spin waiting = {spin_ns[kRun], 0, 0};
  for (;;) {
    uint64_t box = atomic_load_explicit(&worker->box, memory_order_acquire);
    if (box > kBusy) {
      if (!atomic_compare_exchange_strong(&worker->box, &box, kBusy)) continue;
      Region* region = (Region*)(box & ((1ull << kTaskShift) - 1));
      waiting = (Spin){spin_ns[region->spin], 0, 0};
      run_task(region, (int)(box >> kTaskShift));
      for (int task; (task = take_loose(region)) >= 0;) run_task(region, task);
      atomic_store_explicit(&worker->box, kIdle, memory_order_release);
      leave(region);
    } else if (!spin(&waiting)) {
      rest(worker);
      waiting = (Spin){waiting.limit, 0, 0};
    }
  }
  return NULL;
}

static void* run_extra(void* argument) {
  Extra* extra = argument;
  Pool* pool = extra->pool;
  become_helper(pool, "tvm_hybrid_more");
  for (;;) {
    run_task(extra->region, extra->task);
    Region* region = extra->region;
    atomic_store(&extra->given, 0);
    pthread_mutex_lock(&pool->lock);
    extra->next = pool->idle;
    pool->idle = extra;
    pthread_mutex_unlock(&pool->lock);
    leave(region);
    while (!atomic_load(&extra->given)) {
      if (futex_wait(&extra->given, 0, kExtraIdle)) continue;
      pthread_mutex_lock(&pool->lock);
      Extra** place = &pool->idle;
      while (*place && *place != extra) place = &(*place)->next;
      const bool unused = *place != NULL;  // false if another thread has just taken it
      if (unused) *place = extra->next;
      pthread_mutex_unlock(&pool->lock);
      if (unused) {
        free(extra);
        return NULL;
      }
    }
  }
}

// Lets an extra thread run a task that `pending` counts already; false if there is no thread.
RARE static bool give_to_extra(Region* region, int task) {
  Pool* pool = region->pool;
  pthread_mutex_lock(&pool->lock);
  Extra* extra = pool->idle;
  if (extra) pool->idle = extra->next;
  pthread_mutex_unlock(&pool->lock);
  const bool known = extra != NULL;
  if (!known && !(extra = calloc(1, sizeof(Extra)))) return false;
  extra->pool = pool;
  extra->region = region;
  extra->task = task;
  atomic_store(&extra->given, 1);
  if (known) {
    futex_wake(&extra->given, 1);
  } else if (!start_thread(pool, -1, run_extra, extra)) {
    free(extra);
    return false;
  }
  return true;
}

// Starts workers until there are `size`, or as many as the system allows.
RARE static void grow(Pool* pool, int size) {
  pthread_mutex_lock(&pool->lock);
  for (int i = atomic_load(&pool->size); i < size; ++i) {
    if (!pool->workers[i]) {
      Worker* worker = aligned_alloc(_Alignof(Worker), sizeof(Worker));
      if (!worker) break;
      worker->pool = pool;
      worker->number = i;
      pool->workers[i] = worker;
    }
    atomic_init(&pool->workers[i]->box, kIdle);
    pool->workers[i]->kept_off = false;
    if (!start_thread(pool, i, run_worker, pool->workers[i])) break;
    atomic_store(&pool->size, i + 1);
  }
  pthread_mutex_unlock(&pool->lock);
}
