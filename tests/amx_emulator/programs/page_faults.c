/* A page that is missing in the middle of a tile; test_page_faults.py runs this with two words.
 * The first chooses the access:
 *   load     loads a tile whose rows 9 and on are missing
 *   store    stores a tile whose rows 9 and on are missing
 *   cut      loads a tile whose row 9 begins on the mapped page and ends on the missing one
 * The second chooses how the handler of the page fault ends:
 *   returns  maps the page, and lets the instruction continue
 *   jumps    jumps out; the program maps the page, and executes the instruction again
 *   zeroes   jumps out; the program executes another tile instruction before that
 * Exits with 0 if all rows are right, and rows before the fault were transferred once. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, STRIDE = 128, ROWS = 16, FIRST = 9 };

static uint8_t config[64] __attribute__((aligned(64)));
static uint8_t seen[64] __attribute__((aligned(64)));
static uint8_t tile[ROWS][64], *memory, *missing;
static int storing, jumping;
static volatile int faults;
static sigjmp_buf place;

/* Memory of the instruction: one number per row, which differs between rounds. */
static void fill(int round) {
    for (int row = 0; row < ROWS; row++) {
        uint8_t *source = storing ? tile[row] : memory + row * STRIDE;
        if (storing || source + 64 <= missing || round > 0) memset(source, 20 * round + row, 64);
    }
}

static void map(void) {
    mprotect(missing, PAGE, PROT_READ | PROT_WRITE);
    if (!storing) fill(1);
}

__attribute__((target("amx-tile"))) static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    uint8_t *at = info->si_addr;
    if (number != SIGSEGV || at < missing || at >= missing + PAGE) _Exit(10);
    faults++;
    _tile_storeconfig(seen);
    if (jumping) siglongjmp(place, 1);
    map();
}

__attribute__((target("amx-tile"), noinline)) static void transfer(void) {
    if (storing)
        _tile_stored(3, memory, STRIDE);
    else
        _tile_loadd(3, memory, STRIDE);
}

__attribute__((target("amx-tile"))) int main(int count, char **words) {
    if (count < 3) return 11;
    storing = !strcmp(words[1], "store");
    jumping = strcmp(words[2], "returns") != 0;
    int zeroes = !strcmp(words[2], "zeroes"), within = strcmp(words[1], "cut") ? 0 : 32;
    uint8_t *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    missing = pages + PAGE;
    memory = missing - FIRST * STRIDE - within;
    config[0] = 1;
    config[48 + 3] = config[48 + 4] = ROWS;
    config[16 + 6] = config[16 + 8] = 64;
    struct sigaction ours = {0};
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &ours, NULL);
    fill(0);
    _tile_loadconfig(config);
    if (storing) {
        _tile_loadd(3, tile, 64);
        fill(1); /* the tile keeps its content */
    }
    mprotect(missing, PAGE, PROT_NONE);

    if (sigsetjmp(place, 1)) {
        uint8_t left[64];
        _tile_storeconfig(left);
        if (left[1] != FIRST) return 12;
        if (zeroes) _tile_zero(4);
        map();
        if (storing) memset(memory, 77, FIRST * STRIDE);
    }
    if (faults < 1 || jumping) transfer();
    if (faults != 1) return 13;
    if (seen[1] != FIRST || memcmp(seen + 2, config + 2, 62)) return 14;
    _tile_storeconfig(seen);
    if (memcmp(seen, config, 64)) return 15; /* start_row is zero again */

    if (!storing) _tile_stored(3, tile, 64);
    for (int row = 0; row < ROWS; row++) {
        const uint8_t *result = storing ? memory + row * STRIDE : tile[row];
        /* Loads: rows read again have the second round's numbers. Stores: 77 covers the others. */
        int again = zeroes || row >= FIRST;
        int wanted = storing ? (again || !jumping ? row : 77) : (again ? 20 + row : row);
        for (int i = 0; i < 64; i++)
            if (result[i] != wanted) {
                fprintf(stderr, "row %d: %d instead of %d\n", row, result[i], wanted);
                return 16;
            }
    }
    _tile_release();
    return 0;
}
