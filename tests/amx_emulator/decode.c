/* Recognises AMX instructions: C4 (three-byte VEX), map 0F38, opcodes 49, 4B, 5C and 5E. */
#include "amx_emulator.h"

#include <string.h>

const char *const operation_names[OPERATIONS] = {
    "ldtilecfg", "sttilecfg", "tilerelease", "tilezero", "tileloadd", "tileloaddt1", "tilestored",
    "tdpbssd",   "tdpbsud",   "tdpbusd",     "tdpbuud",  "tdpbf16ps", "tdpfp16ps"};

const int register_of_number[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                    REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                    REG_R12, REG_R13, REG_R14, REG_R15};

enum { NO_PREFIX, PREFIX_66, PREFIX_F3, PREFIX_F2 }; /* VEX.pp */

/* An operand's registers and address. `immediate_bytes` is the number of bytes after the operand:
 * an address relative to rip counts from the instruction's end. */
void read_operand(const uint8_t *modrm, const greg_t *registers, int rex_r, int rex_x, int rex_b,
                  int immediate_bytes, Operand *operand) {
    int mod = *modrm >> 6, rm = *modrm & 7;
    int displacement_bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    int base = rm | rex_b << 3, relative_to_rip = 0;
    const uint8_t *next = modrm + 1;

    memset(operand, 0, sizeof *operand);
    operand->reg = ((*modrm >> 3) & 7) | rex_r << 3;
    operand->rm = base;
    operand->is_memory = mod != 3;
    if (!operand->is_memory) {
        operand->end = next;
        return;
    }
    if (rm == 4) {
        uint8_t sib = *next++;
        int index = ((sib >> 3) & 7) | rex_x << 3;
        operand->has_sib = 1;
        if (index != 4)
            operand->index = (uint64_t)registers[register_of_number[index]] << (sib >> 6);
        base = (sib & 7) | rex_b << 3;
        if ((sib & 7) == 5 && mod == 0) {
            base = -1;
            displacement_bytes = 4;
        }
    } else if (rm == 5 && mod == 0) {
        base = -1;
        displacement_bytes = 4;
        relative_to_rip = 1;
    }
    if (base >= 0) operand->base = (uint64_t)registers[register_of_number[base]];
    if (displacement_bytes == 1) {
        operand->base += (uint64_t)(int64_t)(int8_t)*next;
    } else if (displacement_bytes == 4) {
        int32_t displacement;
        memcpy(&displacement, next, 4);
        operand->base += (uint64_t)(int64_t)displacement;
    }
    operand->end = next + displacement_bytes;
    if (relative_to_rip) operand->base += (uint64_t)(operand->end + immediate_bytes);
}

static int operation_of(int opcode, int prefix, int modrm) {
    int in_memory = modrm < 0xC0, reg = (modrm >> 3) & 7, rm = modrm & 7;
    switch (opcode) {
        case 0x49:
            if (in_memory && reg == 0 && prefix == NO_PREFIX) return LDTILECFG;
            if (in_memory && reg == 0 && prefix == PREFIX_66) return STTILECFG;
            if (modrm == 0xC0 && prefix == NO_PREFIX) return TILERELEASE;
            if (!in_memory && rm == 0 && prefix == PREFIX_F2) return TILEZERO;
            return -1;
        case 0x4B:
            if (!in_memory) return -1;
            if (prefix == PREFIX_F2) return TILELOADD;
            if (prefix == PREFIX_66) return TILELOADDT1;
            return prefix == PREFIX_F3 ? TILESTORED : -1;
        case 0x5C:
            if (in_memory) return -1;
            if (prefix == PREFIX_F3) return TDPBF16PS;
            return prefix == PREFIX_F2 ? TDPFP16PS : -1;
        case 0x5E:
            if (in_memory) return -1;
            if (prefix == NO_PREFIX) return TDPBUUD;
            if (prefix == PREFIX_66) return TDPBUSD;
            return prefix == PREFIX_F3 ? TDPBSUD : TDPBSSD;
        default:
            return -1;
    }
}

/* Decodes the instruction at `code`; 0 if it is not an AMX instruction. */
int decode(const uint8_t *code, const greg_t *registers, Instruction *instruction) {
    const uint8_t *vex = code;
    int narrow_address = 0, segment = 0;
    /* 67, fs and gs change the address; other segment prefixes mean nothing in 64-bit mode. */
    for (;; vex++) {
        if (*vex == 0x67)
            narrow_address = 1;
        else if (*vex == 0x64 || *vex == 0x65)
            segment = 1;
        else if (*vex != 0x26 && *vex != 0x2E && *vex != 0x36 && *vex != 0x3E)
            break;
        if (vex - code == 9) return 0; /* no instruction is longer than 15 bytes */
    }
    if (vex[0] != 0xC4 || (vex[1] & 0x1F) != 2) return 0;
    if (vex[2] & 0x84) return 0; /* W or L */
    int operation = operation_of(vex[3], vex[2] & 3, vex[4]);
    if (operation < 0) return 0;

    Operand operand;
    read_operand(vex + 4, registers, !(vex[1] & 0x80), !(vex[1] & 0x40), !(vex[1] & 0x20), 0,
                 &operand);
    instruction->operation = (Operation)operation;
    instruction->length = (int)(operand.end - code);
    instruction->reg = operand.reg;
    instruction->rm = operand.rm;
    instruction->vvvv = (~vex[2] >> 3) & 15;
    instruction->address = operand.base;
    instruction->stride = operand.index;
    instruction->fault = NULL;
    if (operation == LDTILECFG || operation == STTILECFG) {
        instruction->address += operand.index; /* an ordinary address */
        instruction->stride = 0;
    } else if (operand.is_memory && !operand.has_sib) {
        instruction->fault = "#UD: the address of a tile needs a SIB byte (base + stride)";
    }
    if (operation < TDPBSSD && instruction->vvvv)
        instruction->fault = "#UD: VEX.vvvv must be 1111b";
    if (operand.is_memory && narrow_address)
        instruction->fault = "32-bit addresses (prefix 67) are not emulated";
    if (operand.is_memory && segment)
        instruction->fault = "addresses relative to fs or gs are not emulated";
    return 1;
}
