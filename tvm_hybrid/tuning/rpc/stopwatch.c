// Functions of the library, in addition to the kernels:
//   guard(port)
//       From now on the process ends with code 0 after a crash, and as soon as the client, which is
//       connected with this port of the server, ends. After any other code, or when it cannot send
//       an answer, TVM's server (tvm.rpc.server, `_serving`) stops serving.
//   bind(kernel, rows, tensors of row after row)
//       Sets the arguments of a kernel; each call uses the next row.
//   seconds(kernel, calls, serial) -> float
//       Times this many calls: if serial, by the CPU time of this thread, which other processes do
//       not disturb.
//   interruptions(serial) -> int
//       Involuntary context switches of this thread if serial, else of the process.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <tvm/ffi/c_api.h>
#include <unistd.h>

#ifdef TILES
#include <sys/syscall.h>
// Linux lets a process use AMX tiles once it has asked for them.
__attribute__((constructor)) static void AskForTiles(void) { syscall(SYS_arch_prctl, 0x1023, 18); }
#endif

typedef int Function(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
#define PUBLIC __attribute__((visibility("default"))) int
PUBLIC SYMBOL(candidate)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);
PUBLIC SYMBOL(baseline)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

typedef struct {
  Function* function;
  TVMFFIAny* arguments;
  int64_t width, rows, next;
} Kernel;

static Kernel kernels[2];

static int Run(Kernel* kernel, int64_t calls) {
  for (int64_t i = 0; i < calls; ++i) {
    TVMFFIAny ignored = {0};
    const TVMFFIAny* row = kernel->arguments + kernel->next * kernel->width;
    int failed = kernel->function(NULL, row, (int32_t)kernel->width, &ignored);
    if (failed) return failed;
    if (++kernel->next == kernel->rows) kernel->next = 0;
  }
  return 0;
}

static double Now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Copies the description of a tensor: its data, which belongs to the client, lives on, but the
// message does not. A session makes two for each tensor, so nobody frees them.
static TVMFFIAny Held(const TVMFFIAny* value) {
  const DLTensor* source = value->type_index == kTVMFFIDLTensorPtr
                               ? value->v_ptr
                               : (DLTensor*)((char*)value->v_obj + sizeof(TVMFFIObject));
  size_t size = (size_t)source->ndim * sizeof(int64_t);
  DLTensor* tensor = malloc(sizeof(DLTensor) + 2 * size);
  *tensor = *source;
  tensor->shape = memcpy(tensor + 1, source->shape, size);
  if (source->strides) {
    tensor->strides = memcpy(tensor->shape + source->ndim, source->strides, size);
  }
  TVMFFIAny held = {0};
  held.type_index = kTVMFFIDLTensorPtr;
  held.v_ptr = tensor;
  return held;
}

static void End(int number) {
  (void)number;
  _exit(0);
}

static int Port(const struct sockaddr_storage* address) {
  if (address->ss_family == AF_INET) return ntohs(((struct sockaddr_in*)address)->sin_port);
  if (address->ss_family == AF_INET6) return ntohs(((struct sockaddr_in6*)address)->sin6_port);
  return -1;
}

// Finds the connection with the client; that with the tracker has another local port.
static int Connection(int port) {
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    struct sockaddr_storage own, peer;
    socklen_t size = sizeof(own), peer_size = sizeof(peer);
    if (getsockname(descriptor, (struct sockaddr*)&own, &size) == 0 && Port(&own) == port &&
        getpeername(descriptor, (struct sockaddr*)&peer, &peer_size) == 0) {
      return descriptor;
    }
  }
  return -1;
}

static void* Watch(void* descriptor) {
  struct pollfd connection = {(int)(intptr_t)descriptor, POLLRDHUP, 0};
  while (poll(&connection, 1, -1) <= 0) {
  }
  _exit(0);
}

PUBLIC SYMBOL(guard)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  int descriptor = Connection((int)args[0].v_int64);
  pthread_t watcher;
  if (descriptor >= 0 && pthread_create(&watcher, NULL, Watch, (void*)(intptr_t)descriptor) == 0) {
    pthread_detach(watcher);
  }
  static const int kCrashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
  for (size_t i = 0; i < sizeof(kCrashes) / sizeof(kCrashes[0]); ++i) signal(kCrashes[i], End);
  return 0;
}

PUBLIC SYMBOL(bind)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Kernel* kernel = &kernels[args[0].v_int64];
  kernel->function = SYMBOL(candidate);
#ifdef PAIRED
  if (args[0].v_int64) kernel->function = SYMBOL(baseline);
#endif
  kernel->rows = args[1].v_int64;
  kernel->width = (count - 2) / kernel->rows;
  kernel->arguments = malloc((size_t)(count - 2) * sizeof(TVMFFIAny));
  for (int32_t i = 2; i < count; ++i) kernel->arguments[i - 2] = Held(&args[i]);
  return 0;
}

PUBLIC SYMBOL(seconds)(void* self, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) {
  Kernel* kernel = &kernels[args[0].v_int64];
  clockid_t clock = args[2].v_int64 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  double start = Now(clock);
  int failed = Run(kernel, args[1].v_int64);
  result->v_float64 = Now(clock) - start;
  result->type_index = kTVMFFIFloat;
  return failed;
}

PUBLIC SYMBOL(interruptions)(void* self, const TVMFFIAny* args, int32_t count,
                               TVMFFIAny* result) {
  struct rusage usage;
  getrusage(args[0].v_int64 ? RUSAGE_THREAD : RUSAGE_SELF, &usage);
  result->v_int64 = usage.ru_nivcsw;
  result->type_index = kTVMFFIInt;
  return 0;
}
