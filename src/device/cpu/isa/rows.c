/* Kernels on rows: embedding, residual sums, layer norm, cross entropy. */
#include "core/bf16.h"
#include "device/cpu/isa/isa.h"
#include "device/cpu/isa/random.h"

/* ---- Embedding -------------------------------------------------------------------------- */

/* to[0 ... count - 1] = from * scale, plus `add`, which may be NULL. */
static void scale_and_add(const float *restrict from, float scale, const float *restrict add,
                          int64_t count, float *restrict to)
{
    if (add)
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i] * scale + add[i];
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = from[i] * scale;
}

static void embed_row(const sli_embedding *arguments, int64_t id, const float *add, float *to)
{
    int64_t width = arguments->width;
    float block[SLI_BF16_BLOCK];
    if (arguments->table) {
        scale_and_add(arguments->table + id * width, arguments->scale, add, width, to);
        return;
    }
    for (int64_t start = 0; start < width; start += SLI_BF16_BLOCK) {
        int64_t count = sli_smaller(width - start, SLI_BF16_BLOCK);
        sli_widen_bf16(arguments->table_bf16 + id * width + start, block, count);
        scale_and_add(block, arguments->scale, add ? add + start : NULL, count, to + start);
    }
}

void SLI_OF_ISA(sli_embedding)(const sli_embedding *arguments, int64_t first_row, int64_t rows)
{
    int64_t width = arguments->width;
    masks m;
    masks_begin(&m, &arguments->dropout, width, width <= MASK_COLUMNS ? first_row + rows : 0);
    for (int64_t row = first_row; row < first_row + rows; row++) {
        float *restrict to = arguments->out + row * width;
        int64_t position = arguments->positions ? row % arguments->dropout.rows_per_sample : 0;
        embed_row(arguments, arguments->ids[row],
                  arguments->positions ? arguments->positions + position * width : NULL, to);
        for (int64_t start = 0; m.dropout && start < width; start += MASK_COLUMNS) {
            int64_t count = sli_smaller(width - start, MASK_COLUMNS);
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
            int64_t count = sli_smaller(columns - start, MASK_COLUMNS);
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

/* ---- Residual sums and layer norm ------------------------------------------------------- */

/* A row is read from memory once: the later loops over it find it in the nearest cache. */

/* The mask of `count` elements of a row, NULL without dropout. */
static const float *mask_of(masks *m, int64_t row, int64_t start, int64_t count)
{
    return m->dropout ? masks_get(m, row, start, count) : NULL;
}

/* to = residual + mask * x; residual and mask may be NULL. `to` may be x or residual. */
static void add_columns(int64_t count, float *to, const float *x, const float *residual,
                        const float *mask)
{
    if (mask && residual)
        SLI_ELEMENTWISE
    for (int64_t i = 0; i < count; i++)
        to[i] = residual[i] + mask[i] * x[i];
    else if (mask) SLI_ELEMENTWISE for (int64_t i = 0; i < count; i++) to[i] = mask[i] * x[i];
    else if (residual) SLI_ELEMENTWISE for (int64_t i = 0; i < count; i++) to[i] =
        residual[i] + x[i];
    else if (to != x) memcpy(to, x, (size_t)count * sizeof *to);
}

/* A whole row of add_columns. */
static void add_row(masks *m, int64_t row, int64_t width, float *to, const float *x,
                    const float *residual)
{
    for (int64_t start = 0; start < width; start += MASK_COLUMNS) {
        int64_t count = sli_smaller(width - start, MASK_COLUMNS);
        add_columns(count, to + start, x + start, residual ? residual + start : NULL,
                    mask_of(m, row, start, count));
    }
}

void SLI_OF_ISA(sli_add_dropout)(const sli_add_dropout *arguments, int64_t first_row, int64_t rows)
{
    int64_t width = arguments->width;
    masks m;
    masks_begin(&m, &arguments->dropout, width, width <= MASK_COLUMNS ? first_row + rows : 0);
    for (int64_t row = first_row; row < first_row + rows; row++) {
        const float *residual = arguments->residual ? arguments->residual + row * width : NULL;
        add_row(&m, row, width, arguments->out + row * width, arguments->x + row * width, residual);
    }
}

/* `soon` [count] will be written next. */
static float squares_around(int64_t count, const float *x, float mean, const float *soon)
{
    float lanes[LANES] = {0};
    int64_t whole = count - count % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        expect_writes(soon + i);
        for (int l = 0; l < LANES; l++) {
            float distance = x[i + l] - mean;
            lanes[l] += distance * distance;
        }
    }
    float sum = sum_of_lanes(lanes);
    for (int64_t i = whole; i < count; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sum;
}

/* Where a row begins. */
static int64_t begin_of(const sli_row_groups *groups, int64_t width, int64_t row)
{
    return groups->count == 0 ? row * width
                              : row / groups->count * groups->ld + row % groups->count * width;
}

/* out may be x. */
static void normalize_row(const sli_add_norm *arguments, int64_t row, const float *x, float *out)
{
    int64_t width = arguments->width;
    float mean = sum_f32(width, x) / (float)width;
    const float *soon = arguments->normalized ? arguments->normalized + row * width : out;
    float variance = squares_around(width, x, mean, soon) / (float)width;
    float rstd = 1.0f / sqrtf(variance + arguments->eps);
    const float *restrict weight = arguments->weight, *restrict bias = arguments->bias;
    if (arguments->rstd)
        arguments->rstd[row] = rstd;
    if (!arguments->normalized) {
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < width; i++)
            out[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
        return;
    }
    float *restrict normalized = arguments->normalized + row * width;
    SLI_ELEMENTWISE
    for (int64_t i = 0; i < width; i++) {
        float value = (x[i] - mean) * rstd;
        normalized[i] = value;
        out[i] = value * weight[i] + bias[i];
    }
}

/* Of RMSNorm. out may be x. */
static void normalize_rms_row(const sli_add_norm *arguments, int64_t row, const float *x,
                              float *out)
{
    int64_t width = arguments->width;
    const float *soon = arguments->normalized ? arguments->normalized + row * width : out;
    float mean_square = squares_around(width, x, 0.0f, soon) / (float)width;
    float rstd = 1.0f / sqrtf(mean_square + arguments->eps);
    const float *restrict weight = arguments->weight;
    if (arguments->rstd)
        arguments->rstd[row] = rstd;
    if (!arguments->normalized) {
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < width; i++)
            out[i] = x[i] * rstd * weight[i];
        return;
    }
    float *restrict normalized = arguments->normalized + row * width;
    SLI_ELEMENTWISE
    for (int64_t i = 0; i < width; i++) {
        float value = x[i] * rstd;
        normalized[i] = value;
        out[i] = value * weight[i];
    }
}

void SLI_OF_ISA(sli_add_norm)(const sli_add_norm *arguments, int64_t first_row, int64_t rows)
{
    int64_t width = arguments->width;
    masks m;
    masks_begin(&m, &arguments->dropout, width, width <= MASK_COLUMNS ? first_row + rows : 0);
    for (int64_t row = first_row; row < first_row + rows; row++) {
        int64_t begin = begin_of(&arguments->groups, width, row);
        const float *residual = arguments->residual ? arguments->residual + begin : NULL;
        float *out = arguments->out + begin, *sum = arguments->sum ? arguments->sum + begin : out;
        add_row(&m, row, width, sum, arguments->x + begin, residual);
        if (arguments->rms)
            normalize_rms_row(arguments, row, sum, out);
        else
            normalize_row(arguments, row, sum, out);
    }
}

/* ---- Backward --------------------------------------------------------------------------- */

/* The two means over a row that the norm's gradient needs: of g = grad_out * weight, and of
 * g * normalized. Adds the row to the sums for weight and bias on the way. `soon` [width] will be
 * written next. */
static void reduce_row(int64_t width, const float *restrict grad_out,
                       const float *restrict normalized, const float *restrict weight,
                       const float *soon, float *restrict weight_sums, float *restrict bias_sums,
                       float *mean_g, float *mean_gn)
{
    float lanes_g[LANES] = {0}, lanes_gn[LANES] = {0};
    int64_t whole = width - width % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        expect_writes(soon + i);
        for (int l = 0; l < LANES; l++) {
            float grad = grad_out[i + l], n = normalized[i + l];
            float g = grad * weight[i + l];
            lanes_g[l] += g;
            lanes_gn[l] += g * n;
            weight_sums[i + l] += grad * n;
            bias_sums[i + l] += grad;
        }
    }
    float sum_g = sum_of_lanes(lanes_g), sum_gn = sum_of_lanes(lanes_gn);
    for (int64_t i = whole; i < width; i++) {
        float g = grad_out[i] * weight[i];
        sum_g += g;
        sum_gn += g * normalized[i];
        weight_sums[i] += grad_out[i] * normalized[i];
        bias_sums[i] += grad_out[i];
    }
    *mean_g = sum_g / (float)width;
    *mean_gn = sum_gn / (float)width;
}

/* The same of RMSNorm, which has the mean of g * normalized alone. */
static float reduce_rms_row(int64_t width, const float *restrict grad_out,
                            const float *restrict normalized, const float *restrict weight,
                            const float *soon, float *restrict weight_sums)
{
    float lanes[LANES] = {0};
    int64_t whole = width - width % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        expect_writes(soon + i);
        for (int l = 0; l < LANES; l++) {
            float product = grad_out[i + l] * normalized[i + l];
            lanes[l] += product * weight[i + l];
            weight_sums[i + l] += product;
        }
    }
    float sum = sum_of_lanes(lanes);
    for (int64_t i = whole; i < width; i++) {
        sum += grad_out[i] * normalized[i] * weight[i];
        weight_sums[i] += grad_out[i] * normalized[i];
    }
    return sum / (float)width;
}

/* grad_sum = gradient through the norm + grad_sum_in; grad_sum may be either of its sources. */
static void norm_grad(const sli_add_norm_backward *arguments, int64_t row, float mean_g,
                      float mean_gn)
{
    int64_t width = arguments->width, begin = begin_of(&arguments->groups, width, row);
    const float *grad_out = arguments->grad_out + begin;
    const float *normalized = arguments->normalized + row * width;
    const float *weight = arguments->weight;
    float *grad_sum = arguments->grad_sum + begin;
    float rstd = arguments->rstd[row];
    if (arguments->grad_sum_in) {
        const float *in = arguments->grad_sum_in + row * width;
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < width; i++)
            grad_sum[i] =
                rstd * (grad_out[i] * weight[i] - mean_g - normalized[i] * mean_gn) + in[i];
    } else {
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < width; i++)
            grad_sum[i] = rstd * (grad_out[i] * weight[i] - mean_g - normalized[i] * mean_gn);
    }
}

void SLI_OF_ISA(sli_add_norm_backward)(const sli_add_norm_backward *arguments, int64_t first_row,
                                       int64_t rows, float *weight_sums, float *bias_sums)
{
    int64_t width = arguments->width;
    masks m;
    masks_begin(&m, &arguments->dropout, width, width <= MASK_COLUMNS ? first_row + rows : 0);
    for (int64_t row = first_row; row < first_row + rows; row++) {
        int64_t begin = begin_of(&arguments->groups, width, row);
        float *grad_sum = arguments->grad_sum + begin, mean_g = 0, mean_gn;
        const float *grad_out = arguments->grad_out + begin;
        const float *normalized = arguments->normalized + row * width;
        if (arguments->rms)
            mean_gn = reduce_rms_row(width, grad_out, normalized, arguments->weight, grad_sum,
                                     weight_sums);
        else
            reduce_row(width, grad_out, normalized, arguments->weight, grad_sum, weight_sums,
                       bias_sums, &mean_g, &mean_gn);
        norm_grad(arguments, row, mean_g, mean_gn);
        if (arguments->grad_x)
            add_row(&m, row, width, arguments->grad_x + row * width, grad_sum, NULL);
    }
}

/* ---- Cross entropy ---------------------------------------------------------------------- */

/* Cross entropy of long rows of logits.
 *
 * A row of a large vocabulary does not fit into the nearest cache, so it is walked over twice, not
 * three times: the first walk takes blocks, shifts each by the largest logit seen so far and leaves
 * the exponentials behind; the second scales each block by what its shift turned out to be off.
 * Where the gradient goes to `rounded`, the exponentials of every row are written over the range's
 * first row of logits, so that they stay in the cache. */

enum { MAX_BLOCKS = 128, CHUNK = 512 };

static int64_t block_size(int64_t classes)
{
    int64_t size = (classes + MAX_BLOCKS - 1) / MAX_BLOCKS;
    return (size + CHUNK - 1) / CHUNK * CHUNK;
}

/* Sum of e^(x - shift); the exponentials go to `kept`, which may be x or NULL. */
static double sum_exponentials(int64_t count, const float *x, float shift, float *kept)
{
    double sum = 0;
    float apart[CHUNK];
    for (int64_t start = 0; start < count; start += CHUNK) {
        int64_t length = sli_smaller(count - start, CHUNK);
        const float *from = x + start;
        float *to = kept ? kept + start : apart; /* cppcheck-suppress legacyUninitvar */
        SLI_ELEMENTWISE
        for (int64_t i = 0; i < length; i++)
            to[i] = exp_f32(from[i] - shift);
        sum += (double)sum_f32(length, to);
    }
    return sum;
}

/* x *= scale; the products are added to `sums`, which may be NULL. */
static void scale_block(int64_t count, float *restrict x, float scale, float *restrict sums)
{
    if (sums)
        for (int64_t i = 0; i < count; i++) {
            x[i] *= scale;
            sums[i] += x[i];
        }
    else
        for (int64_t i = 0; i < count; i++)
            x[i] *= scale;
}

/* to = x * scale, rounded; the products as they are are added to `sums`, which may be NULL. */
static void round_block(int64_t count, const float *restrict x, float scale, float *restrict sums,
                        uint16_t *restrict to)
{
    if (sums)
        for (int64_t i = 0; i < count; i++) {
            float product = x[i] * scale;
            sums[i] += product;
            to[i] = sli_bf16_from_f32(product);
        }
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = sli_bf16_from_f32(x[i] * scale);
}

/* `kept`: room for the exponentials of row `x`, or x itself. `to`: the row of arguments->rounded,
 * or NULL: the gradient replaces the exponentials. */
static double row_loss(const sli_cross_entropy *arguments, const float *x, int32_t target,
                       float *sums, float *kept, uint16_t *to)
{
    int64_t classes = arguments->classes, block = block_size(classes);
    float shifts[MAX_BLOCKS], max = -INFINITY, shift = 0, target_logit = x[target];
    double sum = 0;
    float target_sum = sums ? sums[target] : 0;
    bool keep = arguments->grad_scale != 0;
    int blocks = 0;
    for (int64_t start = 0; start < classes; start += block) {
        int64_t count = sli_smaller(classes - start, block);
        max = max_f32(count, x + start, max);
        float next = max == -INFINITY ? 0 : max; /* so far only impossible classes: all are 0 */
        if (sum != 0 && next != shift) /* where it is 0, e^(shift - next) may be infinite */
            sum *= exp((double)shift - next);
        shift = next;
        shifts[blocks++] = max; /* that of impossible classes makes their scale 0 as well */
        sum += sum_exponentials(count, x + start, shift, keep ? kept + start : NULL);
    }
    float target_grad = keep ? kept[target] : 0;
    for (int b = 0; keep && b < blocks; b++) {
        int64_t start = b * block, count = sli_smaller(classes - start, block);
        float scale = (float)(arguments->grad_scale * exp((double)shifts[b] - shift) / sum);
        if (target / block == b)
            target_grad *= scale;
        float *block_sums = sums ? sums + start : NULL;
        if (to)
            round_block(count, kept + start, scale, block_sums, to + start);
        else
            scale_block(count, kept + start, scale, block_sums);
    }
    target_grad -= arguments->grad_scale;
    if (keep && to)
        to[target] = sli_bf16_from_f32(target_grad);
    else if (keep)
        kept[target] = target_grad;
    if (sums)
        sums[target] = target_sum + target_grad;
    return log(sum) + shift - target_logit;
}

void SLI_OF_ISA(sli_cross_entropy)(const sli_cross_entropy *arguments, int64_t first_row,
                                   int64_t rows, float *sums)
{
    int64_t classes = arguments->classes;
    float *first = arguments->logits + first_row * arguments->ld;
    for (int64_t row = first_row; row < first_row + rows; row++) {
        float *x = arguments->logits + row * arguments->ld;
        uint16_t *to = arguments->rounded ? arguments->rounded + row * arguments->ld : NULL;
        int32_t target = arguments->targets[row];
        if (target != arguments->ignore) {
            arguments->loss[row] = row_loss(arguments, x, target, sums, to ? first : x, to);
            continue;
        }
        arguments->loss[row] = 0;
        if (arguments->grad_scale != 0 && to)
            memset(to, 0, (size_t)classes * sizeof *to);
        else if (arguments->grad_scale != 0)
            memset(x, 0, (size_t)classes * sizeof *x);
    }
}
