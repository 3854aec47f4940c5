/* The signal handler: executes AMX instructions where SIGILL stops them, counts and reports.
 *
 * A trap costs microseconds. So it also executes the AMX instructions that follow, and the simple
 * integer instructions between them (glue.c), including whole loops over K.
 */
#include "amx_emulator.h"

#include <cpuid.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Most glue instructions after an AMX instruction; then the CPU continues. */
enum { GLUE_LIMIT = 64 };

/* Only a pointer, with a TLS model that never allocates: this runs in a signal handler. */
#define THREAD_LOCAL static __thread __attribute__((tls_model("initial-exec")))
THREAD_LOCAL TileState *thread_state;
THREAD_LOCAL int chaining;

static pthread_key_t state_key;
static struct sigaction former;
static int installed, step_over, glue = 1;
static uint64_t counts[OPERATIONS], traps, glue_steps, generation;
static int64_t errors, threads_configured;
static char first_error[512], last_error[512];
static int writing_error; /* a spin lock that is held briefly */

/* ---- threads ---- */

/* A thread that ends with a configuration stays counted: its tilerelease is missing. */
static void thread_ends(void *state) {
    thread_state = NULL;
    munmap(state, sizeof(TileState));
}

static TileState *state_of_thread(void) {
    if (!thread_state) {
        void *memory = mmap(NULL, sizeof(TileState), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            static const char text[] = "amx_emulator: no memory for a thread's tiles\n";
            if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(98);
            _exit(99);
        }
        thread_state = memory;
        /* May allocate, which is safe: the signal came from an AMX instruction, not from malloc. */
        pthread_setspecific(state_key, memory);
    }
    return thread_state;
}

/* Updates the number of threads that hold a configuration. A thread counted before the last reset
 * is forgotten: code after the reset did not configure it. */
void count_configured(TileState *state, int configured) {
    uint64_t now = __atomic_load_n(&generation, __ATOMIC_RELAXED);
    int counted = state->configured && state->generation == now;
    if (counted != configured)
        __atomic_add_fetch(&threads_configured, configured ? 1 : -1, __ATOMIC_RELAXED);
    state->configured = (uint8_t)configured;
    state->generation = now;
}

/* ---- faults ---- */

#define APPEND(...)              \
    if (used < (int)sizeof text) \
    used += snprintf(text + used, sizeof text - (size_t)used, __VA_ARGS__)

static void report_fault(const TileState *state, const Instruction *instruction, const uint8_t *rip,
                         const char *fault) {
    char text[sizeof last_error];
    int used = 0;
    APPEND("amx_emulator: %s", operation_names[instruction->operation]);
    if (instruction->operation >= TDPBSSD) {
        APPEND(" tmm%d, tmm%d, tmm%d", instruction->reg, instruction->rm, instruction->vvvv);
    } else if (instruction->operation >= TILEZERO) {
        APPEND(" tmm%d", instruction->reg);
    }
    APPEND(" at rip %p: %s; ", (const void *)rip, fault);
    if (state->configured) {
        APPEND("configuration (rows x colsb):");
        for (int tile = 0; tile < TILES; tile++)
            APPEND(" tmm%d %dx%d", tile, state->rows[tile], state->column_bytes[tile]);
        APPEND(", start_row %d", state->start_row);
    } else {
        APPEND("no configuration");
    }
    while (__atomic_exchange_n(&writing_error, 1, __ATOMIC_ACQUIRE)) __builtin_ia32_pause();
    if (!errors++) memcpy(first_error, text, sizeof text);
    memcpy(last_error, text, sizeof text);
    __atomic_store_n(&writing_error, 0, __ATOMIC_RELEASE);
    if (!step_over) dprintf(STDERR_FILENO, "%s\n", text);
}

/* ---- the handler ---- */

/* Passes a signal on to the former handler. */
static void chain(int signal_number, siginfo_t *info, void *context) {
    int has_function = former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN;
    if (!has_function || chaining) {
        /* Returning executes the instruction again, and the process dies there. */
        signal(SIGILL, SIG_DFL);
        if (info->si_code <= 0) raise(signal_number);
        return;
    }
    chaining = 1;
    if (former.sa_flags & SA_SIGINFO)
        former.sa_sigaction(signal_number, info, context);
    else
        former.sa_handler(signal_number);
    chaining = 0;
}

static void on_sigill(int signal_number, siginfo_t *info, void *opaque) {
    ucontext_t *context = opaque;
    greg_t *registers = context->uc_mcontext.gregs;
    const uint8_t *rip = (const uint8_t *)registers[REG_RIP];
    Instruction instruction;

    /* Linux puts the context right above the return address of a handler that it calls. Any other
     * caller is a handler that passes a signal on: if we passed the signal to that handler,
     * `chaining` ends the circle. */
    if (__builtin_dwarf_cfa() == opaque) chaining = 0;

    int sent_by_program = info->si_code <= 0; /* kill, raise */
    if (sent_by_program || !decode(rip, registers, &instruction)) {
        chain(signal_number, info, opaque);
        return;
    }
    TileState *state = state_of_thread();
    uint32_t done[OPERATIONS] = {0}, glue_done = 0;
    const char *fault = NULL;
    int glue_left = glue ? GLUE_LIMIT : 0;
    for (;;) {
        if (decode(rip, registers, &instruction)) {
            fault = execute(state, &instruction);
            if (fault) break;
            done[instruction.operation]++;
            registers[REG_RIP] += instruction.length;
            glue_left = glue ? GLUE_LIMIT : 0;
        } else if (glue_left-- > 0 && step_over_glue(registers)) {
            glue_done++;
        } else {
            break;
        }
        rip = (const uint8_t *)registers[REG_RIP];
    }
    __atomic_add_fetch(&traps, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&glue_steps, glue_done, __ATOMIC_RELAXED);
    for (int i = 0; i < OPERATIONS; i++)
        if (done[i]) __atomic_add_fetch(&counts[i], done[i], __ATOMIC_RELAXED);
    if (!fault) return;
    report_fault(state, &instruction, rip, fault);
    if (step_over)
        registers[REG_RIP] += instruction.length;
    else
        chain(signal_number, info, opaque);
}

/* ---- public functions ---- */

/* 1 if this CPU has AMX and Linux has switched it on: then there is nothing to emulate. */
int amx_emulator_cpu_has_amx(void) {
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & 1u << 24)) return 0; /* AMX-TILE */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low >> 17 & 3) == 3; /* XTILECFG and XTILEDATA */
}

/* 1 while the emulator's handler gets SIGILL. */
int amx_emulator_active(void) {
    struct sigaction current;
    return !sigaction(SIGILL, NULL, &current) && (current.sa_flags & SA_SIGINFO) &&
           current.sa_sigaction == on_sigill;
}

/* Takes SIGILL over. With `step_over_faults`, an instruction that faults is reported and skipped;
 * otherwise its report goes to standard error, and the former handler gets the signal (the process
 * dies if there was none).
 * Returns 1 if it is now installed, 0 if it was before, -1 on a CPU with AMX (it would hide a
 * missing permission, which arrives as SIGILL too), -2 if Linux refuses. */
int amx_emulator_install(int step_over_faults) {
    if (amx_emulator_cpu_has_amx()) return -1;
    step_over = step_over_faults;
    if (amx_emulator_active()) return 0;
    static int have_key;
    if (!have_key && pthread_key_create(&state_key, thread_ends)) return -2;
    have_key = 1;
    struct sigaction ours = {0};
    ours.sa_sigaction = on_sigill;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGILL, NULL, &former) || sigaction(SIGILL, &ours, NULL)) return -2;
    installed = 1;
    return 1;
}

/* Restores the former handler of SIGILL, unless another handler was installed since. */
void amx_emulator_uninstall(void) {
    if (installed && amx_emulator_active()) sigaction(SIGILL, &former, NULL);
    installed = 0;
}

/* The name of an operation, null beyond the last. */
const char *amx_emulator_name(int operation) {
    return operation >= 0 && operation < OPERATIONS ? operation_names[operation] : NULL;
}

/* Instructions of one kind that all threads executed without a fault since the last reset. */
uint64_t amx_emulator_count(int operation) {
    if (operation < 0 || operation >= OPERATIONS) return 0;
    return __atomic_load_n(&counts[operation], __ATOMIC_RELAXED);
}

/* Signals handled since the last reset. */
uint64_t amx_emulator_traps(void) { return __atomic_load_n(&traps, __ATOMIC_RELAXED); }

/* Instructions between those of AMX that were executed in traps since the last reset. */
uint64_t amx_emulator_glue_steps(void) { return __atomic_load_n(&glue_steps, __ATOMIC_RELAXED); }

/* Faults since the last reset, and the texts of the first and the last, "" if there was none. */
int64_t amx_emulator_errors(void) { return errors; }
const char *amx_emulator_first_error(void) { return first_error; }
const char *amx_emulator_last_error(void) { return last_error; }

/* Threads that loaded a configuration since the last reset and still hold it, or ended with it. */
int64_t amx_emulator_threads_configured(void) {
    return __atomic_load_n(&threads_configured, __ATOMIC_RELAXED);
}

/* Resets all counters. Call it while no thread executes AMX instructions. */
void amx_emulator_reset(void) {
    memset(counts, 0, sizeof counts);
    traps = glue_steps = 0;
    errors = 0;
    first_error[0] = last_error[0] = 0;
    generation++;
    threads_configured = 0;
}

/* Whether instructions between those of AMX are executed in the trap too (the default). */
void amx_emulator_enable_glue(int on) { glue = on; }

/* Writes the counters to standard error. */
void amx_emulator_report(void) {
    for (int i = 0; i < OPERATIONS; i++)
        if (counts[i])
            dprintf(STDERR_FILENO, "amx_emulator: %12llu %s\n", (unsigned long long)counts[i],
                    operation_names[i]);
    dprintf(STDERR_FILENO,
            "amx_emulator: %12llu traps, %lld faults, %lld threads left configured\n",
            (unsigned long long)traps, (long long)errors, (long long)threads_configured);
}

/* For LD_PRELOAD: AMX_EMULATOR=1 installs the emulator, =report also reports at the end. */
__attribute__((constructor)) static void preloaded(void) {
    const char *wish = getenv("AMX_EMULATOR");
    if (!wish || !*wish || !strcmp(wish, "0")) return;
    int result = amx_emulator_install(0);
    if (result == -1) dprintf(STDERR_FILENO, "amx_emulator: this CPU has AMX; not installed\n");
    if (result == -2) dprintf(STDERR_FILENO, "amx_emulator: cannot take SIGILL; not installed\n");
    if (result >= 0 && !strcmp(wish, "report")) atexit(amx_emulator_report);
}
