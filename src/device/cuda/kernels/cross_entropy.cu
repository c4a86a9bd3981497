/* Cross entropy of long rows of logits: a block of threads for each row.
 *
 * The row is walked over twice. In the first walk each thread keeps the largest logit that it has
 * seen and the sum of e^(x - largest); a larger one scales the sum. The second walk writes the
 * gradient, over the logits or rounded to another matrix. */
#include "device/cuda/kernels/four.h"
#include "device/cuda/kernels/reduce.h"

struct exponentials {
    float largest;
    double sum; /* of e^(x - largest) */
};

/* NaNs are passed over for `largest`, and make the sum NaN. As long as all logits are -infinity,
 * there is nothing to shift by. */
static inline __device__ void add_logits(exponentials *sums, four x, int64_t count)
{
    float largest = sums->largest;
    for (int i = 0; i < 4; i++)
        largest = i < count && x.x[i] > largest ? x.x[i] : largest;
    if (largest > sums->largest) {
        sums->sum *= (double)expf(sums->largest - largest);
        sums->largest = largest;
    }
    float shift = largest == -INFINITY ? 0.0f : largest;
    for (int i = 0; i < 4; i++)
        sums->sum += i < count ? (double)expf(x.x[i] - shift) : 0.0;
}

/* The same in all threads. Of a row that has only -infinity, the sum is NaN. */
static inline __device__ exponentials exponentials_of(const matrix_shape &shape, const float *x)
{
    exponentials mine = {-INFINITY, 0};
    for (int64_t column = 4 * threadIdx.x; column < shape.columns; column += 4 * blockDim.x) {
        int64_t count = shape.columns - column;
        add_logits(&mine, load_four(x + column, count, shape.whole && count >= 4), count);
    }
    float largest = reduce_block<maximizing>(mine.largest, (float)-INFINITY);
    double sum = mine.sum * (double)expf(mine.largest - largest);
    exponentials of_row = {largest, reduce_block<adding>(sum, 0.0)};
    return of_row;
}

static inline __device__ void write_gradient(const matrix_shape &shape, const sli_cross_entropy &a,
                                             const exponentials &of_row)
{
    float *x = a.logits + blockIdx.x * a.ld;
    uint16_t *rounded = a.rounded ? a.rounded + blockIdx.x * a.ld : NULL;
    int32_t target = a.targets[blockIdx.x];
    bool ignored = target == a.ignore;
    float scale = (float)(a.grad_scale / of_row.sum);
    for (int64_t column = 4 * threadIdx.x; column < a.classes; column += 4 * blockDim.x) {
        int64_t count = a.classes - column;
        bool whole = shape.whole && count >= 4;
        four f = load_four(x + column, count, whole);
        for (int i = 0; i < 4; i++) {
            float one = column + i == target ? a.grad_scale : 0.0f;
            f.x[i] = ignored ? 0.0f : scale * expf(f.x[i] - of_row.largest) - one;
        }
        if (rounded)
            store_four(rounded + column, f, count, whole);
        else
            store_four(x + column, f, count, whole);
    }
}

static __global__ void cross_entropy(matrix_shape shape, sli_cross_entropy a)
{
    int64_t row = blockIdx.x;
    const float *x = a.logits + row * a.ld;
    int32_t target = a.targets[row];
    bool ignored = target == a.ignore;
    float target_logit = ignored ? 0.0f : x[target]; /* before its gradient lies there */
    exponentials of_row = {0, 1};
    if (!ignored)
        of_row = exponentials_of(shape, x);
    if (threadIdx.x == 0)
        a.loss[row] = ignored ? 0 : log(of_row.sum) + of_row.largest - target_logit;
    if (a.grad_scale != 0)
        write_gradient(shape, a, of_row);
}

cudaError_t sli_launch_cross_entropy(const sli_cross_entropy *a, cudaStream_t stream)
{
    enum { MOST_THREADS = 512 };
    matrix_shape shape = {a->rows, a->classes, are_aligned(0, a->ld, a->logits, a->rounded)};
    return launch(stream, dim3((unsigned)a->rows), dim3(threads_of_row(a->classes, MOST_THREADS)),
                  cross_entropy, shape, *a);
}
