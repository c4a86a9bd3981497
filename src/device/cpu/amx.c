/* c [m, n] of 16 x 16 blocks, 2 x 2 of which are summed in tile registers at a time. Both operands
 * are copied in the order in which tiles want them:
 *
 *   a  blocks [16 rows][32 terms]
 *   b  blocks [16 pairs of terms][16 rows][2 terms]
 *
 * b is copied once, and stays in the L2 cache. a is copied a strip of rows at a time, some terms of
 * it, and its blocks stay in the L1 cache, two rows of blocks at a time, while b passes them. A
 * strip is higher than two blocks because it is read in rows of its columns where `has_term_rows`,
 * and such short ones come slowly from memory. (Measured: 32 to 256 rows, 384 to 1,024 terms.) */
#include "device/cpu/amx.h"

#include "device/cpu/ranges.h"

#include <assert.h>
#include <stdint.h>

enum {
    BLOCK = SLI_AMX_BLOCK,
    STEP = SLI_AMX_STEP,
    BLOCK_VALUES = BLOCK * STEP,
    TERMS = SLI_AMX_TERMS
};

int64_t sli_amx_count_room(int64_t n, int64_t k)
{
    int64_t steps_of_b = sli_divide_up(k, STEP), steps_of_a = sli_smaller(steps_of_b, TERMS / STEP);
    return (sli_divide_up(n, BLOCK) * steps_of_b + SLI_AMX_STRIP / BLOCK * steps_of_a) *
           BLOCK_VALUES;
}

#ifdef __AMX_BF16__
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

bool sli_amx_request(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 }; /* asm/prctl.h, and the manual */
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

/* ---- Copies ----------------------------------------------------------------------------- */

static __m512i to_bf16(__m512 first, __m512 second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

/* STEP elements from `at` on, zeros where the mask has none. */
static inline __m512i load_row(const sli_amx_matrix *matrix, bool is_bf16, int64_t at,
                               __mmask32 mask)
{
    if (is_bf16)
        return _mm512_maskz_loadu_epi16(mask, (const uint16_t *)matrix->values + at);
    const float *wide = (const float *)matrix->values + at;
    return to_bf16(_mm512_maskz_loadu_ps((__mmask16)mask, wide),
                   _mm512_maskz_loadu_ps((__mmask16)(mask >> BLOCK), wide + BLOCK));
}

/* Asks for what will be copied of this row of memory, in this strip or the next: the processor does
 * not expect the next line of so many rows by itself. (Measured: 32 to 128 columns ahead.) */
static inline void expect_reads(const sli_amx_matrix *matrix, int64_t at)
{
    enum { AHEAD = 4 * BLOCK }; /* columns of memory: two cache lines */
    __builtin_prefetch(
        (const void *)((uintptr_t)matrix->values + (size_t)(at + AHEAD) * sizeof(uint16_t)));
}

/* Of 16 x 16 pairs: vector i has the pairs i of all. */
static inline void transpose_pairs(__m512i v[BLOCK])
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

/* Of the first `count` elements, at least 1. */
static __mmask32 mask_of(int64_t count)
{
    return count < STEP ? (1U << count) - 1 : 0xffffffff;
}

static inline void store_block(__m512i v[BLOCK], bool transposes, uint16_t *to)
{
    if (transposes)
        transpose_pairs(v);
    for (int64_t i = 0; i < BLOCK; i++)
        _mm512_store_si512(to + i * STEP, v[i]);
}

/* What is copied: `rows` rows and `terms` terms of a matrix. */
typedef struct section {
    const sli_amx_matrix *matrix;
    int64_t first_row, rows, first_term, terms;
    bool is_a;
} section;

/* The block from (row, term) of the section on. `is_bf16` is a constant for the compiler. */
static inline void copy_rows(const section *p, bool is_bf16, int64_t row, int64_t term,
                             uint16_t *to)
{
    __m512i v[BLOCK];
    int64_t at = (p->first_row + row) * p->matrix->ld + p->first_term + term;
    __mmask32 mask = mask_of(p->terms - term);
    for (int64_t i = 0; i < BLOCK; i++)
        v[i] = load_row(p->matrix, is_bf16, at + i * p->matrix->ld, row + i < p->rows ? mask : 0);
    store_block(v, !p->is_a, to);
}

/* The same of a matrix that has_term_rows, and the block below it: 32 columns of memory, a cache
 * line of bf16, are the rows of both. `below` is NULL where there are no more rows. */
static inline void copy_terms(const section *p, bool is_bf16, int64_t row, int64_t term,
                              uint16_t *to, uint16_t *below)
{
    static const uint16_t order[2 * STEP] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,
                                             38, 7,  39, 8,  40, 9,  41, 10, 42, 11, 43, 12, 44,
                                             13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19,
                                             51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25, 57,
                                             26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
    const __m512i first_half = _mm512_loadu_si512(order),
                  second_half = _mm512_loadu_si512(order + STEP);
    __m512i v[BLOCK], w[BLOCK];
    int64_t ld = p->matrix->ld, at = (p->first_term + term) * ld + p->first_row + row;
    __mmask32 mask = mask_of(p->rows - row);
    for (int64_t pair = 0; pair < BLOCK; pair++) {
        int64_t i = 2 * pair;
        __m512i a = load_row(p->matrix, is_bf16, at + i * ld, term + i < p->terms ? mask : 0);
        __m512i b =
            load_row(p->matrix, is_bf16, at + (i + 1) * ld, term + i + 1 < p->terms ? mask : 0);
        if (is_bf16) {
            expect_reads(p->matrix, at + i * ld);
            expect_reads(p->matrix, at + (i + 1) * ld);
        }
        v[pair] = _mm512_permutex2var_epi16(a, first_half, b);
        w[pair] = _mm512_permutex2var_epi16(a, second_half, b);
    }
    store_block(v, p->is_a, to);
    if (below)
        store_block(w, p->is_a, below);
}

/* Block (i, step), of rows from 16 i and terms from 32 step on, is the (i * steps + step)th of the
 * copy. */
static inline void copy_blocks(const section *p, bool is_bf16, uint16_t *to)
{
    int64_t distance = sli_divide_up(p->terms, STEP) * BLOCK_VALUES; /* of rows of blocks */
    if (p->matrix->has_term_rows)
        for (int64_t term = 0; term < p->terms; term += STEP)
            for (int64_t row = 0; row < p->rows; row += 2 * BLOCK) {
                uint16_t *block = to + row / BLOCK * distance + term * BLOCK;
                copy_terms(p, is_bf16, row, term, block,
                           row + BLOCK < p->rows ? block + distance : NULL);
            }
    else
        for (int64_t row = 0; row < p->rows; row += BLOCK)
            for (int64_t term = 0; term < p->terms; term += STEP)
                copy_rows(p, is_bf16, row, term, to + row / BLOCK * distance + term * BLOCK);
}

static void copy_section(const section *p, uint16_t *to)
{
    if (p->matrix->is_bf16)
        copy_blocks(p, true, to);
    else
        copy_blocks(p, false, to);
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
    /* GCC 12's intrinsic does not say that it reads the configuration. */
    __asm__ volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
}

/* 2 x 2 blocks of c, or 1 x 2, 2 x 1, 1 x 1: in the tiles 0 and 1, and below them 2 and 3. */
typedef struct few_blocks {
    bool has_second_row, has_second_column;
    const uint16_t *a, *b;            /* the first block's first step */
    int64_t second_of_a, second_of_b; /* how many values further that of the second lies */
    int64_t steps;
    float *c;
    int64_t ldc;
} few_blocks;

static void load_sums(const few_blocks *s)
{
    size_t row_bytes = (size_t)s->ldc * sizeof *s->c;
    float *second = s->c + BLOCK * s->ldc;
    _tile_loadd(0, s->c, row_bytes);
    if (s->has_second_column)
        _tile_loadd(1, s->c + BLOCK, row_bytes);
    if (s->has_second_row)
        _tile_loadd(2, second, row_bytes);
    if (s->has_second_row && s->has_second_column)
        _tile_loadd(3, second + BLOCK, row_bytes);
}

static void store_sums(const few_blocks *s)
{
    size_t row_bytes = (size_t)s->ldc * sizeof *s->c;
    float *second = s->c + BLOCK * s->ldc;
    _tile_stored(0, s->c, row_bytes);
    if (s->has_second_column)
        _tile_stored(1, s->c + BLOCK, row_bytes);
    if (s->has_second_row)
        _tile_stored(2, second, row_bytes);
    if (s->has_second_row && s->has_second_column)
        _tile_stored(3, second + BLOCK, row_bytes);
}

static void add_products(const few_blocks *s)
{
    enum { ROW_BYTES = STEP * sizeof(uint16_t) };
    for (int64_t step = 0; step < s->steps; step++) {
        const uint16_t *a = s->a + step * BLOCK_VALUES, *b = s->b + step * BLOCK_VALUES;
        _tile_loadd(4, a, ROW_BYTES);
        /* b must not drive a out of the L1 cache: a step takes 22 ns so, 26 ns with plain loads. */
        _tile_stream_loadd(6, b, ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        if (s->has_second_column) {
            _tile_stream_loadd(7, b + s->second_of_b, ROW_BYTES);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (s->has_second_row) {
            _tile_loadd(5, a + s->second_of_a, ROW_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            if (s->has_second_column)
                _tile_dpbf16ps(3, 5, 7);
        }
    }
}

/* What is copied of a. */
typedef struct strip {
    int64_t first_block, blocks; /* of rows */
    int64_t first_step, steps;
    const uint16_t *copy;
} strip;

/* c's blocks in the strip's block `row` and the next, and b's block `column` and the next, without
 * the steps in which a is 0. */
static void multiply_few_blocks(const sli_amx_product *p, const strip *a, const uint16_t *b,
                                int64_t row, int64_t column, bool adds, float *c, int64_t ldc)
{
    int64_t diagonal = (a->first_block + row) * BLOCK / STEP,
            steps_of_b = sli_divide_up(p->k, STEP);
    int64_t first = p->triangle == SLI_A_UPPER ? diagonal : 0;
    int64_t end = p->triangle == SLI_A_LOWER ? sli_smaller(diagonal + 1, a->steps) : a->steps;
    few_blocks sums = {
        .has_second_row = row + 1 < a->blocks,
        .has_second_column = (column + 1) * BLOCK < p->n,
        .a = a->copy + (row * a->steps + first) * BLOCK_VALUES,
        .b = b + (column * steps_of_b + a->first_step + first) * BLOCK_VALUES,
        .second_of_a = a->steps * BLOCK_VALUES,
        .second_of_b = steps_of_b * BLOCK_VALUES,
        .steps = end - first,
        .c = c + row * BLOCK * ldc + column * BLOCK,
        .ldc = ldc,
    };
    if (adds) {
        load_sums(&sums);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    add_products(&sums);
    store_sums(&sums);
}

static uint16_t *copy_of_b(const sli_amx_product *p)
{
    return p->room + sli_amx_count_room(0, p->k);
}

void sli_amx_begin(const sli_amx_product *p)
{
    assert(p->triangle == SLI_WHOLE || p->k <= TERMS);
    copy_section(&(section){&p->b, 0, p->n, 0, p->k, false}, copy_of_b(p));
    configure_tiles();
}

void sli_amx_end(void)
{
    _tile_release();
}

void sli_amx_multiply(const sli_amx_product *p, int64_t first_row, int64_t rows, float *c,
                      int64_t ldc)
{
    const uint16_t *b = copy_of_b(p);
    assert(rows <= SLI_AMX_STRIP && first_row % SLI_AMX_STRIP == 0);
    for (int64_t term = 0; term < p->k; term += TERMS) {
        int64_t terms = sli_smaller(p->k - term, TERMS);
        strip a = {.first_block = first_row / BLOCK,
                   .blocks = sli_divide_up(rows, BLOCK),
                   .first_step = term / STEP,
                   .steps = sli_divide_up(terms, STEP),
                   .copy = p->room};
        copy_section(&(section){&p->a, first_row, rows, term, terms, true}, p->room);
        /* GCC 12's loads of tiles do not say that they read memory. */
        __asm__ volatile("" : : : "memory");
        for (int64_t row = 0; row < a.blocks; row += 2)
            for (int64_t column = p->triangle == SLI_C_UPPER ? a.first_block + row : 0;
                 column * BLOCK < p->n; column += 2)
                multiply_few_blocks(p, &a, b, row, column, p->adds || term > 0, c, ldc);
    }
}

void sli_amx_small_product(const sli_small_product *p)
{
    _Alignas(64) uint16_t room[(SLI_TILE + SLI_AMX_STRIP) * SLI_AMX_MOST];
    bool is_transposed = p->a_step != 1;
    assert(p->m <= SLI_TILE && p->n % BLOCK == 0);
    assert(sli_smaller(p->n, p->k) <= SLI_TILE && sli_larger(p->n, p->k) <= SLI_AMX_MOST);
    sli_amx_product product = {
        .n = p->n,
        .k = p->k,
        .a = {p->a, false, is_transposed, is_transposed ? p->a_step : p->a_row},
        .b = {p->b, false, true, p->ldb},
        .triangle = p->triangle,
        .adds = p->adds,
        .room = room,
    };
    sli_amx_begin(&product);
    sli_amx_multiply(&product, 0, p->m, p->c, p->ldc);
    sli_amx_end();
}

#else
bool sli_amx_request(void)
{
    return false;
}

void sli_amx_begin(const sli_amx_product *product)
{
    (void)product;
    assert(false);
}

void sli_amx_end(void)
{
}

void sli_amx_multiply(const sli_amx_product *product, int64_t first_row, int64_t rows, float *c,
                      int64_t ldc)
{
    (void)product, (void)first_row, (void)rows, (void)c, (void)ldc;
    assert(false);
}

void sli_amx_small_product(const sli_small_product *p)
{
    (void)p;
    assert(false);
}
#endif
