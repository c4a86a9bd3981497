/* A split head gives the loss and the gradients of the whole one: to rounding, and the same bits
 * however its blocks are spread. */
#include "core/bf16.h"
#include "nn/layers.h"
#include "nn/module.h"
#include "nn/split_head.h"
#include "support/check.h"
#include "support/modules.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 40, MOST_PARTS = 8, MICROS = 2 };

/* One head, and what is given to it. */
typedef struct head_case {
    int64_t classes, width, rows;
    int blocks;
    bool has_bias, in_bf16;
    sl_device *device;
    sl_tensor *weight, *bias; /* f32 */
    sl_tensor *operand;       /* the weight in the data type of products */
    sl_tensor *in[MICROS], *targets[MICROS];
    double scale;
} head_case;

/* What comes out. */
typedef struct outcome {
    double losses[MICROS][MOST_ROWS];
    sl_tensor *grad_in[MICROS], *weight_grad, *bias_grad;
} outcome;

static void outcome_clear(outcome *out)
{
    for (int m = 0; m < MICROS; m++)
        sl_tensor_destroy(&out->grad_in[m]);
    sl_tensor_destroy(&out->weight_grad);
    sl_tensor_destroy(&out->bias_grad);
}

static void outcome_create(const head_case *c, outcome *out)
{
    sl_shape in = sl_shape_2d(c->rows, c->width), weight = sl_shape_2d(c->classes, c->width);
    sl_shape bias = sl_shape_1d(c->classes);
    memset(out, 0, sizeof *out);
    for (int m = 0; m < MICROS; m++)
        check_ok(sl_tensor_create(c->device, SL_MEMORY_ACTIVATIONS, SL_F32, &in, &out->grad_in[m]));
    check_ok(sl_tensor_create(c->device, SL_MEMORY_GRADIENTS, SL_F32, &weight, &out->weight_grad));
    check_ok(sl_tensor_create(c->device, SL_MEMORY_GRADIENTS, SL_F32, &bias, &out->bias_grad));
}

static void case_clear(head_case *c)
{
    sl_tensor_destroy(&c->weight);
    sl_tensor_destroy(&c->bias);
    sl_tensor_destroy(&c->operand);
    for (int m = 0; m < MICROS; m++) {
        sl_tensor_destroy(&c->in[m]);
        sl_tensor_destroy(&c->targets[m]);
    }
    sl_device_destroy(&c->device);
}

/* Some targets are ignored, and some of their rows have logits that are not finite; logits are
 * large enough for probabilities near 0 and 1. */
static void case_draw(unsigned *seed, head_case *c)
{
    *c = (head_case){.classes = test_draw(seed, 1, 90),
                     .width = test_draw(seed, 1, 33),
                     .rows = test_draw(seed, 1, MOST_ROWS),
                     .has_bias = test_draw(seed, 0, 1),
                     .in_bf16 = test_draw(seed, 0, 1),
                     .device = new_device(test_draw(seed, 1, 3)),
                     .scale = test_draw(seed, 1, 8) / 8.0};
    int most = c->classes < 20 ? (int)c->classes : 20;
    c->blocks = test_draw(seed, 1, most);
    sl_shape weight = sl_shape_2d(c->classes, c->width), bias = sl_shape_1d(c->classes);
    sl_shape in = sl_shape_2d(c->rows, c->width), targets = sl_shape_1d(c->rows);
    c->weight = random_tensor(c->device, &weight, *seed + 1);
    c->bias = random_tensor(c->device, &bias, *seed + 2);
    for (int64_t i = 0; i < sl_tensor_count(c->weight); i++)
        sl_tensor_f32(c->weight)[i] *= 3;
    check_ok(c->in_bf16 ? sli_tensor_as(c->weight, SL_BF16, SL_MEMORY_PARAMETERS, &c->operand)
                        : sl_tensor_alias(c->weight, &c->operand));
    for (int m = 0; m < MICROS; m++) {
        int32_t ids[MOST_ROWS];
        for (int64_t i = 0; i < c->rows; i++)
            ids[i] = test_draw(seed, 0, 9) == 0 ? -100 : test_draw(seed, 0, (int)c->classes - 1);
        c->targets[m] = integer_tensor(c->device, &targets, ids);
        c->in[m] = random_tensor(c->device, &in, *seed + 3 + (unsigned)m);
        for (int64_t i = 0; i < sl_tensor_count(c->in[m]); i++)
            if (ids[i / c->width] < 0 && i / c->width % 2 == 0)
                sl_tensor_f32(c->in[m])[i] = i % 2 ? 3e38f : -3e38f;
    }
}

/* ---- The split head --------------------------------------------------------------------- */

typedef struct part_tensors {
    sli_split_head head;
    sl_tensor *weight, *bias, *weight_grad, *bias_grad;
    sli_split_head_record record;
} part_tensors;

static void part_open(const head_case *c, const outcome *out, int index, int parts, part_tensors *p)
{
    *p = (part_tensors){.head = {.classes = c->classes,
                                 .width = c->width,
                                 .blocks = c->blocks,
                                 .first = sli_sum_tree_first(c->blocks, index, parts),
                                 .end = sli_sum_tree_first(c->blocks, index + 1, parts),
                                 .weight_grad_is_stale = true,
                                 .bias_grad_is_stale = true}};
    int64_t first = sli_split_head_first_class(c->classes, c->blocks, p->head.first);
    int64_t count = sli_split_head_first_class(c->classes, c->blocks, p->head.end) - first;
    check_ok(sli_tensor_narrow(c->operand, first, count, &p->weight));
    check_ok(sli_tensor_narrow(c->bias, first, count, &p->bias));
    check_ok(sli_tensor_narrow(out->weight_grad, first, count, &p->weight_grad));
    check_ok(sli_tensor_narrow(out->bias_grad, first, count, &p->bias_grad));
    p->head.weight = p->weight;
    p->head.bias = c->has_bias ? p->bias : NULL;
    p->head.weight_grad = p->weight_grad;
    p->head.bias_grad = c->has_bias ? p->bias_grad : NULL;
}

static void part_close(part_tensors *p)
{
    sl_tensor_destroy(&p->weight);
    sl_tensor_destroy(&p->bias);
    sl_tensor_destroy(&p->weight_grad);
    sl_tensor_destroy(&p->bias_grad);
}

static void run_split(const head_case *c, int parts, outcome *out)
{
    part_tensors part[MOST_PARTS];
    sl_shape results = sl_shape_2d(c->rows, SLI_SPLIT_HEAD_RESULTS);
    outcome_create(c, out);
    for (int p = 0; p < parts; p++)
        part_open(c, out, p, parts, &part[p]);
    for (int m = 0; m < MICROS; m++) {
        sl_tensor *sums[MOST_PARTS], *numbers[MOST_PARTS];
        SCOPED(sl_tensor) *result = NULL;
        for (int p = 0; p < parts; p++)
            check_ok(sli_split_head_forward(&part[p].head, c->in[m], c->targets[m], &part[p].record,
                                            &sums[p], &numbers[p]));
        check_ok(sl_tensor_create(c->device, SL_MEMORY_ACTIVATIONS, SL_F64, &results, &result));
        check_ok(sli_split_head_reduce(&(sli_split_head_reduction){.classes = c->classes,
                                                                   .blocks = c->blocks,
                                                                   .parts = parts,
                                                                   .sums = sums,
                                                                   .numbers = numbers,
                                                                   .targets = c->targets[m],
                                                                   .scale = c->scale,
                                                                   .row_losses = out->losses[m],
                                                                   .grad_in = out->grad_in[m],
                                                                   .result = result}));
        for (int p = parts - 1; p >= 0; p--) {
            check_ok(sli_split_head_backward(&part[p].head, &part[p].record, result));
            sl_tensor_destroy(&sums[p]);
            sl_tensor_destroy(&numbers[p]);
        }
    }
    for (int p = 0; p < parts; p++)
        part_close(&part[p]);
}

/* ---- In double precision ------------------------------------------------------------------ */

typedef struct reference {
    double losses[MICROS][MOST_ROWS];
    double *grad_in[MICROS], *weight_grad, *bias_grad;
} reference;

/* A tensor's elements as products see them. */
static double *widen(const head_case *c, const sl_tensor *tensor)
{
    double *out = malloc((size_t)sl_tensor_count(tensor) * sizeof *out);
    for (int64_t i = 0; i < sl_tensor_count(tensor); i++) {
        float value = sl_tensor_f32(tensor)[i];
        out[i] = (double)(c->in_bf16 ? sli_f32_from_bf16(sli_bf16_from_f32(value)) : value);
    }
    return out;
}

static void run_row(const head_case *c, int m, int64_t row, const double *weight, const double *in,
                    double *logits, reference *out)
{
    int32_t target = sl_tensor_i32(c->targets[m])[row];
    double most = -INFINITY, sum = 0;
    if (target < 0)
        return;
    for (int64_t k = 0; k < c->classes; k++) {
        logits[k] = c->has_bias ? (double)sl_tensor_f32(c->bias)[k] : 0;
        for (int64_t i = 0; i < c->width; i++)
            logits[k] += weight[k * c->width + i] * in[row * c->width + i];
        most = fmax(most, logits[k]);
    }
    for (int64_t k = 0; k < c->classes; k++)
        sum += exp(logits[k] - most);
    out->losses[m][row] = log(sum) + most - logits[target];
    for (int64_t k = 0; k < c->classes; k++) {
        double grad = c->scale * (exp(logits[k] - most) / sum - (k == target));
        out->bias_grad[k] += grad;
        for (int64_t i = 0; i < c->width; i++) {
            out->grad_in[m][row * c->width + i] += grad * weight[k * c->width + i];
            out->weight_grad[k * c->width + i] += grad * in[row * c->width + i];
        }
    }
}

static void run_reference(const head_case *c, reference *out)
{
    memset(out, 0, sizeof *out);
    out->weight_grad = calloc((size_t)(c->classes * c->width), sizeof(double));
    out->bias_grad = calloc((size_t)c->classes, sizeof(double));
    FREED double *weight = widen(c, c->weight),
                 *logits = calloc((size_t)c->classes, sizeof(double));
    for (int m = 0; m < MICROS; m++) {
        FREED double *in = widen(c, c->in[m]);
        out->grad_in[m] = calloc((size_t)(c->rows * c->width), sizeof(double));
        for (int64_t row = 0; row < c->rows; row++)
            run_row(c, m, row, weight, in, logits, out);
    }
}

static void reference_clear(reference *r)
{
    for (int m = 0; m < MICROS; m++)
        free(r->grad_in[m]);
    free(r->weight_grad);
    free(r->bias_grad);
}

static void check_close(const sl_tensor *got, const double *expected, double tolerance)
{
    double largest = 0;
    for (int64_t i = 0; i < sl_tensor_count(got); i++)
        largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < sl_tensor_count(got); i++) {
        double error = fabs((double)sl_tensor_f32(got)[i] - expected[i]);
        if (!(error <= tolerance * (largest + 1)))
            fail_msg("element %ld is %g, expected %g", (long)i, (double)sl_tensor_f32(got)[i],
                     expected[i]);
    }
}

/* In bf16, whose rounding is 2^-9, of softmax and of x weighted by its block's part. */
static void check_reference(const head_case *c, const outcome *got)
{
    double tolerance = c->in_bf16 ? 1.0 / 64 : 1e-5;
    reference expected;
    run_reference(c, &expected);
    for (int m = 0; m < MICROS; m++) {
        for (int64_t row = 0; row < c->rows; row++)
            assert_float_equal(got->losses[m][row], expected.losses[m][row], 1e-4);
        check_close(got->grad_in[m], expected.grad_in[m], tolerance);
    }
    check_close(got->weight_grad, expected.weight_grad, tolerance);
    if (c->has_bias)
        check_close(got->bias_grad, expected.bias_grad, tolerance);
    reference_clear(&expected);
}

/* ---- Tests ------------------------------------------------------------------------------ */

static void check_bits(const sl_tensor *a, const sl_tensor *b)
{
    assert_memory_equal(sl_tensor_data(a), sl_tensor_data(b), sli_tensor_bytes(a));
}

static void any_number_of_parts_gives_the_same_bits_and_the_references_values(void **state)
{
    unsigned seed = test_seed(2411);
    for (int round = 0; round < 60; round++) {
        head_case c;
        outcome one, some;
        case_draw(&seed, &c);
        run_split(&c, 1, &one);
        check_reference(&c, &one);
        int most = c.blocks < MOST_PARTS ? c.blocks : MOST_PARTS;
        for (int parts = 2; parts <= most; parts++) {
            run_split(&c, parts, &some);
            assert_memory_equal(one.losses, some.losses, sizeof one.losses);
            for (int m = 0; m < MICROS; m++)
                check_bits(one.grad_in[m], some.grad_in[m]);
            check_bits(one.weight_grad, some.weight_grad);
            if (c.has_bias)
                check_bits(one.bias_grad, some.bias_grad);
            outcome_clear(&some);
        }
        outcome_clear(&one);
        case_clear(&c);
    }
}

/* Blocks, the first of which have a class more. */
static void blocks_cover_all_classes(void **state)
{
    for (int64_t classes = 1; classes < 40; classes++)
        for (int blocks = 1; blocks <= classes; blocks++) {
            assert_int_equal(sli_split_head_first_class(classes, blocks, 0), 0);
            assert_int_equal(sli_split_head_first_class(classes, blocks, blocks), classes);
            int64_t before = classes;
            for (int b = 0; b < blocks; b++) {
                int64_t size = sli_split_head_first_class(classes, blocks, b + 1) -
                               sli_split_head_first_class(classes, blocks, b);
                assert_true(size >= classes / blocks && size <= before);
                before = size;
            }
        }
}

int split_head_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_parts_gives_the_same_bits_and_the_references_values),
        cmocka_unit_test(blocks_cover_all_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
