/* Embedding look-up and its gradient. */
#include "device/cpu/isa/kernel_names.h"
#include "device/cpu/isa/masks.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void SLI_OF_ISA(sli_embedding)(const sli_embedding *arguments, int64_t first_row, int64_t rows)
{
    int64_t width = arguments->width;
    float scale = arguments->scale;
    masks m;
    masks_begin(&m, &arguments->dropout, width, width <= MASK_COLUMNS ? first_row + rows : 0);
    for (int64_t row = first_row; row < first_row + rows; row++) {
        const float *restrict from = arguments->table + arguments->ids[row] * width;
        float *restrict to = arguments->out + row * width;
        if (arguments->positions) {
            int64_t position = row % arguments->dropout.rows_per_sample;
            const float *restrict add = arguments->positions + position * width;
            for (int64_t i = 0; i < width; i++)
                to[i] = from[i] * scale + add[i];
        } else {
            for (int64_t i = 0; i < width; i++)
                to[i] = from[i] * scale;
        }
        for (int64_t start = 0; m.dropout && start < width; start += MASK_COLUMNS) {
            int64_t count = smaller(width - start, MASK_COLUMNS);
            const float *restrict mask = masks_get(&m, row, start, count);
            for (int64_t i = 0; i < count; i++)
                to[start + i] *= mask[i];
        }
    }
}

void SLI_OF_ISA(sli_embedding_backward)(const sli_embedding_backward *arguments,
                                        int64_t first_column, int64_t columns)
{
    int64_t width = arguments->width;
    float scale = arguments->scale;
    masks m;
    masks_begin(&m, &arguments->dropout, width, columns == width ? arguments->rows : 0);
    for (int64_t row = 0; row < arguments->rows; row++)
        for (int64_t start = 0; start < columns; start += MASK_COLUMNS) {
            int64_t column = first_column + start;
            int64_t count = smaller(columns - start, MASK_COLUMNS);
            const float *restrict grad = arguments->grad_out + row * width + column;
            float *restrict to = arguments->grad_table + arguments->ids[row] * width + column;
            if (m.dropout) {
                const float *restrict mask = masks_get(&m, row, column, count);
                for (int64_t i = 0; i < count; i++)
                    to[i] += scale * (grad[i] * mask[i]);
            } else {
                for (int64_t i = 0; i < count; i++)
                    to[i] += scale * grad[i];
            }
        }
}
