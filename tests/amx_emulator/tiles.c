/* Executes AMX instructions on a thread's tiles, and checks for every fault that they raise. */
#include "amx_emulator.h"

#include <stdio.h>
#include <string.h>

#define FAULT(state, ...) \
    (snprintf((state)->fault, sizeof(state)->fault, __VA_ARGS__), (state)->fault)

/* The compiler moves no memory access across it. */
#define BARRIER __asm__ volatile("" ::: "memory")

static void release(TileState *state) {
    count_configured(state, 0);
    state->start_row = 0;
    memset(state->tile, 0, sizeof state->tile);
    memset(state->rows, 0, sizeof state->rows);
    memset(state->column_bytes, 0, sizeof state->column_bytes);
    memset(state->image, 0, sizeof state->image);
}

/* The 64 bytes: palette, start row, 14 reserved, 16 x colsb (16 bits), 16 x rows (8 bits). */
static const char *configure(TileState *state, const uint8_t *memory) {
    uint8_t image[CONFIG_BYTES];
    uint16_t column_bytes[16];
    const uint8_t *rows = image + 48;
    memcpy(image, memory, sizeof image);
    memcpy(column_bytes, image + 16, sizeof column_bytes);
    if (image[0] == 0) {
        release(state);
        return NULL;
    }
    if (image[0] != 1) return FAULT(state, "#GP: palette %d is not supported", image[0]);
    for (int byte = 2; byte < 16; byte++)
        if (image[byte]) return FAULT(state, "#GP: reserved byte %d is not zero", byte);
    for (int tile = 0; tile < 16; tile++) {
        unsigned height = rows[tile], width = column_bytes[tile];
        if (tile >= TILES && (height || width))
            return FAULT(state, "#GP: palette 1 has no tile %d (rows %u, colsb %u)", tile, height,
                         width);
        if (width > TILE_BYTES) return FAULT(state, "#GP: tile %d: colsb %u > 64", tile, width);
        if (height > TILE_ROWS) return FAULT(state, "#GP: tile %d: rows %u > 16", tile, height);
        if (!height != !width)
            return FAULT(state, "#GP: tile %d: rows %u, colsb %u: only one of them is zero", tile,
                         height, width);
    }
    release(state);
    memcpy(state->rows, rows, sizeof state->rows);
    memcpy(state->column_bytes, column_bytes, sizeof state->column_bytes);
    memcpy(state->image, image, sizeof image);
    state->start_row = image[1];
    count_configured(state, 1);
    return NULL;
}

static void store_configuration(const TileState *state, uint8_t *memory) {
    memcpy(memory, state->image, CONFIG_BYTES); /* zeros if nothing is configured */
    memory[1] = state->start_row;
}

static const char *check_exists(TileState *state, int tile) {
    if (!state->configured) return "#UD: this thread has no tile configuration (ldtilecfg)";
    if (tile >= TILES) return FAULT(state, "#UD: there is no tmm%d", tile);
    if (!state->rows[tile])
        return FAULT(state, "#UD: tmm%d has no rows in the configuration", tile);
    return NULL;
}

static const char *check(TileState *state, int tile) {
    const char *fault = check_exists(state, tile);
    if (!fault && state->column_bytes[tile] % 4)
        fault = FAULT(state, "#UD: tmm%d: colsb %d is no multiple of 4", tile,
                      state->column_bytes[tile]);
    return fault;
}

static const char *check_transfer(TileState *state, int tile) {
    const char *fault = check(state, tile);
    if (!fault && state->start_row >= state->rows[tile])
        fault = FAULT(state, "#UD: tmm%d: start_row %d >= rows %d", tile, state->start_row,
                      state->rows[tile]);
    return fault;
}

/* Row at which a transfer continues after a page fault. A handler may read it, or never return: so
 * it is written before the row is accessed. */
static void begin_row(TileState *state, int row) {
    state->start_row = (uint8_t)row;
    BARRIER;
}

static const char *load(TileState *state, const Instruction *instruction) {
    const char *fault = check_transfer(state, instruction->reg);
    if (fault) return fault;
    Tile *tile = &state->tile[instruction->reg];
    int rows = state->rows[instruction->reg], bytes = state->column_bytes[instruction->reg];
    const uint8_t *memory = (const uint8_t *)instruction->address;
    /* Rows before start_row were loaded before a fault, and stay. Bytes outside of the rows and
     * columns are zero since the configuration. Both ends of a row are accessed first: a row that
     * faults is read again as a whole. */
    for (int row = state->start_row; row < rows; row++) {
        const uint8_t *source = memory + row * instruction->stride;
        begin_row(state, row);
        (void)*(const volatile uint8_t *)source;
        (void)*(const volatile uint8_t *)(source + bytes - 1);
        BARRIER;
        if (bytes == TILE_BYTES)
            memcpy(tile->row[row], source, TILE_BYTES);
        else
            memcpy(tile->row[row], source, (size_t)bytes);
    }
    state->start_row = 0;
    return NULL;
}

static const char *store(TileState *state, const Instruction *instruction) {
    const char *fault = check_transfer(state, instruction->reg);
    if (fault) return fault;
    const Tile *tile = &state->tile[instruction->reg];
    int rows = state->rows[instruction->reg], bytes = state->column_bytes[instruction->reg];
    uint8_t *memory = (uint8_t *)instruction->address;
    for (int row = state->start_row; row < rows; row++) {
        begin_row(state, row);
        memcpy(memory + row * instruction->stride, tile->row[row], (size_t)bytes);
    }
    state->start_row = 0;
    return NULL;
}

/* sum[m x n] += a[m x k] * b[k x n], in elements of four bytes. */
static const char *multiply(TileState *state, const Instruction *instruction) {
    int sum = instruction->reg, a = instruction->rm, b = instruction->vvvv;
    const char *fault = NULL;
    if (sum == a || sum == b || a == b) return "#UD: the three tiles must differ";
    if ((fault = check(state, sum)) || (fault = check(state, a)) || (fault = check(state, b)))
        return fault;
    if (state->column_bytes[sum] != state->column_bytes[b])
        return FAULT(state, "#UD: tmm%d has colsb %d, tmm%d has %d: N differs", sum,
                     state->column_bytes[sum], b, state->column_bytes[b]);
    if (state->rows[sum] != state->rows[a])
        return FAULT(state, "#UD: tmm%d has %d rows, tmm%d has %d: M differs", sum,
                     state->rows[sum], a, state->rows[a]);
    if (state->column_bytes[a] / 4 != state->rows[b])
        return FAULT(state, "#UD: tmm%d has colsb/4 = %d, tmm%d has %d rows: K differs", a,
                     state->column_bytes[a] / 4, b, state->rows[b]);
    dot_product(state, instruction->operation, sum, a, b);
    state->start_row = 0;
    return NULL;
}

const char *execute(TileState *state, const Instruction *instruction) {
    const char *fault = instruction->fault;
    if (fault) return fault;
    switch (instruction->operation) {
        case LDTILECFG:
            return configure(state, (const uint8_t *)instruction->address);
        case STTILECFG:
            store_configuration(state, (uint8_t *)instruction->address);
            return NULL;
        case TILERELEASE:
            release(state);
            return NULL;
        case TILEZERO:
            if ((fault = check_exists(state, instruction->reg))) return fault;
            memset(&state->tile[instruction->reg], 0, sizeof(Tile));
            state->start_row = 0;
            return NULL;
        case TILELOADD:
        case TILELOADDT1:
            return load(state, instruction);
        case TILESTORED:
            return store(state, instruction);
        default:
            return multiply(state, instruction);
    }
}
