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

/* Rounds to nearest, ties to even; what is too large becomes infinity. NaN stays NaN. */
static inline uint16_t sli_f16_from_f32(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t sign = wide >> 16 & 0x8000u, size = wide & 0x7fffffffu, bits;
    if (size > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x47800000u) /* 2^16 */
        return (uint16_t)(sign | 0x7c00u);
    if (size < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, to which this addition rounds */
        float magnitude;
        memcpy(&magnitude, &size, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    bits = size + 0xfffu + (size >> 13 & 1u);
    return (uint16_t)(sign | ((bits >> 13) - (112u << 10)));
}

#endif
