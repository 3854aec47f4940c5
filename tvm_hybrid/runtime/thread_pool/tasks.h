// Tasks of a region: running a task, loose tasks, and tasks that are offered to workers.

#pragma once

#include "state.h"
#include "waiting.h"
#include "waking.h"

static void run_task(Region* region, int task) {
  if (region->task(task, &region->group, region->data) == 0) return;
  void* error = NULL;
  void* none = NULL;
  tvm.take_error(&error);  // TVM keeps it in this thread
  atomic_store(&region->failed, true);
  if (error && !atomic_compare_exchange_strong(&region->error, &none, error)) tvm.release(error);
}

// Takes a loose task; returns -1 if there is none.
static int take_loose(Region* region) {
  for (int i = 0; i < region->words; ++i) {
    uint64_t bits = atomic_load_explicit(&region->loose[i], memory_order_relaxed);
    while (bits) {
      const uint64_t bit = bits & -bits;
      bits = atomic_fetch_and(&region->loose[i], ~bit);
      if (bits & bit) return i * 64 + __builtin_ctzll(bit);
      bits &= ~bit;
    }
  }
  return -1;
}

static void let_loose(Region* region, int task) {
  atomic_fetch_or(&region->loose[task / 64], 1ull << task % 64);
}

static bool has_loose(const Region* region) {
  for (int i = 0; i < region->words; ++i)
    if (atomic_load_explicit(&region->loose[i], memory_order_relaxed)) return true;
  return false;
}

// Ends a helper's use of its region, which may not exist any more afterwards.
static void leave(Region* region) {
  if (atomic_fetch_sub(&region->pending, 1) == (kSleeping | 1)) futex_wake(&region->pending, 1);
}

static bool offer(Worker* worker, Region* region, int task) {
  uint64_t box = atomic_load_explicit(&worker->box, memory_order_relaxed);
  const uint64_t offered = (uint64_t)region | (uint64_t)task << kTaskShift;
  while (box == kIdle || box == kAsleep) {
    const bool asleep = box == kAsleep;
    if (!atomic_compare_exchange_weak(&worker->box, &box, asleep ? kWaking : offered)) continue;
    if (asleep) wake(worker, offered);
    return true;
  }
  return false;
}

static bool offer_any(Pool* pool, Region* region, int task) {
  const int size = atomic_load_explicit(&pool->size, memory_order_acquire);
  for (int i = 0; i < size; ++i)
    if (offer(pool->workers[i], region, task)) return true;
  return false;
}

// Takes an offer back; returns -1 if the worker has no offer of this region, or has begun it.
static int take_back(Worker* worker, const Region* region) {
  uint64_t box = atomic_load(&worker->box);
  const uint64_t address = box & ((1ull << kTaskShift) - 1);
  if (address != (uint64_t)region) return -1;
  return atomic_compare_exchange_strong(&worker->box, &box, kIdle) ? (int)(box >> kTaskShift) : -1;
}
