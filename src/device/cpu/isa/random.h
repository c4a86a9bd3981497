/* Random numbers and dropout masks: Philox-4x32-10 (core/philox.h) on sixteen counters that follow
 * each other.
 *
 * Each counter takes one 64-bit lane for each of its words, of which only the lower half counts:
 * then a product is one instruction, its upper half one shift away, and nothing is rearranged
 * between rounds. Compilers do not find that instruction in a plain loop, hence the vectors. */
#ifndef SLI_DEVICE_CPU_ISA_RANDOM_H
#define SLI_DEVICE_CPU_ISA_RANDOM_H

#include "device/cpu/isa/isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RUN_GROUPS = 16, RUN_WORDS = 4 * RUN_GROUPS };

#if defined(__AVX512F__)
typedef uint64_t word_lanes __attribute__((vector_size(64)));
static inline word_lanes multiply_lower(word_lanes a, word_lanes b)
{
    return (word_lanes)_mm512_mul_epu32((__m512i)a, (__m512i)b);
}
#elif defined(__AVX2__)
typedef uint64_t word_lanes __attribute__((vector_size(32)));
static inline word_lanes multiply_lower(word_lanes a, word_lanes b)
{
    return (word_lanes)_mm256_mul_epu32((__m256i)a, (__m256i)b);
}
#elif defined(__SSE2__)
typedef uint64_t word_lanes __attribute__((vector_size(16)));
static inline word_lanes multiply_lower(word_lanes a, word_lanes b)
{
    return (word_lanes)_mm_mul_epu32((__m128i)a, (__m128i)b);
}
#else
typedef uint64_t word_lanes __attribute__((vector_size(16)));
static inline word_lanes multiply_lower(word_lanes a, word_lanes b)
{
    return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
}
#endif

enum { WORD_LANES = sizeof(word_lanes) / sizeof(uint64_t) };

typedef struct counters {
    word_lanes c[4]; /* the upper halves of the lanes are arbitrary */
} counters;

static inline word_lanes same_in_all(uint64_t value)
{
    return (word_lanes){0} + value;
}

static inline counters philox_round(counters x, uint32_t k0, uint32_t k1)
{
    word_lanes product0 = multiply_lower(x.c[0], same_in_all(0xD2511F53u));
    word_lanes product1 = multiply_lower(x.c[2], same_in_all(0xCD9E8D57u));
    counters next = {{(product1 >> 32) ^ x.c[1] ^ same_in_all(k0), product1,
                      (product0 >> 32) ^ x.c[3] ^ same_in_all(k1), product0}};
    return next;
}

/* The ten rounds on two vectors, which fill the processor and fit into its registers. Word 0 and 1
 * of each counter go to words01, word 2 and 3 to words23. */
static inline void random_pair(sli_philox_key key, counters a, counters b, uint64_t *words01,
                               uint64_t *words23)
{
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        a = philox_round(a, k0, k1);
        b = philox_round(b, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word_lanes out01[2] = {(a.c[0] & 0xFFFFFFFFu) | a.c[1] << 32,
                           (b.c[0] & 0xFFFFFFFFu) | b.c[1] << 32};
    word_lanes out23[2] = {(a.c[2] & 0xFFFFFFFFu) | a.c[3] << 32,
                           (b.c[2] & 0xFFFFFFFFu) | b.c[3] << 32};
    memcpy(words01, out01, sizeof out01);
    memcpy(words23, out23, sizeof out23);
}

/* The words of groups first … first + RUN_GROUPS - 1, whose other counters are c1, the site and c3,
 * in their order: words[4 * group + word]. */
static inline void random_run(sli_philox_key key, uint64_t first, uint32_t c1, uint32_t site,
                              uint32_t c3, uint32_t words[RUN_WORDS])
{
    static const uint64_t steps[RUN_GROUPS] = {0, 1, 2,  3,  4,  5,  6,  7,
                                               8, 9, 10, 11, 12, 13, 14, 15};
    uint64_t words01[RUN_GROUPS], words23[RUN_GROUPS], ordered[2 * RUN_GROUPS];
    for (int g = 0; g < RUN_GROUPS; g += 2 * WORD_LANES) {
        word_lanes numbers[2];
        memcpy(numbers, steps + g, sizeof numbers);
        word_lanes group_a = numbers[0] + first, group_b = numbers[1] + first;
        /* sli_site_of_group */
        counters a = {
            {group_a, same_in_all(c1), (group_a >> 32 << SLI_SITE_BITS) + site, same_in_all(c3)}};
        counters b = {{group_b, a.c[1], (group_b >> 32 << SLI_SITE_BITS) + site, a.c[3]}};
        random_pair(key, a, b, words01 + g, words23 + g);
    }
    for (int g = 0; g < RUN_GROUPS; g++) {
        ordered[2 * g] = words01[g];
        ordered[2 * g + 1] = words23[g];
    }
    memcpy(words, ordered, sizeof ordered);
}

/* ---- Masks ------------------------------------------------------------------------------ */

/* Dropout masks as multipliers, 0 or 1 / (1 - p), in a buffer that follows the rows.
 *
 * Whole rows of one sample have consecutive group numbers, so the buffer is filled ahead over row
 * ends and short rows waste nothing. */
enum { MASK_GROUPS = 256, MASK_COLUMNS = 4 * MASK_GROUPS }; /* a multiple of RUN_GROUPS */

typedef struct masks {
    const sli_dropout *dropout; /* NULL: nothing is dropped */
    uint32_t threshold;         /* bits from this on keep an element */
    float scale;
    int64_t row_groups; /* groups in a whole row */
    int64_t end_row;    /* fill ahead up to here, not included; 0: do not fill ahead */
    int64_t sample;     /* the buffer has groups first_group … of this sample */
    int64_t first_group, groups;
    float values[MASK_COLUMNS];
} masks;

/* `columns` is the whole row's; end_row is 0 where rows are not asked for whole. */
static inline void masks_begin(masks *m, const sli_dropout *dropout, int64_t columns,
                               int64_t end_row)
{
    m->dropout = dropout->p > 0 ? dropout : NULL;
    if (!m->dropout)
        return;
    /* (bits >> 8) * 2^-24 >= p, in integers; p * 2^24 is exact. At p = 1 nothing is kept. */
    float limit = ceilf(dropout->p * 0x1p24f);
    m->threshold = limit < 0x1p24f ? (uint32_t)limit << 8 : UINT32_MAX;
    m->scale = dropout->p < 1 ? 1.0f / (1.0f - dropout->p) : 0.0f;
    m->row_groups = (columns + 3) / 4;
    m->end_row = end_row;
    m->sample = -1;
    m->first_group = m->groups = 0;
}

static inline void masks_fill(masks *m, int64_t sample, int64_t first_group, int64_t groups)
{
    const sli_dropout *dropout = m->dropout;
    m->sample = sample;
    m->first_group = first_group;
    m->groups = groups;
    uint32_t threshold = m->threshold;
    float scale = m->scale;
    uint32_t global = dropout->first_sample + (uint32_t)sample;
    for (int64_t g = 0; g < groups; g += RUN_GROUPS) {
        uint32_t words[RUN_WORDS];
        random_run(dropout->key, (uint64_t)(first_group + g), global, dropout->site, dropout->step,
                   words);
        float *to = m->values + 4 * g;
        for (int i = 0; i < RUN_WORDS; i++)
            to[i] = words[i] >= threshold ? scale : 0.0f;
    }
}

/* The multipliers of `columns` <= MASK_COLUMNS elements of a row from `column`, a multiple of 4.
 * They stay until the next call. */
static inline const float *masks_get(masks *m, int64_t row, int64_t column, int64_t columns)
{
    int64_t per_sample = m->dropout->rows_per_sample;
    int64_t sample = row / per_sample, position = m->dropout->first_row + row % per_sample;
    int64_t first = position * m->row_groups + column / 4;
    int64_t groups = (columns + 3) / 4;
    if (sample != m->sample || first < m->first_group ||
        first + groups > m->first_group + m->groups) {
        int64_t rows_left = m->end_row - row, in_sample = per_sample - row % per_sample;
        rows_left = rows_left < in_sample ? rows_left : in_sample;
        int64_t ahead = rows_left > 0 ? (position + rows_left) * m->row_groups - first : groups;
        ahead = ahead < MASK_GROUPS ? ahead : MASK_GROUPS;
        masks_fill(m, sample, first, ahead > groups ? ahead : groups);
    }
    return m->values + 4 * (first - m->first_group);
}

#endif
