/* Terms of norms: each block of threads reduces a range, whose size depends on the count alone, and
 * a last block reduces what they give. */
#include "device/cuda/kernels/four.h"
#include "device/cuda/kernels/reduce.h"

enum { TERM_THREADS = 256 };
constexpr int64_t MOST_TERMS = 1024, RANGE_LEAST = 16 * 4 * TERM_THREADS;

struct flat_ranges {
    int64_t size, count; /* sizes are multiples of four */
};

static flat_ranges flat_ranges_of(int64_t count)
{
    int64_t size = divide_up(count, MOST_TERMS);
    size = size > RANGE_LEAST ? divide_up(size, 4) * 4 : RANGE_LEAST;
    flat_ranges ranges = {size, divide_up(count, size)};
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

static __global__ void reduce_range(sli_norm_kind kind, int64_t count, const float *x,
                                    int64_t range_size, bool aligned, double *terms)
{
    int64_t first = blockIdx.x * range_size;
    int64_t end = first + range_size < count ? first + range_size : count;
    double term = 0;
    for (int64_t at = first + 4 * threadIdx.x; at < end; at += 4 * TERM_THREADS) {
        four f = load_four(x + at, end - at, aligned && end - at >= 4);
        for (int i = 0; i < 4; i++)
            term = with_element(kind, term, f.x[i]); /* what lies behind the end is 0 */
    }
    term = reduce_terms(kind, term);
    if (threadIdx.x == 0)
        terms[blockIdx.x] = term;
}

static __global__ void reduce_ranges(sli_norm_kind kind, int64_t count, const double *terms,
                                     double *out)
{
    double term = 0;
    for (int64_t at = threadIdx.x; at < count; at += TERM_THREADS)
        term = kind == SLI_NORM_INF ? largest::of(term, terms[at]) : term + terms[at];
    term = reduce_terms(kind, term);
    if (threadIdx.x == 0)
        *out = term;
}

size_t sli_scratch_norm_term(int64_t count)
{
    return (size_t)flat_ranges_of(count).count * sizeof(double);
}

cudaError_t sli_launch_norm_term(sli_norm_kind kind, int64_t count, const float *x, double *out,
                                 void *scratch, cudaStream_t stream)
{
    flat_ranges ranges = flat_ranges_of(count);
    double *terms = (double *)scratch;
    cudaError_t error =
        launch(stream, dim3((unsigned)ranges.count), dim3(TERM_THREADS), reduce_range, kind, count,
               x, ranges.size, are_aligned(0, 0, x), terms);
    if (error != cudaSuccess)
        return error;
    return launch(stream, dim3(1), dim3(TERM_THREADS), reduce_ranges, kind, ranges.count, terms,
                  out);
}
