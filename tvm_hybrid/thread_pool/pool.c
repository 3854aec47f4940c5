// The thread pool of the process: runs the parallel regions of compiled kernels.
//
// A region is n tasks of one function. The calling thread runs task 0. Each other task is offered to
// a worker that has nothing to do, task i to worker i - 1 if it can be, so that a worker finds its
// share of the weights in its cache. What is offered to nobody is loose: whoever is done with a
// task takes a loose one. In the end the caller takes back what no worker has begun. So a region is
// done however few workers there are, and any number of threads share a pool.
//
// Only a barrier needs all tasks of a region at once. A task that waits there too long for tasks
// that nobody has begun gives them to extra threads, which end when they have been idle for a while.
//
// Whoever waits, spins for a short time and then sleeps on a futex. A worker has one word, its box:
// what it does, or what it is offered. The word of a region counts the helpers that may still use
// the region, which lies on the caller's stack.
//
// A thread that has no setting of ours gets TVM's own pool: `launch`, `barrier` and `number` hand
// over to TVM's functions. `tools/thread_pool_code.py` makes pool.ll of this file.

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// TVM's, see tvm/runtime/c_backend_api.h and tvm/ffi/c_api.h.
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
  void* threads_of_tvm;  // its function runtime.NumThreads
} Tvm;
static Tvm tvm;

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
enum { kIdle, kAsleep, kBusy };
enum { kTaskShift = 48 };

typedef struct {
  _Alignas(2 * kLine) _Atomic uint64_t box;
  Pool* pool;
  int number;
  pid_t thread;
  atomic_int cpu;        // where it woke; kNowhere while it sleeps
  atomic_bool kept_off;  // from some CPUs, until it has woken
} Worker;
enum { kNowhere = -1 };

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
  Extra* idle;
  Worker* workers[kMostWorkers];
};
static Pool* pools;
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

// Waiting.

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

// Waits a moment; false if that was long enough. Looks at the clock now and then.
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

// Tasks.

static void run_task(Region* region, int task) {
  if (region->task(task, &region->group, region->data) == 0) return;
  void* error = NULL;
  void* none = NULL;
  tvm.take_error(&error);  // of this thread
  atomic_store(&region->failed, true);
  if (error && !atomic_compare_exchange_strong(&region->error, &none, error)) tvm.release(error);
}

// A loose task, which is none any more; -1 if there is none.
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

// A helper leaves; its region may be gone then.
static void leave(Region* region) {
  if (atomic_fetch_sub(&region->pending, 1) == (kSleeping | 1)) futex_wake(&region->pending, 1);
}

#define RARE __attribute__((noinline, cold))

RARE static cpu_set_t cpus_of(const Pool* pool) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int i = 0; i < pool->cpu_count; ++i) CPU_SET(pool->cpus[i], &cpus);
  return cpus;
}

// Wakes a worker where neither this thread nor a worker that is awake runs, if there is such a CPU.
// Linux may put it behind this thread though another CPU is idle, above all in a virtual machine.
RARE static void wake(Worker* worker) {
  const Pool* pool = worker->pool;
  const int size = atomic_load(&worker->pool->size);
  const cpu_set_t all = cpus_of(pool);
  cpu_set_t own, left = all;
  const int here = sched_getcpu();
  if (here >= 0) CPU_CLR(here, &left);
  for (int i = 0; i < size; ++i) {
    const int taken = atomic_load(&pool->workers[i]->cpu);
    if (taken != kNowhere) CPU_CLR(taken, &left);
  }
  // Where others have chosen its CPUs, these stay.
  if (!pool->bound && CPU_COUNT(&left) &&
      sched_getaffinity(worker->thread, sizeof(own), &own) == 0 && CPU_EQUAL(&own, &all) &&
      sched_setaffinity(worker->thread, sizeof(left), &left) == 0)
    atomic_store(&worker->kept_off, true);
  futex_wake(&worker->box, 1);
}

// What a worker does that has woken, or is to sleep.
static void run_anywhere(Worker* worker) {
  if (!atomic_exchange(&worker->kept_off, false)) return;
  const cpu_set_t all = cpus_of(worker->pool);
  sched_setaffinity(0, sizeof(all), &all);
}

static bool offer(Worker* worker, Region* region, int task) {
  uint64_t box = atomic_load_explicit(&worker->box, memory_order_relaxed);
  const uint64_t offered = (uint64_t)region | (uint64_t)task << kTaskShift;
  while (box == kIdle || box == kAsleep) {
    if (!atomic_compare_exchange_weak(&worker->box, &box, offered)) continue;
    if (box == kAsleep) wake(worker);
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

// Takes an offer back; -1 if that worker has none of this region, or has begun.
static int take_back(Worker* worker, const Region* region) {
  uint64_t box = atomic_load(&worker->box);
  const uint64_t address = box & ((1ull << kTaskShift) - 1);
  if (address != (uint64_t)region) return -1;
  return atomic_compare_exchange_strong(&worker->box, &box, kIdle) ? (int)(box >> kTaskShift) : -1;
}

// Threads.

RARE static bool start_thread(Pool* pool, int worker, void* (*run)(void*), void* argument) {
  cpu_set_t cpus = cpus_of(pool);
  if (pool->bound && worker >= 0 && worker + 1 < pool->cpu_count) {
    CPU_ZERO(&cpus);
    CPU_SET(pool->cpus[worker + 1], &cpus);
  }
  // Signals are for the threads of the program; but for those that this thread's own code causes.
  sigset_t blocked, before;
  sigfillset(&blocked);
  const int own[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGSYS};
  for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); ++i) sigdelset(&blocked, own[i]);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  // A CPU may have gone: then the thread runs where this one may.
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

// What a thread of the pool is to a kernel: regions inside a task run in its thread.
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
  worker->thread = (pid_t)syscall(SYS_gettid);  // glibc 2.28 has no gettid
  become_helper(worker->pool, "tvm_hybrid");
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
      run_anywhere(worker);
      atomic_store(&worker->cpu, kNowhere);
      if (!atomic_compare_exchange_strong(&worker->box, &box, kAsleep)) continue;
      while (atomic_load(&worker->box) == kAsleep) futex_wait(&worker->box, kAsleep, 0);
      run_anywhere(worker);
      atomic_store(&worker->cpu, sched_getcpu());
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
      const bool unused = *place != NULL;  // else somebody has just taken it
      if (unused) *place = extra->next;
      pthread_mutex_unlock(&pool->lock);
      if (unused) {
        free(extra);
        return NULL;
      }
    }
  }
}

// Lets an extra thread run a task; it is counted in `pending` already. False if there is none.
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

// Starts workers until there are so many, or as many as the system allows.
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
    atomic_init(&pool->workers[i]->cpu, kNowhere);
    atomic_init(&pool->workers[i]->kept_off, false);
    if (!start_thread(pool, i, run_worker, pool->workers[i])) break;
    atomic_store(&pool->size, i + 1);
  }
  pthread_mutex_unlock(&pool->lock);
}

// Regions.

// Offers the tasks from 1 on to that many workers at most; those that nobody gets become loose.
// Returns how many are offered.
static int offer_tasks(Region* region, int most) {
  Pool* pool = region->pool;
  const int others = region->group.count - 1;
  const int needed = others < most ? others : most;
  int size = atomic_load_explicit(&pool->size, memory_order_acquire);
  if (size < needed) {
    grow(pool, needed);
    size = atomic_load(&pool->size);
  }
  int offered = 0, next = others;  // workers from there on prefer no task of this region
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
  const int most = state->depth == 0 ? state->count - 1 : 0;  // workers
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
    // Workers of another region may have become free.
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

// What TVM's code calls.

static int launch(Task task, void* data, int count) {
  State* state = pthread_getspecific(state_key);
  if (!state) return tvm.launch(task, data, count);
  return run_region(state, task, data, count > 0 ? count : state->count);
}

// Gives tasks that nobody has begun to extra threads.
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
    if (atomic_load(&region->failed)) return -1;  // a task that failed never comes here
    if (spin(&waiting)) continue;
    begin_all(region);
    atomic_fetch_add(&region->sleepers, 1);
    futex_wait(&region->generation, generation, kRecheck);
    atomic_fetch_sub(&region->sleepers, 1);
  }
  return 0;
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

// What Python calls.

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
    }
    pool->next = pools;
    pools = pool;
  }
  pthread_mutex_unlock(&pools_lock);
  return pool;
}

// Sets what regions of the calling thread do; 0 threads: TVM's own pool. Returns 0 or an errno.
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

// More or fewer users of kAlways.
static void add_always(int change) { atomic_fetch_add(&always_users, change); }

// The child of a fork has no workers.
static void forget_threads(void) {
  pthread_mutex_init(&pools_lock, NULL);
  for (Pool* pool = pools; pool; pool = pool->next) {
    pthread_mutex_init(&pool->lock, NULL);
    atomic_store(&pool->size, 0);
    pool->idle = NULL;
  }
}

// glibc's own name of pthread_atfork, which is in no shared library.
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void*);

static int start(const Tvm* functions) {
  tvm = *functions;
  const int code = pthread_key_create(&state_key, free);
  return code ? code : __register_atfork(NULL, NULL, forget_threads, NULL);
}

// TVM finds this as the module's function "addresses": argument i asks for the i-th.
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
