/* What all kernels of one instruction set use: names, lanes, and functions of a number that
 * compilers can put into vector loops.
 *
 * Everything here and in the .c files of this folder is compiled once for each instruction set.
 * Sums are kept in LANES lanes, which become a few vectors, and added in a fixed order at the end:
 * a result is the same whatever the vector width, up to the rounding of fused multiply-adds. */
#ifndef SLI_DEVICE_CPU_ISA_ISA_H
#define SLI_DEVICE_CPU_ISA_ISA_H

#include "device/cpu/kernels.h"
#include "device/cpu/ranges.h"

#include <math.h>
#include <string.h>

#define SLI_JOIN_(a, b) a##_##b
#define SLI_JOIN(a, b)  SLI_JOIN_(a, b)
/* sli_add_rows -> sli_add_rows_avx2: an external name of this instruction set. */
#define SLI_OF_ISA(name) SLI_JOIN(name, SLI_ISA)

enum { LANES = 32 };

#if defined(__AVX512F__)
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
enum { WIDTH = VECTOR_BYTES / sizeof(float) };

/* Loaded from and stored to any float's address. */
typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t int_vector __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));

/* Before a loop whose pointers are either equal or do not overlap: element i of the result depends
 * only on element i of the sources. Without it, compilers fall back to one element at a time where
 * a kernel runs in place. */
#if defined(__clang__)
#define SLI_ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define SLI_ELEMENTWISE _Pragma("GCC ivdep")
#endif

/* Vector by vector: compilers make a short memcpy of unknown length a string instruction, which
 * takes several times as long. */
static inline void copy_floats(int64_t count, float *to, const float *from)
{
    int64_t whole = count - count % WIDTH;
    for (int64_t i = 0; i < whole; i += WIDTH) {
        vector values = *(const vector *)(from + i);
        __asm__("" : "+X"(values)); /* else the loop becomes a memcpy */
        *(vector *)(to + i) = values;
    }
    for (int64_t i = whole; i < count; i++)
        to[i] = from[i];
}

/* Asks for 32 floats of memory that will soon be written. A store must otherwise wait until its
 * line has come, and a kernel that stores a row at once fills the processor's queue of them. */
static inline void expect_writes(const float *to)
{
    __builtin_prefetch(to, 1);
    __builtin_prefetch(to + 16, 1);
}

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* e^x for x <= 88, within 1 unit in the last place or so; 0 where it would be subnormal, NaN for
 * NaN. Kernels need it for what is about 0 at most.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2. The polynomial is a minimax fit of (e^r - 1 - r) / r^2 (the
 * relative error of e^r is 3e-9). Adding `to_integer` rounds n and leaves n + 127, the exponent of
 * 2^n, in the lowest bits of the sum, from where one shift moves it into the exponent. */
static inline float exp_f32(float x)
{
    const float log2_e = 0x1.715476p0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const float to_integer = 0x1.8p23f + 127.0f, smallest = -87.3f;
    float shifted = x * log2_e + to_integer;
    float n = shifted - to_integer;
    float r = (x - n * ln2_high) - n * ln2_low;
    float p = 0x1.6a2156p-10f;
    p = p * r + 0x1.123b9cp-7f;
    p = p * r + 0x1.5558fcp-5f;
    p = p * r + 0x1.55549p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    float power = float_of_bits(bits_of_float(shifted) << 23);
    return x < smallest ? 0.0f : p * power;
}

/* 1 / (1 + e^-x). */
static inline float logistic_f32(float x)
{
    float tail = exp_f32(-fabsf(x)), upper = 1.0f / (1.0f + tail);
    return x < 0 ? tail * upper : upper;
}

/* The normal distribution's density at x, and its integral up to x. The upper tail is the density
 * times a function that a polynomial in u = 1 / (1 + 0.3 |x|) fits to 4e-9. */
static inline void normal_f32(float x, float *density, float *integral)
{
    float a = fabsf(x);
    float gauss = exp_f32(-0.5f * a * a);
    float u = 1.0f / (1.0f + 0.3f * a);
    float p = -0.020628738753095635f;
    p = p * u + 0.11246521523711293f;
    p = p * u - 0.2282857821193144f;
    p = p * u + 0.19188461769101015f;
    p = p * u - 0.07951026719662584f;
    p = p * u + 0.09620551579998585f;
    p = p * u + 0.07837201757870155f;
    p = p * u + 0.1102393908525212f;
    p = p * u + 0.11957131223401299f;
    p = p * u + 0.1196867169428465f;
    float tail = gauss * (p * u);
    *density = 0.3989422804014327f * gauss;
    *integral = x < 0 ? tail : 1.0f - tail;
}

static inline void fold_lanes(float *lanes, int width)
{
    for (int l = 0; l < width; l++)
        lanes[l] += lanes[l + width];
}

/* Lanes added in pairs: always the same order. */
static inline float sum_of_lanes(const float *lanes)
{
    float sum[LANES];
    memcpy(sum, lanes, sizeof sum);
    fold_lanes(sum, 16); /* spelled out: known widths become vectors */
    fold_lanes(sum, 8);
    fold_lanes(sum, 4);
    fold_lanes(sum, 2);
    return sum[0] + sum[1];
}

static inline float sum_f32(int64_t count, const float *x)
{
    float lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += x[i + l];
    float sum = sum_of_lanes(lanes);
    for (int64_t i = whole; i < count; i++)
        sum += x[i];
    return sum;
}

/* The largest of `start` and x; NaNs are passed over. */
static inline float max_f32(int64_t count, const float *x, float start)
{
    float lanes[LANES];
    for (int l = 0; l < LANES; l++)
        lanes[l] = start;
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    float max = start;
    for (int l = 0; l < LANES; l++)
        max = lanes[l] > max ? lanes[l] : max;
    for (int64_t i = whole; i < count; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* ---- The kernels: kernel_table.c puts them into that of their instruction set ---------- */

void SLI_OF_ISA(sli_epilogue)(const sli_gemm *gemm, const float *from, int64_t ld,
                              int64_t first_row, int64_t rows, int64_t first_column,
                              int64_t columns);
void SLI_OF_ISA(sli_epilogue_backward)(const sli_epilogue_backward *arguments, int64_t first_row,
                                       int64_t rows, float *sums);
void SLI_OF_ISA(sli_embedding)(const sli_embedding *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_embedding_backward)(const sli_embedding_backward *arguments,
                                        int64_t first_column, int64_t columns);
void SLI_OF_ISA(sli_add_dropout)(const sli_add_dropout *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_add_norm)(const sli_add_norm *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_add_norm_backward)(const sli_add_norm_backward *arguments, int64_t first_row,
                                       int64_t rows, float *weight_sums, float *bias_sums);
void SLI_OF_ISA(sli_swiglu)(const sli_swiglu *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_swiglu_backward)(const sli_swiglu_backward *arguments, int64_t first_row,
                                     int64_t rows);
void SLI_OF_ISA(sli_rotary)(const sli_rotary *arguments, int64_t first_row, int64_t rows);
void SLI_OF_ISA(sli_softmax)(const sli_score_block *block, float *scores);
void SLI_OF_ISA(sli_softmax_backward)(const sli_score_block *block, float *scores, float *grads,
                                      const float *out_dot_grad);
void SLI_OF_ISA(sli_row_products)(int64_t rows, int64_t width, int64_t ld, const float *a,
                                  const float *b, float *inner);
void SLI_OF_ISA(sli_softmax_tile)(const sli_score_tile *tile, float *scores, float *largest,
                                  float *sums, float *corrections);
void SLI_OF_ISA(sli_softmax_tile_backward)(const sli_score_tile *tile, float *scores, float *grads,
                                           const float *log_sum_exp, const float *out_dot_grad);
void SLI_OF_ISA(sli_multipliers)(const sli_dropout *dropout, int64_t row_columns, int64_t first_row,
                                 int64_t rows, int64_t first_column, int64_t columns, float *to);
void SLI_OF_ISA(sli_scale_rows)(int64_t rows, int64_t width, float *x, const float *factors);
void SLI_OF_ISA(sli_small_product)(const sli_small_product *p);
void SLI_OF_ISA(sli_transpose)(int64_t rows, int64_t columns, const float *from, int64_t ld,
                               float *to);
void SLI_OF_ISA(sli_cross_entropy)(const sli_cross_entropy *arguments, int64_t first_row,
                                   int64_t rows, float *sums);
void SLI_OF_ISA(sli_convert)(const sli_convert *arguments, int64_t first, int64_t count);
void SLI_OF_ISA(sli_add)(int64_t count, float *to, const float *from);
void SLI_OF_ISA(sli_sgd)(const sli_sgd *arguments, int64_t first, int64_t count);
void SLI_OF_ISA(sli_adamw)(const sli_adamw *arguments, int64_t first, int64_t count);
double SLI_OF_ISA(sli_norm_term)(sli_norm_kind kind, int64_t count, const float *x);
void SLI_OF_ISA(sli_initialize)(const sli_init *init, sli_philox_key key, uint32_t site,
                                int64_t first, int64_t count, float *to);

#endif
