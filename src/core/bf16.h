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

#endif
