/* Kernels whose barriers are missing or wrong: the emulation must tell. */
#include "device/cuda/emulated.h"

#include "device/cuda/kernels/dropout.h"
#include "device/cuda/kernels/launch.h"

enum { THREADS = 96 };
typedef float thread_row[THREADS];

/* out = the numbers 0 … THREADS - 1 in reverse, through shared memory. */
static __global__ void reverse(bool with_barrier, float *out)
{
    SHARED(thread_row, values);
    values[threadIdx.x] = (float)threadIdx.x;
    if (with_barrier)
        __syncthreads();
    out[threadIdx.x] = values[THREADS - 1 - threadIdx.x];
}

/* Adds three rounds of it. Each round must wait until the one before has been read. */
static __global__ void reverse_in_rounds(bool with_barrier, float *out)
{
    SHARED(thread_row, values);
    float sum = 0;
    for (int round = 0; round < 3; round++) {
        values[threadIdx.x] = (float)(threadIdx.x << round);
        __syncthreads();
        sum += values[THREADS - 1 - threadIdx.x];
        if (with_barrier)
            __syncthreads();
    }
    out[threadIdx.x] = sum;
}

static bool is_reversed(const float *out, float scale)
{
    for (int i = 0; i < THREADS; i++)
        if (out[i] != scale * (float)(THREADS - 1 - i))
            return false;
    return true;
}

bool race_before_reading(bool with_barrier)
{
    float out[THREADS];
    launch(NULL, dim3(1), dim3(THREADS), reverse, with_barrier, out);
    return !is_reversed(out, 1);
}

bool race_before_writing(bool with_barrier)
{
    float out[THREADS];
    launch(NULL, dim3(1), dim3(THREADS), reverse_in_rounds, with_barrier, out);
    return !is_reversed(out, 7);
}

/* Of a template, as the kernels are. */
template <class Number> static __global__ void read_before_writing(Number *out)
{
    typedef Number numbers[THREADS];
    SHARED(numbers, values);
    out[blockIdx.x * THREADS + threadIdx.x] = values[threadIdx.x];
    values[threadIdx.x] = 1;
}

bool shared_memory_begins_as_nan(void)
{
    float out[3 * THREADS];
    launch(NULL, dim3(3), dim3(THREADS), read_before_writing<float>, (float *)out);
    for (int i = 0; i < 3 * THREADS; i++)
        if (!isnan(out[i]))
            return false;
    return true;
}

/* Half of the first warp waits for the warp, the other half for the block. */
static __global__ void wait_apart(float *out)
{
    if (threadIdx.x < 16)
        out[threadIdx.x] = __shfl_xor_sync(0xFFFFFFFF, 1.0f, 1);
    __syncthreads();
}

static __global__ void end_early(float *out)
{
    out[threadIdx.x] = 0;
    if (threadIdx.x < 32)
        __syncthreads();
}

void deadlock(bool by_warp)
{
    float out[THREADS];
    launch(NULL, dim3(1), dim3(THREADS), by_warp ? wait_apart : end_early, out);
}

void emulated_mask(const sli_dropout *dropout, int64_t columns, int64_t row, int64_t column,
                   float mask[4])
{
    four of_row = mask_of(masks_of(dropout, columns), row, column);
    for (int i = 0; i < 4; i++)
        mask[i] = of_row.x[i];
}

/* Threads run one at a time. */
static __global__ void record_order(unsigned *count, unsigned *out)
{
    out[(*count)++] = blockIdx.x * THREADS + threadIdx.x;
}

void record_threads(unsigned *out)
{
    unsigned count = 0;
    launch(NULL, dim3(RECORDED_THREADS / THREADS), dim3(THREADS), record_order, &count, out);
}

void emulation_seed(uint64_t seed)
{
    emulation::set_seed(&emulation::emulated(), seed);
}
