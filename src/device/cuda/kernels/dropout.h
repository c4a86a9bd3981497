/* Dropout masks: the same bits as every other device's (device.h, core/philox.h). */
#ifndef SLI_DEVICE_CUDA_KERNELS_DROPOUT_H
#define SLI_DEVICE_CUDA_KERNELS_DROPOUT_H

#include "core/philox.h"
#include "device/cuda/kernels/four.h"

#include <math.h>

struct dropout_masks {
    sli_dropout dropout;
    bool drops;
    uint32_t threshold; /* bits from this on keep an element */
    float scale;
    int64_t row_groups;
};

/* The masks of rows of `columns` elements. */
static inline dropout_masks masks_of(const sli_dropout *dropout, int64_t columns)
{
    /* (bits >> 8) * 2^-24 >= p, in integers; p * 2^24 is exact. At p = 1 nothing is kept. */
    float limit = ceilf(dropout->p * 16777216.0f);
    dropout_masks m = {};
    m.dropout = *dropout;
    m.drops = dropout->p > 0;
    m.threshold = limit < 16777216.0f ? (uint32_t)limit << 8 : UINT32_MAX;
    m.scale = dropout->p < 1 ? 1.0f / (1.0f - dropout->p) : 0.0f;
    m.row_groups = divide_up(columns, 4);
    return m;
}

/* a / b for a >= 0 and b > 0: a division in 64 bits takes several times as long as in 32. */
static inline __device__ int64_t divide(int64_t a, int64_t b)
{
    return (a | b) >> 32 == 0 ? (int64_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/* Whether the four elements of a group are kept: bits 0 to 3. */
static inline __device__ unsigned kept_of_group(const dropout_masks &m, uint32_t sample,
                                                uint64_t group)
{
    uint32_t words[4] = {(uint32_t)group, m.dropout.first_sample + sample,
                         sli_site_of_group(m.dropout.site, group), m.dropout.step};
    unsigned kept = 0;
    sli_philox(m.dropout.key, words);
    for (int i = 0; i < 4; i++)
        kept |= (unsigned)(words[i] >= m.threshold) << i;
    return kept;
}

/* The multipliers, 0 or 1 / (1 - p), of the four elements from `column`, a multiple of 4. */
static inline __device__ four mask_of(const dropout_masks &m, int64_t row, int64_t column)
{
    four mask = {{1, 1, 1, 1}};
    if (!m.drops)
        return mask;
    int64_t sample = divide(row, m.dropout.rows_per_sample);
    int64_t position = row - sample * m.dropout.rows_per_sample;
    position += m.dropout.first_row;
    unsigned kept =
        kept_of_group(m, (uint32_t)sample, (uint64_t)(position * m.row_groups + column / 4));
    for (int i = 0; i < 4; i++)
        mask.x[i] = kept >> i & 1 ? m.scale : 0.0f;
    return mask;
}

#endif
