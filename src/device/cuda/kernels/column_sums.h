/* Sums over the rows of a matrix, for the gradients of biases and of norms.
 *
 * A block of threads has a strip of columns and a range of rows: thread x four columns, thread y
 * every STRIP_ROWS-th row. Its sums are added in shared memory and stored to `scratch`; a second
 * kernel adds those of all ranges. The shape alone decides the ranges, and all orders are fixed. */
#ifndef SLI_DEVICE_CUDA_KERNELS_COLUMN_SUMS_H
#define SLI_DEVICE_CUDA_KERNELS_COLUMN_SUMS_H

#include "device/cuda/kernels/four.h"

enum { STRIP_GROUPS = 32, STRIP_COLUMNS = 4 * STRIP_GROUPS, STRIP_ROWS = 8 };
constexpr int64_t RANGE_LEAST_ROWS = 4 * STRIP_ROWS, MOST_RANGES = 128;
enum { MOST_SUMS = 2 };

struct row_ranges {
    int64_t size, count;
};

static inline row_ranges row_ranges_of(int64_t rows)
{
    int64_t count = divide_up(rows, RANGE_LEAST_ROWS);
    count = count < MOST_RANGES ? count : MOST_RANGES;
    row_ranges ranges = {1, 0};
    if (rows > 0)
        ranges.size = divide_up(rows, count);
    ranges.count = divide_up(rows, ranges.size);
    return ranges;
}

static inline size_t column_sums_bytes(int64_t rows, int64_t columns, int sums)
{
    return (size_t)(row_ranges_of(rows).count * sums * columns) * sizeof(float);
}

/* Terms::add(shape, group, sums) adds a group's terms to the SUMS sums of its columns; it may
 * change the group in memory as well. scratch [ranges, SUMS, columns] may be NULL. */
template <class Terms>
static __global__ void sum_rows(matrix_shape shape, Terms terms, int64_t range_rows, float *scratch)
{
    typedef float row_sums[STRIP_ROWS][Terms::SUMS][STRIP_COLUMNS];
    SHARED(row_sums, of_row);
    int64_t strip = (int64_t)blockIdx.y * STRIP_COLUMNS, first = blockIdx.x * range_rows;
    int64_t end = first + range_rows < shape.rows ? first + range_rows : shape.rows;
    matrix_group g = {0, strip + 4 * threadIdx.x, 0};
    g.count = shape.columns - g.column;
    four sums[Terms::SUMS] = {};
    for (g.row = first + threadIdx.y; g.row < end && g.count > 0; g.row += STRIP_ROWS)
        terms.add(shape, g, sums);
    if (!scratch)
        return;
    for (int which = 0; which < Terms::SUMS; which++)
        for (int i = 0; i < 4; i++)
            of_row[threadIdx.y][which][4 * threadIdx.x + i] = sums[which].x[i];
    __syncthreads();
    int thread = (int)(threadIdx.y * STRIP_GROUPS + threadIdx.x);
    for (int at = thread; at < Terms::SUMS * STRIP_COLUMNS; at += STRIP_ROWS * STRIP_GROUPS) {
        int which = at / STRIP_COLUMNS, column = at % STRIP_COLUMNS;
        float sum = 0;
        for (int row = 0; row < STRIP_ROWS; row++)
            sum += of_row[row][which][column];
        if (strip + column < shape.columns)
            scratch[(blockIdx.x * Terms::SUMS + which) * shape.columns + strip + column] = sum;
    }
}

struct column_results {
    float *to[MOST_SUMS]; /* [columns] each */
    int sums;
    float beta;
};

/* A thread for each column; blockIdx.y is the sum. */
static __global__ void add_ranges(const float *scratch, int64_t ranges, int64_t columns,
                                  column_results results)
{
    int64_t column = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= columns)
        return;
    float *to = results.to[blockIdx.y] + column, sum = results.beta == 0 ? 0.0f : *to;
    for (int64_t range = 0; range < ranges; range++)
        sum += scratch[(range * results.sums + blockIdx.y) * columns + column];
    *to = sum;
}

/* Without results, only what Terms::add changes is computed. */
template <class Terms>
static cudaError_t launch_column_sums(cudaStream_t stream, const matrix_shape &shape,
                                      const Terms &terms, void *scratch,
                                      const column_results &results)
{
    row_ranges ranges = row_ranges_of(shape.rows);
    float *sums = results.to[0] ? (float *)scratch : NULL;
    if (ranges.count > 0) {
        dim3 blocks((unsigned)ranges.count, (unsigned)divide_up(shape.columns, STRIP_COLUMNS));
        cudaError_t error = launch(stream, blocks, dim3(STRIP_GROUPS, STRIP_ROWS), sum_rows<Terms>,
                                   shape, terms, ranges.size, sums);
        if (error != cudaSuccess)
            return error;
    }
    if (!results.to[0])
        return cudaSuccess;
    dim3 blocks((unsigned)divide_up(shape.columns, 256), (unsigned)results.sums);
    return launch(stream, blocks, dim3(256), add_ranges, (const float *)scratch, ranges.count,
                  shape.columns, results);
}

#endif
