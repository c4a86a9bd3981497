/* Dropout masks as multipliers, 0 or 1 / (1 - p), in a buffer that follows the rows.
 *
 * Rows that are wanted whole lie one after the other in group numbers as long as they belong to
 * one sample, so the buffer is filled ahead over row ends and short rows waste nothing. */
#ifndef SLI_DEVICE_CPU_ISA_MASKS_H
#define SLI_DEVICE_CPU_ISA_MASKS_H

#include "device/cpu/isa/random.h"

enum { MASK_GROUPS = 256, MASK_COLUMNS = 4 * MASK_GROUPS }; /* a multiple of RUN_GROUPS */

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
        random_run(dropout->key, (uint32_t)(first_group + g), global, dropout->site, dropout->step,
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
