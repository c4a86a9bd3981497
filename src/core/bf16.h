/* bf16: the upper half of an f32. */
#ifndef SLI_CORE_BF16_H
#define SLI_CORE_BF16_H

#include "core/inline.h"

#include <stdint.h>
#include <string.h>

SLI_INLINE float sli_f32_from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
SLI_INLINE uint16_t sli_bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* Rounds away from 0 with the probability that is the number's part of the way from one bf16 number
 * to the next, so that the mean over many roundings is the number: `random` is uniform below 2^16.
 * NaN stays NaN. */
SLI_INLINE uint16_t sli_bf16_at_random(float value, uint32_t random)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + random) >> 16, quiet = bits >> 16 | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline void sli_narrow_to_bf16(const float *from, uint16_t *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = sli_bf16_from_f32(from[i]);
}

static inline void sli_widen_bf16(const uint16_t *from, float *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = sli_f32_from_bf16(from[i]);
}

/* Rounds f32 values to the nearest bf16 numbers. */
static inline void sli_round_to_bf16(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = sli_f32_from_bf16(sli_bf16_from_f32(values[i]));
}

enum { SLI_BF16_BLOCK = 1024 }; /* elements that are converted in place at once */

/* Replaces f32 by bf16 in the first half of their memory. */
static inline void sli_narrow_in_place(float *values, int64_t count)
{
    uint16_t block[SLI_BF16_BLOCK];
    for (int64_t start = 0; start < count; start += SLI_BF16_BLOCK) {
        int64_t length = count - start;
        if (length > SLI_BF16_BLOCK)
            length = SLI_BF16_BLOCK;
        sli_narrow_to_bf16(values + start, block, length);
        memcpy((char *)values + (size_t)start * sizeof *block, block,
               (size_t)length * sizeof *block);
    }
}

/* The reverse: from the last block to the first, none overwrites one that is still to be read. */
static inline void sli_widen_in_place(float *values, int64_t count)
{
    uint16_t block[SLI_BF16_BLOCK];
    for (int64_t end = count; end > 0; end = (end - 1) / SLI_BF16_BLOCK * SLI_BF16_BLOCK) {
        int64_t start = (end - 1) / SLI_BF16_BLOCK * SLI_BF16_BLOCK;
        memcpy(block, (const char *)values + (size_t)start * sizeof *block,
               (size_t)(end - start) * sizeof *block);
        sli_widen_bf16(block, values + start, end - start);
    }
}

#endif
