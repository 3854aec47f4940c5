// Sleeping and waking of workers: a worker is woken on a CPU where no thread of this pool works.
//
// Linux may put a worker on the CPU of the thread that wakes it though another CPU is idle, above
// all in a virtual machine. So a waker removes some CPUs from the worker's affinity before it wakes
// it, and the worker restores its affinity before it runs anything. This is done only if the worker
// may run on all CPUs of the pool: an affinity set by others (a place, `taskset`, a cpuset) stays.
// Only a change by others between our check and our own change is lost.

#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"
#include "waiting.h"

#define RARE __attribute__((noinline, cold))

static bool may_run_on(pid_t thread, const cpu_set_t* cpus) {
  cpu_set_t own;
  return sched_getaffinity(thread, sizeof(own), &own) == 0 && CPU_EQUAL(&own, cpus);
}

static bool set_cpus(pid_t thread, const cpu_set_t* cpus) {
  return sched_setaffinity(thread, sizeof(*cpus), cpus) == 0;
}

static void count_awake(Worker* worker, int change) {
  const int cpu = worker->cpu;
  if (cpu >= 0 && cpu < CPU_SETSIZE) atomic_fetch_add(&worker->pool->awake[cpu], change);
}

static void note_awake(Worker* worker) {
  worker->cpu = sched_getcpu();
  count_awake(worker, 1);
}

// First action of a worker. If it could not restore its affinity (seccomp may forbid it), nobody
// may reduce it.
static void begin_work(Worker* worker) {
  const Pool* pool = worker->pool;
  worker->thread = (pid_t)syscall(SYS_gettid);  // glibc 2.28 has no gettid
  worker->movable = !pool->bound && may_run_on(0, &pool->all) && set_cpus(0, &pool->all);
  note_awake(worker);
}

// Removes from a sleeping worker's affinity this thread's CPU, and those of workers that are awake.
static void keep_off(Worker* worker) {
  Pool* pool = worker->pool;
  const int here = sched_getcpu();
  if (!worker->movable || here < 0) return;
  cpu_set_t left = pool->all;
  CPU_CLR(here, &left);
  for (int i = 0; i < pool->cpu_count; ++i) {
    const int cpu = pool->cpus[i];
    if (cpu < CPU_SETSIZE && atomic_load(&pool->awake[cpu])) CPU_CLR(cpu, &left);
  }
  if (CPU_COUNT(&left) == 0 || CPU_EQUAL(&left, &pool->all)) return;
  if (!may_run_on(worker->thread, &pool->all)) return;
  worker->left = left;
  worker->kept_off = set_cpus(worker->thread, &left);
}

// Wakes a worker for an offer; the caller has set its box to kWaking.
RARE static void wake(Worker* worker, uint64_t offered) {
  keep_off(worker);
  atomic_store(&worker->box, offered);
  futex_wake(&worker->box, 1);
}

// Sleeps until there is an offer; then restores the affinity.
RARE static void rest(Worker* worker) {
  count_awake(worker, -1);
  uint64_t box = kIdle;
  if (atomic_compare_exchange_strong(&worker->box, &box, kAsleep)) {
    while ((box = atomic_load(&worker->box)) == kAsleep || box == kWaking)
      futex_wait(&worker->box, (uint32_t)box, 0);
  }
  note_awake(worker);
  if (!worker->kept_off) return;
  worker->kept_off = false;
  if (may_run_on(0, &worker->left)) worker->movable = set_cpus(0, &worker->pool->all);
}
