/* What a warp does with tensor cores on bf16 elements, each lane with known elements, and copies
 * that go on while it computes.
 *
 * One product is sums [16, 8] += a [16, 16] b [16, 8], in f32. With r = lane / 4 and c = 2 (lane %
 * 4), a lane has
 *
 *   of a      [0]: row r, columns c, c + 1        [1]: row r + 8, columns c, c + 1
 *             [2]: row r, columns c + 8, c + 9    [3]: row r + 8, columns c + 8, c + 9
 *   of b      [0]: rows c, c + 1, column r        [1]: rows c + 8, c + 9, column r
 *   of sums   [0], [1]: row r, columns c, c + 1   [2], [3]: row r + 8, columns c, c + 1
 *
 * two elements of a and b in 32 bits. So the sums of two products side by side, rounded, are the a
 * of another product: probabilities need no memory on their way from q k^T to the product with v.
 * (PTX ISA: mma.m16n8k16, ldmatrix, cp.async.) */
#ifndef SLI_DEVICE_CUDA_KERNELS_WARP_PRODUCTS_H
#define SLI_DEVICE_CUDA_KERNELS_WARP_PRODUCTS_H

#include "device/cuda/kernels/launch.h"

#include <mma.h>

typedef __nv_bfloat16 bfloat;

/* What one product takes of rows, columns and depth; and bf16 elements of one copy. */
enum { PRODUCT_ROWS = 16, PRODUCT_COLUMNS = 8, PRODUCT_DEPTH = 16, COPIED = 8 };

#ifdef __CUDACC__ /* else the emulation has these (tests/device/cuda/mma.h) */

/* Four matrices of 8 x 8 elements: lane l has the address of row l % 8 of matrix l / 8, and gets
 * from matrix i, in to[i], its row l / 4, columns 2 (l % 4) and the next. */
static inline __device__ void load_matrices(unsigned *to, const bfloat *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

/* The same of transposed matrices: rows 2 (l % 4) and the next of column l / 4. */
static inline __device__ void load_transposed(unsigned *to, const bfloat *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
}

static inline __device__ void add_product(float *sums, const unsigned *a, const unsigned *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Begins a copy of COPIED elements to shared memory, or zeros where they do not exist; both
 * addresses are multiples of 16. It is done after wait_for_copies, for other threads after a
 * barrier as well. */
static inline __device__ void begin_copy(bfloat *to, const bfloat *from, bool exists)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}

/* The same of one float. */
static inline __device__ void begin_float_copy(float *to, const float *from, bool exists)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                     (unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(exists ? 4 : 0)
                 : "memory");
}

static inline __device__ void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* 2^x, or 0 where that is below the smallest normal number. */
static inline __device__ float power_of_two(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

/* Two elements, the first in the lower half. */
static inline __device__ unsigned two_rounded(float first, float second)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    return *(const unsigned *)&two;
}

#endif

/* ---- Tiles ------------------------------------------------------------------------------ */

/* Rows of WIDTH elements in shared memory. The gap puts the same columns of eight rows that follow
 * each other into different banks. */
template <int WIDTH> constexpr int SHARED_LD = WIDTH + COPIED;

/* `count` rows of a matrix in memory, of `width` elements, a multiple of COPIED, `ld` apart. */
struct matrix_rows {
    const bfloat *elements;
    int64_t ld;
    int count;
};

/* Begins to copy ROWS rows; what does not exist of them and of their WIDTH columns becomes 0. */
template <int WIDTH, int ROWS, int THREADS>
static inline __device__ void begin_tile(bfloat *to, const matrix_rows &from, int width)
{
#pragma unroll
    for (int i = 0; i < ROWS * WIDTH / COPIED / THREADS; i++) {
        int index = i * THREADS + (int)threadIdx.x;
        int row = index / (WIDTH / COPIED), column = index % (WIDTH / COPIED) * COPIED;
        bool exists = row < from.count && column < width;
        begin_copy(to + row * SHARED_LD<WIDTH> + column,
                   exists ? from.elements + row * from.ld + column : from.elements, exists);
    }
}

/* sums [16, COLUMNS] = the warp's 16 rows of a times COLUMNS rows of b. Loops have no condition
 * that a launch decides, so that loads of fragments go on while products run. */
template <int WIDTH, int COLUMNS>
static inline __device__ void multiply_rows(const bfloat *a, const bfloat *b, float (*sums)[4])
{
    constexpr int LD = SHARED_LD<WIDTH>;
    int lane = (int)threadIdx.x % 32;
    const bfloat *row_of_a = a + lane % 16 * LD + lane / 16 * 8;
    const bfloat *row_of_b = b + (lane % 8 + lane / 16 * 8) * LD + lane / 8 % 2 * 8;
#pragma unroll
    for (int column = 0; column < COLUMNS / PRODUCT_COLUMNS; column++)
        for (int i = 0; i < 4; i++)
            sums[column][i] = 0;
#pragma unroll
    for (int k = 0; k < WIDTH; k += PRODUCT_DEPTH) {
        unsigned of_a[4], of_b[4];
        load_matrices(of_a, row_of_a + k);
#pragma unroll
        for (int column = 0; column < COLUMNS; column += 16) {
            load_matrices(of_b, row_of_b + column * LD + k);
            add_product(sums[column / 8], of_a, of_b);
            add_product(sums[column / 8 + 1], of_a, of_b + 2);
        }
    }
}

/* results [16, WIDTH] += scores [16, ROWS], rounded, times ROWS rows of b. */
template <int WIDTH, int ROWS>
static inline __device__ void multiply_scores(const float (*scores)[4], const bfloat *b,
                                              float (*results)[4])
{
    constexpr int LD = SHARED_LD<WIDTH>;
    int lane = (int)threadIdx.x % 32;
    const bfloat *row_of_b = b + lane % 16 * LD + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < ROWS; k += PRODUCT_DEPTH) {
        const float(*two)[4] = scores + k / 8;
        unsigned of_b[4],
            of_a[4] = {two_rounded(two[0][0], two[0][1]), two_rounded(two[0][2], two[0][3]),
                       two_rounded(two[1][0], two[1][1]), two_rounded(two[1][2], two[1][3])};
#pragma unroll
        for (int column = 0; column < WIDTH; column += 16) {
            load_transposed(of_b, row_of_b + k * LD + column);
            add_product(results[column / 8], of_a, of_b);
            add_product(results[column / 8 + 1], of_a, of_b + 2);
        }
    }
}

#endif
