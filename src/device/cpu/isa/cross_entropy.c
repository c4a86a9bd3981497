/* Cross entropy of long rows of logits.
 *
 * A row of a large vocabulary does not fit into the nearest cache, so it is walked over twice, not
 * three times: the first walk takes blocks, shifts each by the largest logit seen so far and leaves
 * the exponentials behind; the second scales each block by what its shift turned out to be off. */
#include "device/cpu/isa/kernel_names.h"

enum { MAX_BLOCKS = 128, CHUNK = 512 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t block_size(int64_t classes)
{
    int64_t size = (classes + MAX_BLOCKS - 1) / MAX_BLOCKS;
    return (size + CHUNK - 1) / CHUNK * CHUNK;
}

/* Sum of e^(x - shift); with `keep` the exponentials replace x. */
static double exponentials(int64_t count, float *x, float shift, bool keep)
{
    double sum = 0;
    float apart[CHUNK];
    for (int64_t start = 0; start < count; start += CHUNK) {
        int64_t part = smaller(count - start, CHUNK);
        const float *from = x + start;
        float *to = keep ? x + start : apart; /* cppcheck-suppress legacyUninitvar */
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < part; i++)
            to[i] = exp_f32(from[i] - shift);
        sum += (double)sum_f32(part, to);
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
        max = max_f32(count, x + start, max);
        float next = max == -INFINITY ? 0 : max; /* so far only impossible classes: all are 0 */
        if (sum != 0 && next != shift) /* where it is 0, e^(shift - next) may be infinite */
            sum *= exp((double)shift - next);
        shift = next;
        shifts[blocks++] = max; /* that of impossible classes makes their scale 0 as well */
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
