/* Executes simple integer instructions between AMX instructions in one trap: those that compilers
 * put between tile loads and dot products. So a whole loop over K costs one trap.
 *
 * Operands of 32 and 64 bits: mov, lea, movsxd, cmov, add, or, and, sub, xor, cmp, test, inc, dec,
 * neg, not, shifts by constants, imul, jumps, nop, prefetch. The CPU executes all others.
 * Flags that the manual leaves undefined (AF after logic, shifts and products; OF after shifts by
 * more than one; SF, ZF and PF after products) have some value. */
#include "amx_emulator.h"

#include <string.h>

enum { CF = 1 << 0, PF = 1 << 2, AF = 1 << 4, ZF = 1 << 6, SF = 1 << 7, OF = 1 << 11 };
enum { ARITHMETIC_FLAGS = CF | PF | AF | ZF | SF | OF };

/* The instruction being executed. */
typedef struct {
    greg_t *registers;
    const uint8_t *end; /* after the last byte read */
    int bits;           /* 32 or 64 */
    int rex_r, rex_x, rex_b;
    Operand operand;
} Step;

static uint64_t truncated(uint64_t value, int bits) { return bits == 64 ? value : (uint32_t)value; }

static uint64_t sign_bit(uint64_t value, int bits) { return value >> (bits - 1) & 1; }

static int32_t immediate(Step *step, int bytes) {
    int32_t value;
    if (bytes == 1) {
        value = (int8_t)*step->end;
    } else {
        memcpy(&value, step->end, 4);
    }
    step->end += bytes;
    return value;
}

static uint64_t get_register(const Step *step, int number) {
    return truncated((uint64_t)step->registers[register_of_number[number]], step->bits);
}

static void set_register(Step *step, int number, uint64_t value) {
    step->registers[register_of_number[number]] = (greg_t)truncated(value, step->bits);
}

static uint64_t address(const Step *step) { return step->operand.base + step->operand.index; }

static uint64_t get_operand(const Step *step) {
    uint64_t value = 0;
    if (!step->operand.is_memory) return get_register(step, step->operand.rm);
    memcpy(&value, (const void *)address(step), (size_t)step->bits / 8);
    return value;
}

static void set_operand(Step *step, uint64_t value) {
    if (!step->operand.is_memory)
        set_register(step, step->operand.rm, value);
    else
        memcpy((void *)address(step), &value, (size_t)step->bits / 8);
}

static void read_modrm(Step *step, int immediate_bytes) {
    read_operand(step->end, step->registers, step->rex_r, step->rex_x, step->rex_b, immediate_bytes,
                 &step->operand);
    step->end = step->operand.end;
}

/* ---- flags ---- */

static void set_flags(Step *step, uint64_t flags, uint64_t kept) {
    uint64_t changed = ARITHMETIC_FLAGS & ~kept;
    uint64_t old = (uint64_t)step->registers[REG_EFL];
    step->registers[REG_EFL] = (greg_t)((old & ~changed) | (flags & changed));
}

static uint64_t flags_of_value(uint64_t value, int bits) {
    uint64_t flags = __builtin_parity((unsigned)value & 0xFF) ? 0 : PF;
    if (!value) flags |= ZF;
    if (sign_bit(value, bits)) flags |= SF;
    return flags;
}

static int condition_holds(const Step *step, int condition) {
    uint64_t flags = (uint64_t)step->registers[REG_EFL];
    int sign_differs = !(flags & SF) != !(flags & OF), holds;
    switch (condition >> 1) {
        case 0: holds = (flags & OF) != 0; break;
        case 1: holds = (flags & CF) != 0; break;
        case 2: holds = (flags & ZF) != 0; break;
        case 3: holds = (flags & (CF | ZF)) != 0; break;
        case 4: holds = (flags & SF) != 0; break;
        case 5: holds = (flags & PF) != 0; break;
        case 6: holds = sign_differs; break;
        default: holds = sign_differs || (flags & ZF);
    }
    return holds != (condition & 1);
}

/* ---- operations ---- */

enum { ADD, OR, ADC, SBB, AND, SUB, XOR, CMP }; /* as opcodes number them */

static uint64_t add(Step *step, uint64_t a, uint64_t b, uint64_t kept) {
    uint64_t sum = truncated(a + b, step->bits);
    uint64_t flags = flags_of_value(sum, step->bits) | ((a ^ b ^ sum) & AF);
    if (sum < a) flags |= CF;
    if (sign_bit((a ^ sum) & (b ^ sum), step->bits)) flags |= OF;
    set_flags(step, flags, kept);
    return sum;
}

static uint64_t subtract(Step *step, uint64_t a, uint64_t b, uint64_t kept) {
    uint64_t difference = truncated(a - b, step->bits);
    uint64_t flags = flags_of_value(difference, step->bits) | ((a ^ b ^ difference) & AF);
    if (a < b) flags |= CF;
    if (sign_bit((a ^ b) & (a ^ difference), step->bits)) flags |= OF;
    set_flags(step, flags, kept);
    return difference;
}

/* One of the eight operations; its result goes to the operand in memory or rm, or to a register. */
static int arithmetic(Step *step, int operation, uint64_t a, uint64_t b, int destination_register) {
    uint64_t result;
    b = truncated(b, step->bits);
    switch (operation) {
        case ADD: result = add(step, a, b, 0); break;
        case SUB:
        case CMP: result = subtract(step, a, b, 0); break;
        case AND: result = a & b; break;
        case OR: result = a | b; break;
        case XOR: result = a ^ b; break;
        default: return 0;
    }
    if (operation == AND || operation == OR || operation == XOR)
        set_flags(step, flags_of_value(result, step->bits), 0);
    if (operation == CMP) return 1;
    if (destination_register >= 0)
        set_register(step, destination_register, result);
    else
        set_operand(step, result);
    return 1;
}

static int test(Step *step, uint64_t a, uint64_t b) {
    set_flags(step, flags_of_value(truncated(a & b, step->bits), step->bits), 0);
    return 1;
}

static int shift(Step *step, int kind, int count) {
    uint64_t value = get_operand(step), result, flags = 0;
    int bits = step->bits;
    count &= bits - 1;
    if (kind != 4 && kind != 5 && kind != 7) return 0; /* rotations */
    if (!count) {
        set_operand(step, value); /* clears the upper half of a 32-bit register */
        return 1;
    }
    if (kind == 4) {
        result = truncated(value << count, bits);
        if (value >> (bits - count) & 1) flags |= CF;
        if (sign_bit(result, bits) != (flags & CF)) flags |= OF;
    } else {
        int64_t extended = bits == 64 ? (int64_t)value : (int32_t)value;
        result = kind == 5 ? value >> count : truncated((uint64_t)(extended >> count), bits);
        if (value >> (count - 1) & 1) flags |= CF;
        if (kind == 5 && sign_bit(value, bits)) flags |= OF;
    }
    set_flags(step, flags | flags_of_value(result, bits), 0);
    set_operand(step, result);
    return 1;
}

static void multiply(Step *step, uint64_t a, uint64_t b) {
    int64_t product;
    int overflows;
    if (step->bits == 64) {
        overflows = __builtin_mul_overflow((int64_t)a, (int64_t)b, &product);
    } else {
        product = (int64_t)(int32_t)a * (int32_t)b;
        overflows = product != (int32_t)product;
    }
    set_register(step, step->operand.reg, (uint64_t)product);
    set_flags(step, overflows ? CF | OF : 0, 0);
}

/* ---- decoding ---- */

/* Opcodes 0F xx. */
static int step_two_bytes(Step *step) {
    int opcode = *step->end++;
    if ((opcode & 0xF0) == 0x80) { /* jcc rel32 */
        int32_t distance = immediate(step, 4);
        if (condition_holds(step, opcode & 15)) step->end += distance;
        return 1;
    }
    if ((opcode & 0xF0) == 0x40) { /* cmovcc */
        read_modrm(step, 0);
        /* Reads the operand and clears the upper half of a 32-bit register, if false too. */
        uint64_t value = get_operand(step), before = get_register(step, step->operand.reg);
        set_register(step, step->operand.reg, condition_holds(step, opcode & 15) ? value : before);
        return 1;
    }
    switch (opcode) {
        case 0x0D: /* prefetchw */
        case 0x18: /* prefetch */
            read_modrm(step, 0);
            return step->operand.is_memory && (step->operand.reg & 7) < 4;
        case 0x1F: /* nop */
            read_modrm(step, 0);
            return 1;
        case 0xAF:
            read_modrm(step, 0);
            multiply(step, get_register(step, step->operand.reg), get_operand(step));
            return 1;
        default:
            return 0;
    }
}

static int step_group_f7(Step *step) {
    int is_test = (*step->end & 0x38) == 0;
    read_modrm(step, is_test ? 4 : 0);
    switch (step->operand.reg & 7) {
        case 0: return test(step, get_operand(step), (uint64_t)(int64_t)immediate(step, 4));
        case 2: set_operand(step, ~get_operand(step)); return 1;
        case 3: set_operand(step, subtract(step, 0, get_operand(step), 0)); return 1;
        default: return 0;
    }
}

static int step_one_byte(Step *step) {
    int opcode = *step->end++;
    if (opcode == 0x0F) return step_two_bytes(step);
    if (opcode < 0x40) { /* the eight operations, in three forms each */
        int operation = opcode >> 3;
        switch (opcode & 7) {
            case 1:
                read_modrm(step, 0);
                return arithmetic(step, operation, get_operand(step),
                                  get_register(step, step->operand.reg), -1);
            case 3:
                read_modrm(step, 0);
                return arithmetic(step, operation, get_register(step, step->operand.reg),
                                  get_operand(step), step->operand.reg);
            case 5: {
                uint64_t value = (uint64_t)(int64_t)immediate(step, 4);
                return arithmetic(step, operation, get_register(step, 0), value, 0);
            }
            default:
                return 0;
        }
    }
    if ((opcode & 0xF0) == 0x70 || opcode == 0xEB) { /* jumps, rel8 */
        int32_t distance = immediate(step, 1);
        if (opcode == 0xEB || condition_holds(step, opcode & 15)) step->end += distance;
        return 1;
    }
    if ((opcode & 0xF8) == 0xB8) { /* mov of a constant */
        uint64_t value;
        if (step->bits == 64) {
            memcpy(&value, step->end, 8);
            step->end += 8;
        } else {
            value = (uint32_t)immediate(step, 4);
        }
        set_register(step, (opcode & 7) | step->rex_b << 3, value);
        return 1;
    }
    switch (opcode) {
        case 0x63: /* movsxd */
            if (step->bits != 64) return 0;
            read_modrm(step, 0);
            step->bits = 32;
            uint64_t narrow = get_operand(step);
            step->bits = 64;
            set_register(step, step->operand.reg, (uint64_t)(int64_t)(int32_t)narrow);
            return 1;
        case 0x69:
        case 0x6B: { /* imul by a constant */
            int bytes = opcode == 0x6B ? 1 : 4;
            read_modrm(step, bytes);
            uint64_t factor = (uint64_t)(int64_t)immediate(step, bytes);
            multiply(step, get_operand(step), factor);
            return 1;
        }
        case 0x81:
        case 0x83: {
            int bytes = opcode == 0x83 ? 1 : 4;
            read_modrm(step, bytes);
            uint64_t value = (uint64_t)(int64_t)immediate(step, bytes);
            return arithmetic(step, step->operand.reg & 7, get_operand(step), value, -1);
        }
        case 0x85:
            read_modrm(step, 0);
            return test(step, get_operand(step), get_register(step, step->operand.reg));
        case 0x89:
            read_modrm(step, 0);
            set_operand(step, get_register(step, step->operand.reg));
            return 1;
        case 0x8B:
            read_modrm(step, 0);
            set_register(step, step->operand.reg, get_operand(step));
            return 1;
        case 0x8D: /* lea */
            read_modrm(step, 0);
            if (!step->operand.is_memory) return 0;
            set_register(step, step->operand.reg, address(step));
            return 1;
        case 0x90:
            return !step->rex_b; /* with it: xchg */
        case 0xA9:
            return test(step, get_register(step, 0), (uint64_t)(int64_t)immediate(step, 4));
        case 0xC1:
            read_modrm(step, 1);
            return shift(step, step->operand.reg & 7, immediate(step, 1));
        case 0xC7:
            read_modrm(step, 4);
            if (step->operand.reg & 7) return 0;
            set_operand(step, (uint64_t)(int64_t)immediate(step, 4));
            return 1;
        case 0xD1:
            read_modrm(step, 0);
            return shift(step, step->operand.reg & 7, 1);
        case 0xE9: {
            int32_t distance = immediate(step, 4);
            step->end += distance;
            return 1;
        }
        case 0xF7:
            return step_group_f7(step);
        case 0xFF:
            read_modrm(step, 0);
            if ((step->operand.reg & 7) > 1) return 0;
            if ((step->operand.reg & 7) == 0)
                set_operand(step, add(step, get_operand(step), 1, CF));
            else
                set_operand(step, subtract(step, get_operand(step), 1, CF));
            return 1;
        default:
            return 0;
    }
}

/* The length of a nop with prefixes 66 and 2E, as assemblers write it to align code; else 0. */
static int length_of_padded_nop(const uint8_t *code, const greg_t *registers) {
    const uint8_t *opcode = code;
    Operand operand;
    while ((*opcode == 0x66 || *opcode == 0x2E) && opcode - code < 8) opcode++;
    if (opcode == code) return 0;
    if (*opcode == 0x90) return (int)(opcode + 1 - code);
    if (opcode[0] != 0x0F || opcode[1] != 0x1F) return 0;
    read_operand(opcode + 2, registers, 0, 0, 0, 0, &operand);
    return (int)(operand.end - code);
}

/* Executes the instruction at rip; returns 0 and changes nothing if it is unknown. */
int step_over_glue(greg_t *registers) {
    const uint8_t *code = (const uint8_t *)registers[REG_RIP];
    Step step = {.registers = registers, .end = code, .bits = 32};
    int nop = length_of_padded_nop(code, registers);
    if (nop) {
        registers[REG_RIP] += nop;
        return 1;
    }
    if ((*code & 0xF0) == 0x40) {
        step.bits = *code & 8 ? 64 : 32;
        step.rex_r = *code >> 2 & 1;
        step.rex_x = *code >> 1 & 1;
        step.rex_b = *code & 1;
        step.end++;
    }
    if (!step_one_byte(&step)) return 0;
    registers[REG_RIP] = (greg_t)step.end;
    return 1;
}
