/* Cross entropy of long rows of logits.
 *
 * A row of a large vocabulary does not fit into the nearest cache, so it is walked over twice, not
 * three times: the first walk takes blocks, shifts each by the largest logit seen so far and leaves
 * the exponentials behind; the second scales each block by what its shift turned out to be off. */
#include "device/cpu/isa/kernel_names.h"

enum { MAX_BLOCKS = 128, SMALLEST_BLOCK = 512 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t block_size(int64_t classes)
{
    int64_t size = (classes + MAX_BLOCKS - 1) / MAX_BLOCKS;
    return size < SMALLEST_BLOCK ? SMALLEST_BLOCK : (size + LANES - 1) / LANES * LANES;
}

static float max_of(int64_t count, const float *x, float max)
{
    float lanes[LANES];
    for (int l = 0; l < LANES; l++)
        lanes[l] = max;
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] = x[i + l] > lanes[l] ? x[i + l] : lanes[l];
    for (int l = 0; l < LANES; l++)
        max = lanes[l] > max ? lanes[l] : max;
    for (int64_t i = whole; i < count; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* Sum of e^(x - shift); with `keep` the exponentials replace x. */
static double exponentials(int64_t count, float *x, float shift, bool keep)
{
    float lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        float e[LANES];
        for (int l = 0; l < LANES; l++) {
            e[l] = exp_f32(x[i + l] - shift);
            lanes[l] += e[l];
        }
        if (keep)
            memcpy(x + i, e, sizeof e);
    }
    float sum = sum_of_lanes(lanes);
    for (int64_t i = whole; i < count; i++) {
        float e = exp_f32(x[i] - shift);
        sum += e;
        if (keep)
            x[i] = e;
    }
    return sum;
}

static double row_loss(const sli_cross_entropy *arguments, float *x, int32_t target)
{
    int64_t classes = arguments->classes, block = block_size(classes);
    float shifts[MAX_BLOCKS], max = -INFINITY, shift = 0, target_logit = x[target];
    double sum = 0;
    bool keep = arguments->grad_scale != 0;
    int blocks = 0;
    for (int64_t start = 0; start < classes; start += block) {
        int64_t count = smaller(classes - start, block);
        max = max_of(count, x + start, max);
        float next = max == -INFINITY ? 0 : max; /* so far only impossible classes: all are 0 */
        if (next != shift)
            sum *= exp((double)shift - next);
        shift = next;
        shifts[blocks++] = shift;
        sum += exponentials(count, x + start, shift, keep);
    }
    for (int b = 0; keep && b < blocks; b++) {
        float *part = x + b * block;
        int64_t count = smaller(classes - b * block, block);
        float scale = (float)(arguments->grad_scale * exp((double)shifts[b] - shift) / sum);
        for (int64_t i = 0; i < count; i++)
            part[i] *= scale;
    }
    if (keep)
        x[target] -= arguments->grad_scale;
    return log(sum) + shift - target_logit;
}

void SLI_OF_ISA(sli_cross_entropy)(const sli_cross_entropy *arguments, int64_t first_row,
                                   int64_t rows)
{
    for (int64_t row = first_row; row < first_row + rows; row++) {
        float *x = arguments->logits + row * arguments->classes;
        int32_t target = arguments->targets[row];
        if (target != arguments->ignore) {
            arguments->loss[row] = row_loss(arguments, x, target);
            continue;
        }
        arguments->loss[row] = 0;
        if (arguments->grad_scale != 0)
            memset(x, 0, (size_t)arguments->classes * sizeof *x);
    }
}
