/* Calls the decoder alone, for its tests. */
#include "amx_emulator.h"

typedef struct {
    int64_t operation, length, reg, rm, vvvv, address, stride, faulty;
} Decoded;

/* Decodes the instruction at `code`, with the registers in the order of their numbers; 0 if it is
 * not an AMX instruction. */
PUBLIC int amx_emulator_decode(const uint8_t *code, const uint64_t *values, Decoded *decoded) {
    greg_t registers[NGREG] = {0};
    Instruction instruction;
    for (int number = 0; number < 16; number++)
        registers[register_of_number[number]] = (greg_t)values[number];
    if (!decode(code, registers, &instruction)) return 0;
    *decoded = (Decoded){instruction.operation,        instruction.length,
                         instruction.reg,              instruction.rm,
                         instruction.vvvv,             (int64_t)instruction.address,
                         (int64_t)instruction.stride, instruction.fault != NULL};
    return 1;
}
