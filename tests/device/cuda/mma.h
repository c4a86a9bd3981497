/* Tensor cores on the CPU: what the kernels use of the toolkit's header of this name. Lane l of a
 * warp has row l / 2 of a tile of sums, and of it columns 8 (l % 2) … + 7; of the two matrices, it
 * has what these sums need. Products are added in the order of the steps, in f32. The process ends
 * with a sentence for what the hardware refuses or leaves undefined: an address or a row distance
 * that is not aligned, a number that is not of TF32, and lanes that do not come together. */
#ifndef TESTS_DEVICE_CUDA_MMA_H
#define TESTS_DEVICE_CUDA_MMA_H

#include "core/bf16.h"

#include <cuda_runtime_api.h>
#include <type_traits>

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return __nv_bfloat16{sli_bf16_from_f32(x)};
}

/* ---- Of warp_products.h: every lane has the elements that the hardware gives it ---------- */

static inline unsigned two_rounded(float first, float second)
{
    return sli_bf16_from_f32(first) | (unsigned)sli_bf16_from_f32(second) << 16;
}

static inline float power_of_two(float x)
{
    return exp2f(x);
}

static inline float half_of(unsigned two, unsigned which)
{
    return sli_f32_from_bf16((uint16_t)(two >> 16 * which));
}

static inline unsigned two_elements(__nv_bfloat16 first, __nv_bfloat16 second)
{
    return first.bits | (unsigned)second.bits << 16;
}

static inline void check_row(const __nv_bfloat16 *row)
{
    if ((uintptr_t)row % 16)
        emulation::fail("a row of a matrix for a tensor core is not aligned");
}

static inline void load_matrices(unsigned *to, const __nv_bfloat16 *row)
{
    check_row(row);
    auto rows = emulation::exchange(0xFFFFFFFF, row);
    unsigned lane = emulation::lane_number(), column = lane % 4 * 2;
    for (unsigned i = 0; i < 4; i++) {
        const __nv_bfloat16 *at = rows.of(8 * i + lane / 4) + column;
        to[i] = two_elements(at[0], at[1]);
    }
}

static inline void load_transposed(unsigned *to, const __nv_bfloat16 *row)
{
    check_row(row);
    auto rows = emulation::exchange(0xFFFFFFFF, row);
    unsigned lane = emulation::lane_number(), column = lane % 4 * 2;
    for (unsigned i = 0; i < 4; i++)
        to[i] =
            two_elements(rows.of(8 * i + column)[lane / 4], rows.of(8 * i + column + 1)[lane / 4]);
}

struct elements_of_lane {
    unsigned two[4];
};

/* Products are added in the order of the columns of a. */
static inline void add_product(float *sums, const unsigned *a, const unsigned *b)
{
    unsigned lane = emulation::lane_number(), of_b[2][4][2];
    float of_a[2][16];
    auto given = emulation::exchange(0xFFFFFFFF, elements_of_lane{{a[0], a[1], a[2], a[3]}});
    for (unsigned row = 0; row < 2; row++)
        for (unsigned k = 0; k < 16; k++)
            of_a[row][k] = half_of(given.of(lane / 4 * 4 + k % 8 / 2).two[row + k / 8 * 2], k % 2);
    auto columns = emulation::exchange(0xFFFFFFFF, elements_of_lane{{b[0], b[1]}});
    for (unsigned column = 0; column < 2; column++)
        for (unsigned part = 0; part < 4; part++)
            for (unsigned half = 0; half < 2; half++)
                of_b[column][part][half] = columns.of((lane % 4 * 2 + column) * 4 + part).two[half];
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 16; k++)
            sums[i] += of_a[i / 2][k] * half_of(of_b[i % 2][k % 8 / 2][k / 8], k % 2);
}

static inline void begin_copy(__nv_bfloat16 *to, const __nv_bfloat16 *from, bool exists)
{
    emulation::begin_copy(to, exists ? from : NULL, 16);
}

static inline void begin_float_copy(float *to, const float *from, bool exists)
{
    emulation::begin_copy(to, exists ? from : NULL, sizeof *to);
}

static inline void wait_for_copies()
{
    emulation::wait_for_copies();
}

/* ---- The toolkit's ---------------------------------------------------------------------- */

namespace nvcuda
{
namespace wmma
{
enum layout_t { mem_row_major, mem_col_major };
struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
namespace precision
{
struct tf32;
}

enum { SIDE_OF_TILE = 16, LANE_COLUMNS = 8 };

/* A lane's elements: of a, a row; of b, [K, LANE_COLUMNS]; of the sums, LANE_COLUMNS. */
template <class Use, int M, int N, int K, class Element, class Layout = void> struct fragment {
    static_assert(M == SIDE_OF_TILE && N == SIDE_OF_TILE, "no other tile is emulated");
    float x[K * LANE_COLUMNS];
};

/* To nearest, ties away from 0, as cvt.rna does. */
static inline float __float_to_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (!isnan(x) && !isinf(x))
        bits = (bits + 0x1000) & 0xFFFFE000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float value_of(__nv_bfloat16 x)
{
    return sli_f32_from_bf16(x.bits);
}

static inline float value_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (bits & 0x1FFF && !isnan(x))
        emulation::fail("a tensor core takes a number that is not of TF32");
    return x;
}

template <class Stored> static inline void check_matrix(const Stored *at, unsigned ld)
{
    if ((uintptr_t)at % 32 != 0 || ld * sizeof(Stored) % 16 != 0)
        emulation::fail("a tile of a tensor core is not aligned");
}

static inline unsigned lane_row()
{
    return emulation::lane_number() / 2;
}

static inline unsigned lane_column()
{
    return emulation::lane_number() % 2 * LANE_COLUMNS;
}

static inline void meet_warp()
{
    emulation::exchange(0xFFFFFFFF, 0);
}

template <int K, class Element, class Stored>
static void load_matrix_sync(fragment<matrix_a, 16, 16, K, Element, row_major> &to,
                             const Stored *from, unsigned ld)
{
    check_matrix(from, ld);
    for (int k = 0; k < K; k++)
        to.x[k] = value_of(from[lane_row() * ld + k]);
}

template <int K, class Element, class Layout, class Stored>
static void load_matrix_sync(fragment<matrix_b, 16, 16, K, Element, Layout> &to, const Stored *from,
                             unsigned ld)
{
    constexpr bool by_rows = std::is_same<Layout, row_major>::value;
    check_matrix(from, ld);
    for (unsigned k = 0; k < K; k++)
        for (unsigned c = 0; c < LANE_COLUMNS; c++) {
            unsigned column = lane_column() + c;
            to.x[k * LANE_COLUMNS + c] =
                value_of(from[by_rows ? k * ld + column : column * ld + k]);
        }
}

template <int K> static void fill_fragment(fragment<accumulator, 16, 16, K, float> &to, float value)
{
    for (int c = 0; c < LANE_COLUMNS; c++)
        to.x[c] = value;
}

template <int K, class Element, class LayoutA, class LayoutB>
static void mma_sync(fragment<accumulator, 16, 16, K, float> &to,
                     const fragment<matrix_a, 16, 16, K, Element, LayoutA> &a,
                     const fragment<matrix_b, 16, 16, K, Element, LayoutB> &b,
                     const fragment<accumulator, 16, 16, K, float> &c)
{
    meet_warp();
    for (int column = 0; column < LANE_COLUMNS; column++) {
        float sum = c.x[column];
        for (int k = 0; k < K; k++)
            sum += a.x[k] * b.x[k * LANE_COLUMNS + column];
        to.x[column] = sum;
    }
}

template <int K>
static void store_matrix_sync(float *to, const fragment<accumulator, 16, 16, K, float> &from,
                              unsigned ld, layout_t layout)
{
    check_matrix(to, ld);
    if (layout != mem_row_major)
        emulation::fail("sums that are stored by columns are not emulated");
    meet_warp();
    for (int c = 0; c < LANE_COLUMNS; c++)
        to[lane_row() * ld + lane_column() + c] = from.x[c];
}
} // namespace wmma
} // namespace nvcuda

#endif
