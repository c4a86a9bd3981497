/* Terms of gradient norms. */
#include "device/cpu/isa/kernel_names.h"

static double sum_of_doubles(const double *lanes)
{
    double sum = 0;
    for (int l = 0; l < LANES; l++)
        sum += lanes[l];
    return sum;
}

static double sum_of_squares(int64_t count, const float *x)
{
    double lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += (double)x[i + l] * x[i + l];
    double sum = sum_of_doubles(lanes);
    for (int64_t i = whole; i < count; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static double sum_of_magnitudes(int64_t count, const float *x)
{
    double lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += (double)fabsf(x[i + l]);
    double sum = sum_of_doubles(lanes);
    for (int64_t i = whole; i < count; i++)
        sum += (double)fabsf(x[i]);
    return sum;
}

/* Without their sign, floats are in order as integers are, and every NaN is above infinity. */
static double largest_magnitude(int64_t count, const float *x)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = bits_of_float(x[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return (double)float_of_bits(largest);
}

double SLI_OF_ISA(sli_norm_term)(sli_norm_kind kind, int64_t count, const float *x)
{
    switch (kind) {
    case SLI_NORM_L1:
        return sum_of_magnitudes(count, x);
    case SLI_NORM_L2:
        return sum_of_squares(count, x);
    case SLI_NORM_INF:
        return largest_magnitude(count, x);
    }
    return NAN;
}
