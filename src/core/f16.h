/* f16 of IEEE 754: a sign, 5 bits of exponent, 10 of fraction. */
#ifndef SLI_CORE_F16_H
#define SLI_CORE_F16_H

#include <stdint.h>
#include <string.h>

/* Exactly: each f16 is an f32. NaN stays NaN. */
static inline float sli_f32_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, size = bits & 0x7fffu;
    uint32_t wide;
    float value;
    if (size < 0x400u) { /* a multiple of 2^-24: the exponent is the lowest */
        value = (float)size * 0x1p-24f;
        memcpy(&wide, &value, sizeof wide);
    } else { /* exponents begin at 2^-15, in f32 at 2^-127; the highest is infinity's and NaN's */
        wide = (size << 13) + (size < 0x7c00u ? 112u << 23 : 224u << 23);
    }
    wide |= sign;
    memcpy(&value, &wide, sizeof value);
    return value;
}

#endif
