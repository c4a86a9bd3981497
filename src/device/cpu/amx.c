/* c [m, n] of 16 x 16 blocks, whose sums stay in tile registers. Both operands are rounded and
 * copied in the order in which tiles want them, STEP terms of a sum at a time:
 *
 *   a  blocks [16 rows][32 terms]
 *   b  blocks [16 pairs of terms][16 columns][2 terms] */
#include "device/cpu/amx.h"

#include <assert.h>

#ifdef __AMX_BF16__
#include "device/cpu/ranges.h"

#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BLOCK = SLI_AMX_ROWS, /* rows and columns */
    STEP = 2 * BLOCK,     /* terms */
    BLOCK_VALUES = BLOCK * STEP,
    BLOCKS = (SLI_TILE / BLOCK) * (SLI_AMX_MOST / STEP), /* of an operand at most */
    TOGETHER = 4                                         /* blocks of c in registers */
};

/* Block (i, step), of rows or columns from 16 i on, is the (i * steps + step)th. */
typedef struct operand {
    _Alignas(64) uint16_t blocks[BLOCKS][BLOCK_VALUES];
    int64_t steps;
} operand;

bool sli_amx_request(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 }; /* asm/prctl.h, and the manual */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

/* ---- Copies ----------------------------------------------------------------------------- */

/* The first `count` of 16 numbers, then zeros. */
static __m512 load(const float *from, int64_t count)
{
    if (count <= 0)
        return _mm512_setzero_ps();
    return _mm512_maskz_loadu_ps(count < BLOCK ? (__mmask16)((1u << count) - 1) : 0xffff, from);
}

static __m512i to_bf16(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* Pairs of the numbers of two rows: (first[0], second[0]), (first[1], second[1]) … */
static __m512i pairs_of(__m512 first, __m512 second)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, to_bf16(first, second));
}

/* Of 16 x 16 pairs. */
static void transpose_pairs(__m512i v[BLOCK])
{
    __m512i t[BLOCK];
    for (int i = 0; i < BLOCK; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < BLOCK;
         i += 4) { /* v[i + j]: columns j, j + 4, j + 8, j + 12 of four rows */
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int j = 0; j < 4; j++) {
        __m512i low = _mm512_shuffle_i32x4(v[j], v[4 + j], 0x88);
        __m512i high = _mm512_shuffle_i32x4(v[j], v[4 + j], 0xdd);
        __m512i low2 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0x88);
        __m512i high2 = _mm512_shuffle_i32x4(v[8 + j], v[12 + j], 0xdd);
        t[j] = _mm512_shuffle_i32x4(low, low2, 0x88);
        t[4 + j] = _mm512_shuffle_i32x4(high, high2, 0x88);
        t[8 + j] = _mm512_shuffle_i32x4(low, low2, 0xdd);
        t[12 + j] = _mm512_shuffle_i32x4(high, high2, 0xdd);
    }
    for (int i = 0; i < BLOCK; i++)
        v[i] = t[i];
}

static void copy_rows_of_a(const sli_small_product *p, operand *copy)
{
    for (int64_t i = 0; i < sli_divide_up(p->m, BLOCK) * BLOCK; i++)
        for (int64_t step = 0; step < copy->steps; step++) {
            int64_t k = step * STEP, left = i < p->m ? p->k - k : 0;
            const float *from = p->a + i * p->a_row + k;
            uint16_t *row = copy->blocks[i / BLOCK * copy->steps + step] + i % BLOCK * STEP;
            _mm512_store_si512(row, to_bf16(load(from, left), load(from + BLOCK, left - BLOCK)));
        }
}

/* Of a matrix [k, columns], whose rows are a sum's terms. */
static void copy_terms(const float *from, int64_t ld, int64_t k, int64_t columns, bool transposes,
                       operand *copy)
{
    for (int64_t i = 0; i < columns; i += BLOCK)
        for (int64_t step = 0; step < copy->steps; step++) {
            __m512i pairs[BLOCK];
            uint16_t *block = copy->blocks[i / BLOCK * copy->steps + step];
            for (int64_t pair = 0; pair < BLOCK; pair++) {
                int64_t term = step * STEP + 2 * pair;
                const float *row = from + term * ld + i;
                pairs[pair] = pairs_of(load(row, term < k ? columns - i : 0),
                                       load(row + ld, term + 1 < k ? columns - i : 0));
            }
            if (transposes)
                transpose_pairs(pairs);
            for (int64_t row = 0; row < BLOCK; row++)
                _mm512_store_si512(block + row * STEP, pairs[row]);
        }
}

/* ---- Products of tiles ------------------------------------------------------------------ */

static void configure_tiles(void)
{
    _Alignas(64) struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_of_row[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        config.bytes_of_row[i] = BLOCK * sizeof(float);
        config.rows[i] = BLOCK;
    }
    /* GCC 12's intrinsics do not say that they read the configuration, nor the operands. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

/* Adds a's block times each of `count` blocks of b, which are `distance` blocks apart. */
static void add_products(const uint16_t *a, const uint16_t *b, int64_t distance, int64_t count)
{
    enum { ROW_BYTES = STEP * sizeof(uint16_t) };
    int64_t values = distance * BLOCK_VALUES;
    _tile_loadd(4, a, ROW_BYTES);
    _tile_loadd(5, b, ROW_BYTES);
    _tile_dpbf16ps(0, 4, 5);
    if (count < 2)
        return;
    _tile_loadd(6, b + values, ROW_BYTES);
    _tile_dpbf16ps(1, 4, 6);
    if (count < 3)
        return;
    _tile_loadd(5, b + 2 * values, ROW_BYTES);
    _tile_dpbf16ps(2, 4, 5);
    if (count < TOGETHER)
        return;
    _tile_loadd(6, b + 3 * values, ROW_BYTES);
    _tile_dpbf16ps(3, 4, 6);
}

static void load_sums(const sli_small_product *p, const float *c, int64_t count)
{
    size_t row_bytes = (size_t)p->ldc * sizeof *c;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if (!p->adds)
        return;
    _tile_loadd(0, c, row_bytes);
    if (count > 1)
        _tile_loadd(1, c + BLOCK, row_bytes);
    if (count > 2)
        _tile_loadd(2, c + 2 * BLOCK, row_bytes);
    if (count > 3)
        _tile_loadd(3, c + 3 * BLOCK, row_bytes);
}

static void store_sums(const sli_small_product *p, float *c, int64_t count)
{
    size_t row_bytes = (size_t)p->ldc * sizeof *c;
    _tile_stored(0, c, row_bytes);
    if (count > 1)
        _tile_stored(1, c + BLOCK, row_bytes);
    if (count > 2)
        _tile_stored(2, c + 2 * BLOCK, row_bytes);
    if (count > 3)
        _tile_stored(3, c + 3 * BLOCK, row_bytes);
}

/* `count` blocks of c from block (row, column) on, without the steps in which a is 0. */
static void multiply_blocks(const sli_small_product *p, const operand *a, const operand *b,
                            int64_t row, int64_t column, int64_t count)
{
    int64_t first = p->triangle == SLI_A_UPPER ? row * BLOCK / STEP : 0;
    int64_t end = p->triangle == SLI_A_LOWER ? row * BLOCK / STEP + 1 : a->steps;
    float *c = p->c + row * BLOCK * p->ldc + column * BLOCK;
    load_sums(p, c, count);
    for (int64_t step = first; step < sli_smaller(end, a->steps); step++)
        add_products(a->blocks[row * a->steps + step], b->blocks[column * b->steps + step],
                     b->steps, count);
    store_sums(p, c, count);
}

void sli_amx_product(const sli_small_product *p)
{
    operand a, b;
    a.steps = b.steps = sli_divide_up(p->k, STEP);
    assert(p->m <= SLI_TILE && p->n % BLOCK == 0);
    assert(sli_smaller(p->n, p->k) <= SLI_TILE && sli_larger(p->n, p->k) <= SLI_AMX_MOST);
    if (p->a_step == 1)
        copy_rows_of_a(p, &a);
    else
        copy_terms(p->a, p->a_step, p->k, p->m, true, &a);
    copy_terms(p->b, p->ldb, p->k, p->n, false, &b);
    configure_tiles();
    for (int64_t row = 0; row < sli_divide_up(p->m, BLOCK); row++)
        for (int64_t column = p->triangle == SLI_C_UPPER ? row : 0; column < p->n / BLOCK;
             column += TOGETHER)
            multiply_blocks(p, &a, &b, row, column, sli_smaller(TOGETHER, p->n / BLOCK - column));
    _tile_release();
}

#else
bool sli_amx_request(void)
{
    return false;
}

void sli_amx_product(const sli_small_product *p)
{
    (void)p;
    assert(false);
}
#endif
