/* The score matrices of attention: softmax with dropout, and its gradient. */
#include "device/cpu/isa/kernel_names.h"
#include "device/cpu/isa/masks.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How many keys the block's row `row` may see. */
static int64_t visible(const sli_score_block *block, int64_t row)
{
    return block->causal ? smaller(block->first_query + row + 1, block->columns) : block->columns;
}

/* Masks of short rows are drawn ahead over row ends, of long ones only where they are needed. */
static int64_t end_of_short_rows(const sli_score_block *block)
{
    return block->positions <= MASK_COLUMNS / 4 ? block->dropout_row + block->rows : 0;
}

static void apply_mask(masks *m, const sli_score_block *block, int64_t row, int64_t count, float *x)
{
    for (int64_t start = 0; m->dropout && start < count; start += MASK_COLUMNS) {
        int64_t part = smaller(count - start, MASK_COLUMNS);
        const float *restrict mask = masks_get(m, block->dropout_row + row, start, part);
        for (int64_t i = 0; i < part; i++)
            x[start + i] *= mask[i];
    }
}

void SLI_OF_ISA(sli_softmax)(const sli_score_block *block, float *scores)
{
    masks m;
    masks_begin(&m, block->dropout, block->positions, end_of_short_rows(block));
    for (int64_t row = 0; row < block->rows; row++) {
        float *restrict x = scores + row * block->ld;
        int64_t count = visible(block, row);
        float shift = block->scale * max_f32(count, x, -INFINITY), scale = block->scale;
        for (int64_t i = 0; i < count; i++)
            x[i] = exp_f32(x[i] * scale - shift);
        float sum = sum_f32(count, x), inverse = 1.0f / sum;
        for (int64_t i = 0; i < count; i++)
            x[i] *= inverse;
        if (block->log_sum_exp)
            block->log_sum_exp[row] = shift + logf(sum);
        apply_mask(&m, block, row, count, x);
        for (int64_t i = count; i < block->columns; i++)
            x[i] = 0.0f;
    }
}

void SLI_OF_ISA(sli_softmax_backward)(const sli_score_block *block, float *scores, float *grads,
                                      const float *inner)
{
    masks m;
    masks_begin(&m, block->dropout, block->positions, end_of_short_rows(block));
    for (int64_t row = 0; row < block->rows; row++) {
        float *restrict x = scores + row * block->ld, *restrict grad = grads + row * block->ld;
        int64_t count = visible(block, row);
        float log_sum_exp = block->log_sum_exp[row], scale = block->scale;
        for (int64_t i = 0; i < count; i++)
            x[i] = exp_f32(x[i] * scale - log_sum_exp);
        apply_mask(&m, block, row, count, grad);
        for (int64_t i = 0; i < count; i++)
            grad[i] = scale * (x[i] * (grad[i] - inner[row]));
        apply_mask(&m, block, row, count, x);
        for (int64_t i = count; i < block->columns; i++)
            x[i] = grad[i] = 0.0f;
    }
}

void SLI_OF_ISA(sli_row_products)(int64_t rows, int64_t width, int64_t ld, const float *a,
                                  const float *b, float *inner)
{
    for (int64_t row = 0; row < rows; row++) {
        const float *restrict x = a + row * ld, *restrict y = b + row * ld;
        float lanes[LANES] = {0};
        int64_t whole = width - width % LANES;
        for (int64_t i = 0; i < whole; i += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += x[i + l] * y[i + l];
        float sum = sum_of_lanes(lanes);
        for (int64_t i = whole; i < width; i++)
            sum += x[i] * y[i];
        inner[row] = sum;
    }
}
