// Regions: a region runs from its first task until no helper may use it any more.

#pragma once

#include <stdlib.h>

#include "state.h"
#include "tasks.h"
#include "threads.h"
#include "waiting.h"

// Offers the tasks from 1 on to at most `most` workers; tasks that nobody gets become loose.
// Returns the number of offered tasks.
static int offer_tasks(Region* region, int most) {
  Pool* pool = region->pool;
  const int others = region->group.count - 1;
  const int needed = others < most ? others : most;
  int size = atomic_load_explicit(&pool->size, memory_order_acquire);
  if (size < needed) {
    grow(pool, needed);
    size = atomic_load(&pool->size);
  }
  int offered = 0, next = others;  // workers from `next` on are preferred by no task of this region
  for (int task = 1; task <= others; ++task) {
    bool found = offered < most && task <= size && offer(pool->workers[task - 1], region, task);
    while (!found && offered < most && next < size) found = offer(pool->workers[next++], region, task);
    if (found) {
      ++offered;
    } else {
      let_loose(region, task);
    }
  }
  return offered;
}

static void wait_for_helpers(Region* region) {
  Spin waiting = {spin_ns[region->spin], 0, 0};
  uint32_t left;
  while ((left = atomic_load_explicit(&region->pending, memory_order_acquire)) != 0) {
    if (left == kSleeping) return;
    if (spin(&waiting)) continue;
    left = atomic_fetch_or(&region->pending, kSleeping) | kSleeping;
    if (left != kSleeping) futex_wait(&region->pending, left, 0);
  }
}

static int run_region(State* state, Task task, void* data, int count) {
  _Alignas(kLine) Region region = {.group = {&region, count}, .task = task, .data = data};
  region.spin = state->spin;
  region.pool = state->pool;
  region.words = count > 1 ? (count + 63) / 64 : 0;
  region.loose = region.inline_words;
  if (region.words > kInlineWords) {
    region.loose = calloc(region.words, sizeof(region.loose[0]));
    if (!region.loose) return tvm.launch(task, data, count);
  }
  const int most = state->depth == 0 ? state->count - 1 : 0;  // most workers to use
  const bool shared = count > 1 && most > 0;
  ++state->depth;
  if (shared) {
    atomic_init(&region.pending, count - 1);
    const int missing = count - 1 - offer_tasks(&region, most);
    if (missing) atomic_fetch_sub(&region.pending, missing);
  } else {
    for (int i = 1; i < count; ++i) let_loose(&region, i);
  }
  run_task(&region, 0);
  for (int own; (own = take_loose(&region)) >= 0;) {
    // Workers of another region may be free by now.
    if (shared && atomic_load(&region.pending) < (uint32_t)most && has_loose(&region)) {
      atomic_fetch_add(&region.pending, 1);
      if (offer_any(region.pool, &region, own)) continue;
      atomic_fetch_sub(&region.pending, 1);
    }
    run_task(&region, own);
  }
  if (shared && atomic_load_explicit(&region.pending, memory_order_acquire)) {
    const int size = atomic_load(&region.pool->size);
    for (int i = 0; i < size; ++i) {
      const int own = take_back(region.pool->workers[i], &region);
      if (own < 0) continue;
      atomic_fetch_sub(&region.pending, 1);
      run_task(&region, own);
    }
  }
  wait_for_helpers(&region);
  --state->depth;
  if (region.loose != region.inline_words) free((void*)region.loose);
  if (!atomic_load(&region.failed)) return 0;
  void* error = atomic_load(&region.error);
  if (error) {
    tvm.raise_error(error);
    tvm.release(error);
  }
  return -1;
}
