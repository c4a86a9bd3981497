/* Terms of norms, of many arrays at once: each block of threads reduces a range of one array, whose
 * size depends on the array's count alone; then a block for each array reduces what they give. */
#include "device/cuda/kernels/four.h"
#include "device/cuda/kernels/reduce.h"

#include <string.h>

enum { TERM_THREADS = 256, MOST_ARRAYS = 128 };
constexpr int64_t MOST_RANGES = 1024, RANGE_LEAST = 16 * 4 * TERM_THREADS;

/* A kernel's arguments have room for these. */
struct array_batch {
    sli_norm_array of[MOST_ARRAYS];
};

struct flat_ranges {
    int64_t size, count; /* sizes are multiples of four */
};

static inline __host__ __device__ flat_ranges ranges_of(int64_t count)
{
    int64_t size = (count + MOST_RANGES - 1) / MOST_RANGES;
    size = size > RANGE_LEAST ? (size + 3) / 4 * 4 : RANGE_LEAST;
    flat_ranges ranges = {size, (count + size - 1) / size};
    return ranges;
}

/* NaN wins, and stays. */
struct largest {
    static __device__ double of(double a, double b)
    {
        return b <= a || a != a ? a : b;
    }
};

static inline __device__ double with_element(sli_norm_kind kind, double term, float x)
{
    double size = fabs((double)x);
    if (kind == SLI_NORM_INF)
        return largest::of(term, size);
    return term + (kind == SLI_NORM_L2 ? size * size : size);
}

static inline __device__ double reduce_terms(sli_norm_kind kind, double term)
{
    return kind == SLI_NORM_INF ? reduce_block<largest>(term, 0.0)
                                : reduce_block<adding>(term, 0.0);
}

/* blockIdx.x is the range, blockIdx.y the array; terms are [arrays, most]. */
static __global__ void reduce_range(sli_norm_kind kind, array_batch arrays, int64_t most,
                                    double *terms)
{
    const sli_norm_array array = arrays.of[blockIdx.y];
    flat_ranges ranges = ranges_of(array.count);
    if (blockIdx.x >= ranges.count)
        return;
    bool aligned = (uintptr_t)array.x % sizeof(float4) == 0;
    int64_t first = blockIdx.x * ranges.size, end = first + ranges.size;
    end = end < array.count ? end : array.count;
    double term = 0;
    for (int64_t at = first + 4 * threadIdx.x; at < end; at += 4 * TERM_THREADS) {
        four f = load_four(array.x + at, end - at, aligned && end - at >= 4);
        for (int i = 0; i < 4; i++)
            term = with_element(kind, term, f.x[i]); /* what lies behind the end is 0 */
    }
    term = reduce_terms(kind, term);
    if (threadIdx.x == 0)
        terms[blockIdx.y * most + blockIdx.x] = term;
}

static __global__ void reduce_ranges(sli_norm_kind kind, array_batch arrays, int64_t most,
                                     const double *terms, double *out)
{
    int64_t count = ranges_of(arrays.of[blockIdx.x].count).count;
    double term = 0;
    for (int64_t at = threadIdx.x; at < count; at += TERM_THREADS) {
        double other = terms[blockIdx.x * most + at];
        term = kind == SLI_NORM_INF ? largest::of(term, other) : term + other;
    }
    term = reduce_terms(kind, term);
    if (threadIdx.x == 0)
        out[blockIdx.x] = term;
}

/* The most ranges that an array has. */
static int64_t most_ranges(const sli_norm_terms *a)
{
    int64_t most = 1;
    for (int i = 0; i < a->count; i++) {
        int64_t count = ranges_of(a->arrays[i].count).count;
        most = count > most ? count : most;
    }
    return most;
}

size_t sli_scratch_norm_terms(const sli_norm_terms *a)
{
    int together = a->count < MOST_ARRAYS ? a->count : (int)MOST_ARRAYS;
    return (size_t)(together * most_ranges(a)) * sizeof(double);
}

/* The batches follow each other on the stream, so that all use the same scratch memory. */
cudaError_t sli_launch_norm_terms(const sli_norm_terms *a, void *scratch, cudaStream_t stream)
{
    int64_t most = most_ranges(a);
    double *terms = (double *)scratch;
    const double *given = terms;
    cudaError_t error = cudaSuccess;
    for (int first = 0; first < a->count && error == cudaSuccess; first += MOST_ARRAYS) {
        int count = a->count - first < MOST_ARRAYS ? a->count - first : (int)MOST_ARRAYS;
        array_batch batch = {};
        memcpy(batch.of, a->arrays + first, (size_t)count * sizeof *batch.of);
        error = launch(stream, dim3((unsigned)most, (unsigned)count), dim3(TERM_THREADS),
                       reduce_range, a->kind, batch, most, terms);
        if (error == cudaSuccess)
            error = launch(stream, dim3((unsigned)count), dim3(TERM_THREADS), reduce_ranges,
                           a->kind, batch, most, given, a->out + first);
    }
    return error;
}
