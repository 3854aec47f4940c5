// The barrier: the only operation that needs all tasks of a region to run at once.

#pragma once

#include <limits.h>

#include "state.h"
#include "tasks.h"
#include "threads.h"
#include "waiting.h"

// Gives tasks that no thread has begun to extra threads.
RARE static void begin_all(Region* region) {
  for (int task; (task = take_loose(region)) >= 0;) {
    atomic_fetch_add(&region->pending, 1);
    if (give_to_extra(region, task)) continue;
    atomic_fetch_sub(&region->pending, 1);
    let_loose(region, task);
    return;
  }
  const int size = atomic_load(&region->pool->size);
  for (int i = 0; i < size; ++i) {
    const int task = take_back(region->pool->workers[i], region);
    if (task < 0 || give_to_extra(region, task)) continue;
    atomic_fetch_sub(&region->pending, 1);
    let_loose(region, task);
    return;
  }
}

static int barrier(int task, Group* group) {
  if (group->sync != group) return tvm.barrier(task, group);
  Region* region = (Region*)group;
  const uint32_t generation = atomic_load(&region->generation);
  if (atomic_fetch_add(&region->arrived, 1) + 1 == group->count) {
    atomic_store(&region->arrived, 0);
    atomic_fetch_add(&region->generation, 1);
    if (atomic_load(&region->sleepers)) futex_wake(&region->generation, INT_MAX);
    return 0;
  }
  Spin waiting = {kPatience, 0, 0};
  while (atomic_load(&region->generation) == generation) {
    if (atomic_load(&region->failed)) return -1;  // a failed task never comes here
    if (spin(&waiting)) continue;
    begin_all(region);
    atomic_fetch_add(&region->sleepers, 1);
    futex_wait(&region->generation, generation, kRecheck);
    atomic_fetch_sub(&region->sleepers, 1);
  }
  return 0;
}
