// Waiting: the clock, futexes, and spinning for a short time.

#pragma once

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static bool futex_wait(void* word, uint32_t value, int64_t ns) {
  struct timespec limit = {ns / 1000000000ll, ns % 1000000000ll};
  long code = syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, ns ? &limit : NULL, NULL, 0);
  return code == 0 || errno != ETIMEDOUT;
}

static void futex_wake(void* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

typedef struct {
  int64_t limit, end;
  unsigned steps;
} Spin;

// Waits a moment; returns false when the spinning time is over. Looks at the clock now and then.
static inline bool spin(Spin* spin) {
  if (spin->limit == 0) return false;
  __builtin_ia32_pause();
  if (++spin->steps % 16) return true;
  if (spin->limit == INT64_MAX) {
    if (spin->steps > 1024) sched_yield();
    return atomic_load_explicit(&always_users, memory_order_relaxed) > 0;
  }
  const int64_t time = now();
  if (spin->end == 0) spin->end = time + spin->limit;
  return time < spin->end;
}
