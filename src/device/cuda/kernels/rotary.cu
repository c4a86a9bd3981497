/* Rotary positions: a thread has four pairs of a row, of whichever heads. */
#include "device/cuda/kernels/four.h"

static __global__ void rotary(matrix_shape shape, sli_rotary a)
{
    matrix_group g = group_of_thread(shape);
    int64_t pairs = a.head_width / 2;
    float position = (float)(a.first_position + g.row % a.rows_per_sample);
    for (int k = 0; k < 4 && k < g.count; k++) {
        int64_t head = (g.column + k) / pairs, i = (g.column + k) % pairs;
        float *x = a.x + g.row * a.ld + head * a.head_width + i;
        float angle = position * a.frequencies[i];
        float cosine = cosf(angle), sine = a.inverse ? -sinf(angle) : sinf(angle);
        float first = x[0], second = x[pairs];
        x[0] = first * cosine - second * sine;
        x[pairs] = second * cosine + first * sine;
    }
}

cudaError_t sli_launch_rotary(const sli_rotary *a, cudaStream_t stream)
{
    matrix_shape shape = {a->rows, a->heads * (a->head_width / 2), false};
    return launch_groups(stream, shape, rotary, *a);
}
