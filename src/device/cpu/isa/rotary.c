/* Rotary positions: a row's angles once, for all of its heads. */
#include "device/cpu/isa/isa.h"

static void rotate_head(float *restrict x, int64_t pairs, const float *restrict cosines,
                        const float *restrict sines)
{
    float *restrict y = x + pairs;
    for (int64_t i = 0; i < pairs; i++) {
        float first = x[i], second = y[i];
        x[i] = first * cosines[i] - second * sines[i];
        y[i] = second * cosines[i] + first * sines[i];
    }
}

void SLI_OF_ISA(sli_rotary)(const sli_rotary *arguments, int64_t first_row, int64_t rows)
{
    float cosines[SLI_ROTARY_PAIRS], sines[SLI_ROTARY_PAIRS];
    int64_t pairs = arguments->head_width / 2;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        float position = (float)(arguments->first_position + row % arguments->rows_per_sample);
        for (int64_t i = 0; i < pairs; i++) {
            float angle = position * arguments->frequencies[i];
            cosines[i] = cosf(angle);
            sines[i] = arguments->inverse ? -sinf(angle) : sinf(angle);
        }
        for (int64_t head = 0; head < arguments->heads; head++)
            rotate_head(arguments->x + row * arguments->ld + head * arguments->head_width, pairs,
                        cosines, sines);
    }
}
