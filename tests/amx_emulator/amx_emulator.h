/* Declarations for all files of the emulator. README.md describes it; the public functions are at
 * the end. Semantics: Intel SDM volume 2, instruction pages and exception classes AMX-E1 to E6. */
#ifndef AMX_EMULATOR_H
#define AMX_EMULATOR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <ucontext.h>

#define PUBLIC __attribute__((visibility("default")))

enum {
    TILES = 8,
    TILE_ROWS = 16,
    TILE_BYTES = 64, /* of a row */
    TILE_DWORDS = 16,
    CONFIG_BYTES = 64
};

typedef enum {
    LDTILECFG,
    STTILECFG,
    TILERELEASE,
    TILEZERO,
    TILELOADD,
    TILELOADDT1,
    TILESTORED,
    TDPBSSD,
    TDPBSUD,
    TDPBUSD,
    TDPBUUD,
    TDPBF16PS,
    TDPFP16PS,
    OPERATIONS
} Operation;

typedef struct {
    _Alignas(64) uint8_t row[TILE_ROWS][TILE_BYTES];
} Tile;

/* One thread's tile registers. Bytes of a tile outside its rows and columns are zero. */
typedef struct {
    Tile tile[TILES];
    Tile scratch[2]; /* for the dot products, which then need little stack */
    uint16_t column_bytes[TILES];
    uint8_t rows[TILES];
    uint8_t configured;
    uint8_t start_row;
    uint8_t image[CONFIG_BYTES]; /* as ldtilecfg read it */
    uint64_t generation;         /* of the counters when `configured` was counted */
    char fault[128];             /* text of a fault with numbers in it */
} TileState;

/* One decoded AMX instruction. */
typedef struct {
    Operation operation;
    int length;
    int reg, rm, vvvv;  /* register numbers, 0 to 15 */
    uint64_t address;   /* of the memory operand; of the first row, for tiles */
    uint64_t stride;    /* of tile loads and stores */
    const char *fault;  /* of the encoding itself, or null */
} Instruction;

/* ModRM, SIB and displacement of an instruction, with the registers' values inserted. */
typedef struct {
    int is_memory, has_sib;
    int reg, rm;
    uint64_t base;     /* base register + displacement */
    uint64_t index;    /* index register << scale, or 0 */
    const uint8_t *end;
} Operand;

/* decode.c */
extern const char *const operation_names[OPERATIONS];
extern const int register_of_number[16]; /* x86's register numbers to places in gregs */
void read_operand(const uint8_t *modrm, const greg_t *registers, int rex_r, int rex_x, int rex_b,
                  int immediate_bytes, Operand *operand);
int decode(const uint8_t *code, const greg_t *registers, Instruction *instruction);

/* tiles.c: each function returns null or a fault's text. */
const char *execute(TileState *state, const Instruction *instruction);
void count_configured(TileState *state, int configured); /* trap.c */

/* dot_products.c; the caller has checked the tiles' shapes. */
void dot_product(TileState *state, Operation operation, int sum, int a, int b);

/* glue.c: performs one simple integer instruction at rip; 0 if it is unknown. */
int step_over_glue(greg_t *registers);

/* Public functions; comments describe them at their definitions. */
PUBLIC int amx_emulator_install(int step_over_faults);
PUBLIC void amx_emulator_uninstall(void);
PUBLIC int amx_emulator_active(void);
PUBLIC int amx_emulator_cpu_has_amx(void);
PUBLIC const char *amx_emulator_name(int operation);
PUBLIC uint64_t amx_emulator_count(int operation);
PUBLIC uint64_t amx_emulator_traps(void);
PUBLIC uint64_t amx_emulator_glue_steps(void);
PUBLIC int64_t amx_emulator_errors(void);
PUBLIC const char *amx_emulator_first_error(void);
PUBLIC const char *amx_emulator_last_error(void);
PUBLIC int64_t amx_emulator_threads_configured(void);
PUBLIC void amx_emulator_reset(void);
PUBLIC void amx_emulator_report(void);
PUBLIC void amx_emulator_enable_glue(int on);
PUBLIC int amx_emulator_limit_version(int limit);

#endif
