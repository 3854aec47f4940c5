/* The dot products of tiles: sum += a * b.
 *
 * Integers: sums of four products wrap around modulo 2^32; nothing saturates. Floats: products of
 * even and of odd elements go to two float32 sums by fused multiply-add, in the order of k, each
 * from zero; then sum += even + odd. Rounded to nearest even; bf16 and float32 denormals are zeros
 * as operands and results, fp16 denormals are not; MXCSR is neither read nor written.
 *
 * Three versions: portable C, the portable C compiled for AVX2, and AVX-512 intrinsics. */
#include "amx_emulator.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define AVX2 __attribute__((target("avx2,fma,f16c"), noinline))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni,avx2,fma,f16c"), noinline))

typedef struct {
    Tile *sum;
    const Tile *a, *b;
    Tile *even, *odd; /* b's elements as float32 */
    int m, n, k;
} Product;

/* ---- portable C ---- */

INLINE void integers(const Product *p, int a_signed, int b_signed) {
    for (int m = 0; m < p->m; m++) {
        uint32_t sum[TILE_DWORDS];
        memcpy(sum, p->sum->row[m], sizeof sum);
        for (int k = 0; k < p->k; k++) {
            for (int byte = 0; byte < 4; byte++) {
                uint8_t raw = p->a->row[m][4 * k + byte];
                int32_t a = a_signed ? (int8_t)raw : raw;
                for (int n = 0; n < TILE_DWORDS; n++) {
                    uint8_t other = p->b->row[k][4 * n + byte];
                    sum[n] += (uint32_t)(a * (b_signed ? (int8_t)other : other));
                }
            }
        }
        memcpy(p->sum->row[m], sum, sizeof sum); /* columns beyond n have b = 0: they stay 0 */
    }
}

INLINE float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE float widen(const uint8_t *bytes, int fp16) {
    uint16_t half;
    memcpy(&half, bytes, 2);
    if (!fp16) return float_of_bits((uint32_t)half << 16);
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = (half >> 10) & 31, mantissa = half & 1023;
    if (exponent == 31) return float_of_bits(sign | 0x7F800000 | mantissa << 13);
    if (exponent) return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    if (!mantissa) return float_of_bits(sign);
    int shift = __builtin_clz(mantissa) - 21; /* a denormal of fp16 is a normal float32 */
    return float_of_bits(sign | (uint32_t)(113 - shift) << 23 | ((mantissa << shift) & 1023) << 13);
}

INLINE void floats(const Product *p, int fp16) {
    for (int k = 0; k < p->k; k++) {
        float even[TILE_DWORDS], odd[TILE_DWORDS];
        for (int n = 0; n < TILE_DWORDS; n++) {
            even[n] = widen(&p->b->row[k][4 * n], fp16);
            odd[n] = widen(&p->b->row[k][4 * n + 2], fp16);
        }
        memcpy(p->even->row[k], even, sizeof even);
        memcpy(p->odd->row[k], odd, sizeof odd);
    }
    for (int m = 0; m < p->m; m++) {
        float even[TILE_DWORDS] = {0}, odd[TILE_DWORDS] = {0}, sum[TILE_DWORDS];
        for (int k = 0; k < p->k; k++) {
            float a_even = widen(&p->a->row[m][4 * k], fp16);
            float a_odd = widen(&p->a->row[m][4 * k + 2], fp16);
            float b_even[TILE_DWORDS], b_odd[TILE_DWORDS];
            memcpy(b_even, p->even->row[k], sizeof b_even);
            memcpy(b_odd, p->odd->row[k], sizeof b_odd);
            for (int n = 0; n < TILE_DWORDS; n++) {
                even[n] = __builtin_fmaf(a_even, b_even[n], even[n]);
                odd[n] = __builtin_fmaf(a_odd, b_odd[n], odd[n]);
            }
        }
        memcpy(sum, p->sum->row[m], sizeof sum);
        for (int n = 0; n < p->n; n++) sum[n] += even[n] + odd[n];
        memcpy(p->sum->row[m], sum, sizeof sum);
    }
}

#define VERSION(NAME, ATTRIBUTE)                                \
    ATTRIBUTE static void NAME(const Product *p, Operation operation) { \
        switch (operation) {                                    \
            case TDPBSSD: integers(p, 1, 1); break;             \
            case TDPBSUD: integers(p, 1, 0); break;             \
            case TDPBUSD: integers(p, 0, 1); break;             \
            case TDPBUUD: integers(p, 0, 0); break;             \
            default: floats(p, operation == TDPFP16PS);         \
        }                                                       \
    }
VERSION(portable, NOINLINE)
VERSION(with_avx2, AVX2)

/* ---- AVX-512 ---- */

enum { GROUP = 4 }; /* rows of sums at once, to hide the latency of their chains */

#define LOAD(address) _mm512_load_si512((const void *)(address))
#define DWORD(tile, m, k) (((const int32_t *)(tile)->row[m])[k])

/* vpdpbusd multiplies u8 by s8. A signed a is taken as a + 128, an unsigned b as b - 128, and the
 * terms that this adds are subtracted:
 *     a * b = (a + 128) * b - 128 * b
 *     a * b = a * (b - 128) + 128 * a
 * Signed times unsigned exchanges the operands of unsigned times signed.
 * Rows beyond m and columns beyond n compute zeros. */
AVX512 static void integers_avx512(const Product *p, int a_signed, int b_signed) {
    const __m512i flip = _mm512_set1_epi8((char)0x80); /* also -128, as s8 */
    __m512i b_offset = _mm512_setzero_si512();
    if (a_signed && b_signed)
        for (int k = 0; k < p->k; k++)
            b_offset = _mm512_dpbusd_epi32(b_offset, flip, LOAD(p->b->row[k]));
    for (int m = 0; m < p->m; m += GROUP) {
        __m512i sum[GROUP];
        for (int i = 0; i < GROUP; i++)
            sum[i] = _mm512_sub_epi32(LOAD(p->sum->row[m + i]), b_offset);
        for (int k = 0; k < p->k; k++) {
            __m512i b = LOAD(p->b->row[k]);
            __m512i shifted = _mm512_xor_si512(b, flip);
            for (int i = 0; i < GROUP; i++) {
                __m512i a = _mm512_set1_epi32(DWORD(p->a, m + i, k));
                if (a_signed && b_signed) {
                    sum[i] = _mm512_dpbusd_epi32(sum[i], _mm512_xor_si512(a, flip), b);
                } else if (a_signed) {
                    sum[i] = _mm512_dpbusd_epi32(sum[i], b, a);
                } else if (b_signed) {
                    sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
                } else {
                    __m512i minus = _mm512_dpbusd_epi32(_mm512_setzero_si512(), a, flip);
                    sum[i] = _mm512_sub_epi32(_mm512_dpbusd_epi32(sum[i], a, shifted), minus);
                }
            }
        }
        __mmask16 columns = (__mmask16)((1u << p->n) - 1);
        for (int i = 0; i < GROUP && m + i < p->m; i++)
            _mm512_mask_storeu_epi32(p->sum->row[m + i], columns, sum[i]);
    }
}

__attribute__((target("avx512f"))) static inline __m512 evens_avx512(__m512i pairs, int fp16) {
    if (fp16) return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs));
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

__attribute__((target("avx512f"))) static inline __m512 odds_avx512(__m512i pairs, int fp16) {
    if (fp16) return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000)));
}

AVX512 static void floats_avx512(const Product *p, int fp16) {
    for (int k = 0; k < p->k; k++) {
        __m512i pairs = LOAD(p->b->row[k]);
        _mm512_store_ps(p->even->row[k], evens_avx512(pairs, fp16));
        _mm512_store_ps(p->odd->row[k], odds_avx512(pairs, fp16));
    }
    __mmask16 columns = (__mmask16)((1u << p->n) - 1);
    for (int m = 0; m < p->m; m += GROUP) {
        __m512 even[GROUP], odd[GROUP];
        for (int i = 0; i < GROUP; i++) even[i] = odd[i] = _mm512_setzero_ps();
        for (int k = 0; k < p->k; k++) {
            __m512 b_even = _mm512_load_ps(p->even->row[k]), b_odd = _mm512_load_ps(p->odd->row[k]);
            for (int i = 0; i < GROUP; i++) {
                __m512i a = _mm512_set1_epi32(DWORD(p->a, m + i, k));
                even[i] = _mm512_fmadd_ps(evens_avx512(a, fp16), b_even, even[i]);
                odd[i] = _mm512_fmadd_ps(odds_avx512(a, fp16), b_odd, odd[i]);
            }
        }
        for (int i = 0; i < GROUP && m + i < p->m; i++) {
            __m512 sum = _mm512_load_ps(p->sum->row[m + i]);
            sum = _mm512_add_ps(sum, _mm512_add_ps(even[i], odd[i]));
            _mm512_mask_storeu_ps(p->sum->row[m + i], columns, sum);
        }
    }
}

AVX512 static void with_avx512(const Product *p, Operation operation) {
    switch (operation) {
        case TDPBSSD: integers_avx512(p, 1, 1); break;
        case TDPBSUD: integers_avx512(p, 1, 0); break;
        case TDPBUSD: integers_avx512(p, 0, 1); break;
        case TDPBUUD: integers_avx512(p, 0, 0); break;
        default: floats_avx512(p, operation == TDPFP16PS);
    }
}

/* ---- choice ---- */

typedef void (*Version)(const Product *, Operation);
static Version chosen;

/* Chooses the fastest version that this CPU has, up to `limit`: 0 portable, 1 AVX2, 2 AVX-512.
 * Returns the chosen version's number. */
int amx_emulator_limit_version(int limit) {
    __builtin_cpu_init();
    if (limit >= 2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) {
        chosen = with_avx512;
        return 2;
    }
    if (limit >= 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        chosen = with_avx2;
        return 1;
    }
    chosen = portable;
    return 0;
}

/* Rounds to nearest even, denormals are zeros, no exception traps, no flag set. */
static const unsigned TILE_MXCSR = 0x9FC0;

void dot_product(TileState *state, Operation operation, int sum, int a, int b) {
    Product product = {&state->tile[sum],        &state->tile[a],          &state->tile[b],
                       &state->scratch[0],       &state->scratch[1],       state->rows[sum],
                       state->column_bytes[sum] / 4, state->rows[b]};
    if (!chosen) amx_emulator_limit_version(2);
    unsigned saved = _mm_getcsr();
    _mm_setcsr(TILE_MXCSR);
    chosen(&product, operation); /* a call that is not inlined: nothing moves across MXCSR */
    _mm_setcsr(saved);
}
