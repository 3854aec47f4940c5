/* Tests SIGILL under the emulator; test_signals.py runs this with one of these words:
 *   amx        multiplies two tiles and checks the product
 *   fault      loads a tile without a configuration
 *   ud2        executes an instruction that no CPU has
 *   former     ud2 with a handler that was installed before the emulator
 *   former_plain  ud2 with a former handler that takes no context
 *   circle     ud2 with a later handler that passes the signal on to the emulator, which has been
 *              installed again above this handler
 *   probe      executes ud2 three times, with a former handler that jumps out
 *   raise      sends SIGILL, with a former handler
 *   sent       sends SIGILL, with no other handler
 *   displaced  amx after another handler has taken SIGILL, which deactivates the emulator
 *   alternate  amx on a stack too small for a signal, with an alternate stack for signals
 *   fork       amx in a child process */
#define _GNU_SOURCE
#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

int amx_emulator_install(int);
void amx_emulator_uninstall(void);
int amx_emulator_active(void);

static volatile int handled;
static struct sigaction passed_to;
static sigjmp_buf place;

static void leave_out(void *context) { /* ud2 has two bytes */
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number;
    handled++;
    if (info->si_code > 0) leave_out(context);
}

static void on_signal_plain(int number) {
    (void)number;
    static const char text[] = "plain handler\n";
    if (write(1, text, sizeof text - 1) < 0) _exit(9);
    _exit(7);
}

static void on_signal_pass(int number, siginfo_t *info, void *context) {
    handled++;
    if (handled > 3) _exit(8);
    passed_to.sa_sigaction(number, info, context);
}

static void on_signal_jump(int number) {
    (void)number;
    handled++;
    siglongjmp(place, 1);
}

static void take(void (*action)(int, siginfo_t *, void *)) {
    struct sigaction ours = {0};
    ours.sa_sigaction = action;
    ours.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &ours, &passed_to);
}

/* Puts a handler below the emulator. */
static void take_below(void (*action)(int, siginfo_t *, void *)) {
    amx_emulator_uninstall();
    take(action);
    if (amx_emulator_install(0) != 1) exit(3);
}

__attribute__((target("amx-tile,amx-int8"))) static int multiply(void) {
    static uint8_t config[64] __attribute__((aligned(64)));
    static uint8_t a[16][64], b[16][64];
    static int32_t sums[16][16];
    config[0] = 1;
    for (int tile = 0; tile < 8; tile++) {
        config[48 + tile] = 16;
        config[16 + 2 * tile] = 64;
    }
    memset(a, 3, sizeof a);
    memset(b, 255, sizeof b); /* -1 */
    _tile_loadconfig(config);
    _tile_zero(0);
    _tile_loadd(1, a, 64);
    _tile_loadd(2, b, 64);
    for (int i = 0; i < 10; i++) _tile_dpbusd(0, 1, 2);
    _tile_stored(0, sums, 64);
    _tile_release();
    for (int i = 0; i < 256; i++)
        if (sums[i / 16][i % 16] != -3 * 64 * 10) return 1;
    return 0;
}

static int result_on_small_stack = 2;

static void multiply_on_small_stack(void) { result_on_small_stack = multiply(); }

static int multiply_with_alternate_stack(void) {
    enum { PAGE = 4096 };
    static ucontext_t here, there;
    static uint8_t alternate[1 << 16];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    uint8_t *pages = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages + PAGE, PAGE, PROT_READ | PROT_WRITE)) return 3;
    if (sigaltstack(&stack, NULL) || getcontext(&there)) return 4;
    there.uc_stack.ss_sp = pages + PAGE;
    there.uc_stack.ss_size = PAGE;
    there.uc_link = &here;
    makecontext(&there, multiply_on_small_stack, 0);
    swapcontext(&here, &there);
    return result_on_small_stack;
}

__attribute__((target("amx-tile"))) static void load_unconfigured(void) {
    uint8_t memory[1024] = {0};
    _tile_loadd(1, memory, 64);
}

int main(int count, char **words) {
    const char *word = count > 1 ? words[1] : "";
    int result;
    if (!strcmp(word, "amx")) return multiply();
    if (!strcmp(word, "fault")) {
        load_unconfigured();
        return 0;
    }
    if (!strcmp(word, "ud2")) {
        __asm__ volatile("ud2");
        return 0;
    }
    if (!strcmp(word, "former")) {
        take_below(on_signal);
        __asm__ volatile("ud2");
        return multiply() || handled != 1;
    }
    if (!strcmp(word, "former_plain")) {
        amx_emulator_uninstall();
        signal(SIGILL, on_signal_plain);
        if (amx_emulator_install(0) != 1) return 3;
        if (multiply()) return 4;
        __asm__ volatile("ud2");
    }
    if (!strcmp(word, "circle")) {
        take(on_signal_pass);
        if (amx_emulator_install(0) != 1 || multiply() || handled) return 4;
        __asm__ volatile("ud2");
    }
    if (!strcmp(word, "probe")) {
        amx_emulator_uninstall();
        signal(SIGILL, on_signal_jump);
        if (amx_emulator_install(0) != 1) return 3;
        for (volatile int i = 0; i < 3; i++)
            if (!sigsetjmp(place, 1)) __asm__ volatile("ud2");
        return multiply() || handled != 3;
    }
    if (!strcmp(word, "raise")) {
        take_below(on_signal);
        raise(SIGILL);
        kill(getpid(), SIGILL);
        return multiply() || handled != 2;
    }
    if (!strcmp(word, "sent")) {
        raise(SIGILL);
        return 0;
    }
    if (!strcmp(word, "displaced")) {
        if (!amx_emulator_active()) return 3;
        take(on_signal_pass);
        if (amx_emulator_active()) return 4;
        handled = -100000; /* always passes on */
        if (multiply() || handled == -100000) return 5;
        amx_emulator_uninstall(); /* does not displace the other handler */
        struct sigaction now;
        sigaction(SIGILL, NULL, &now);
        return now.sa_sigaction != on_signal_pass;
    }
    if (!strcmp(word, "alternate")) return multiply_with_alternate_stack();
    if (!strcmp(word, "fork")) {
        if (!fork()) _exit(multiply());
        wait(&result);
        return result || multiply();
    }
    return 2;
}
