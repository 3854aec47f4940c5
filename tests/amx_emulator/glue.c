/* Simple integer instructions between AMX instructions, executed in the same trap. */
#include "amx_emulator.h"

int step_over_glue(greg_t *registers) {
    (void)registers;
    return 0;
}
