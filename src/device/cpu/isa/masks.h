/* Dropout masks as multipliers, 0 or 1 / (1 - p), in a buffer that follows the rows.
 *
 * Sixteen groups of four elements are drawn at once: counters that follow each other, one a lane.
 * Rows that are wanted whole lie one after the other in group numbers as long as they belong to
 * one sample, so the buffer is filled ahead over row ends and short rows waste nothing. */
#ifndef SLI_DEVICE_CPU_ISA_MASKS_H
#define SLI_DEVICE_CPU_ISA_MASKS_H

#include "device/cpu/isa/isa.h"

enum { MASK_GROUPS = 256, MASK_COLUMNS = 4 * MASK_GROUPS }; /* groups: a multiple of LANES */

typedef struct masks {
    const sli_dropout *dropout; /* NULL: nothing is dropped */
    uint32_t threshold;         /* bits from this on keep an element */
    float scale;
    int64_t row_groups; /* groups in a whole row */
    int64_t end_row;    /* fill ahead up to here, not included; 0: do not fill ahead */
    int64_t sample;     /* what the buffer holds: groups first_group … of this sample */
    int64_t first_group, groups;
    float values[MASK_COLUMNS];
} masks;

/* `columns` is the whole row's. Rows end_row - … are never asked for whole when end_row is 0. */
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

typedef struct philox_lanes {
    uint32_t c[4][LANES];
} philox_lanes;

/* One round in each lane. */
static inline void philox_round(philox_lanes *x, uint32_t k0, uint32_t k1)
{
    for (int l = 0; l < LANES; l++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * x->c[0][l];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * x->c[2][l];
        x->c[0][l] = (uint32_t)(product1 >> 32) ^ x->c[1][l] ^ k0;
        x->c[1][l] = (uint32_t)product1;
        x->c[2][l] = (uint32_t)(product0 >> 32) ^ x->c[3][l] ^ k1;
        x->c[3][l] = (uint32_t)product0;
    }
}

/* The words of groups first … first + LANES - 1: x->c[word][lane]. */
static inline void philox_run(philox_lanes *x, sli_philox_key key, uint32_t first, uint32_t c1,
                              uint32_t c2, uint32_t c3)
{
    for (int l = 0; l < LANES; l++) {
        x->c[0][l] = first + (uint32_t)l;
        x->c[1][l] = c1;
        x->c[2][l] = c2;
        x->c[3][l] = c3;
    }
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        philox_round(x, k0, k1);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

static inline void masks_fill(masks *m, int64_t sample, int64_t first_group, int64_t groups)
{
    const sli_dropout *dropout = m->dropout;
    m->sample = sample;
    m->first_group = first_group;
    m->groups = groups;
    uint32_t global = dropout->first_sample + (uint32_t)sample;
    for (int64_t g = 0; g < groups; g += LANES) {
        philox_lanes x;
        philox_run(&x, dropout->key, (uint32_t)(first_group + g), global, dropout->site,
                   dropout->step);
        float *to = m->values + 4 * g;
        for (int l = 0; l < LANES; l++)
            for (int word = 0; word < 4; word++)
                to[4 * l + word] = x.c[word][l] >= m->threshold ? m->scale : 0.0f;
    }
}

/* The multipliers of `columns` <= MASK_COLUMNS elements of a row from `column`, a multiple of 4.
 * They stay until the next call. */
static inline const float *masks_get(masks *m, int64_t row, int64_t column, int64_t columns)
{
    int64_t per_sample = m->dropout->rows_per_sample;
    int64_t sample = row / per_sample, position = row % per_sample;
    int64_t first = position * m->row_groups + column / 4;
    int64_t groups = (columns + 3) / 4;
    if (sample != m->sample || first < m->first_group ||
        first + groups > m->first_group + m->groups) {
        int64_t rows_left = m->end_row - row, in_sample = per_sample - position;
        rows_left = rows_left < in_sample ? rows_left : in_sample;
        int64_t ahead = rows_left > 0 ? (position + rows_left) * m->row_groups - first : groups;
        ahead = ahead < MASK_GROUPS ? ahead : MASK_GROUPS;
        masks_fill(m, sample, first, ahead > groups ? ahead : groups);
    }
    return m->values + 4 * (first - m->first_group);
}

#endif
