#include "lab.h"
#include "reference.h"

typedef struct attention_case {
    sli_attention forward;
    const float *out, *log_sum_exp, *grad_out; /* for backward */
} attention_case;

static void run_forward(sl_device *device, const void *arguments, outputs *out)
{
    sli_attention a = ((const attention_case *)arguments)->forward;
    a.out = out->values[0] = floats(out->count[0]);
    a.log_sum_exp = out->values[1] = floats(out->count[1]);
    assert_int_equal(sli_device_attention(device, &a), SL_OK);
    float *again = floats(out->count[0]);
    a.out = again;
    a.log_sum_exp = NULL;
    assert_int_equal(sli_device_attention(device, &a), SL_OK);
    assert_memory_equal(again, out->values[0], (size_t)out->count[0] * sizeof(float));
    free(again);
}

static void run_backward(sl_device *device, const void *arguments, outputs *out)
{
    const attention_case *c = arguments;
    const sli_attention *a = &c->forward;
    sli_attention_backward back = {.samples = a->samples,
                                   .positions = a->positions,
                                   .heads = a->heads,
                                   .head_width = a->head_width,
                                   .causal = a->causal,
                                   .qkv = a->qkv,
                                   .out = c->out,
                                   .log_sum_exp = c->log_sum_exp,
                                   .dropout = a->dropout,
                                   .grad_out = c->grad_out};
    back.grad_qkv = out->values[0] = floats(out->count[0]);
    memset(out->values[0], 0xFF, (size_t)out->count[0] * sizeof(float)); /* to be overwritten */
    assert_int_equal(sli_device_attention_backward(device, &back), SL_OK);
}

static float *floats_of(const double *values, int64_t count)
{
    float *to = floats(count);
    for (int64_t i = 0; i < count; i++)
        to[i] = (float)values[i];
    return to;
}

static void check_attention(const lab *all, random_source *source, int64_t samples,
                            int64_t positions, int64_t heads, int64_t head_width, bool causal,
                            float p)
{
    int64_t rows = samples * heads * positions, elements = rows * head_width;
    attention_case c = {.forward = {.samples = samples,
                                    .positions = positions,
                                    .heads = heads,
                                    .head_width = head_width,
                                    .causal = causal}};
    c.forward.dropout =
        (sli_dropout){.p = p,
                      .key = sli_philox_key_make(random_bits(source), SLI_RANDOM_DROPOUT),
                      .step = random_bits(source),
                      .site = random_bits(source),
                      .first_sample = random_bits(source),
                      .rows_per_sample = heads * positions};
    float *qkv = random_floats(source, 3 * elements);
    for (int64_t i = 0; i < 3 * elements; i++)
        qkv[i] *= 2;
    float *grad_out = random_floats(source, elements);
    c.forward.qkv = qkv;
    c.grad_out = grad_out;
    double *out = doubles(elements), *log_sum_exp = doubles(rows);
    reference_attention(&c.forward, out, log_sum_exp);
    float *rounded = floats_of(out, elements), *rounded_sums = floats_of(log_sum_exp, rows);
    c.out = rounded;
    c.log_sum_exp = rounded_sums;
    outputs forward = {.arrays = 2,
                       .count = {elements, rows},
                       .expected = {out, log_sum_exp},
                       .tolerance = {1e-5, 1e-5}};
    check_on_all(all, "attention", run_forward, &c, &forward);
    outputs backward = {.arrays = 1, .count = {3 * elements}, .tolerance = {2e-5}};
    backward.expected[0] = doubles(3 * elements);
    reference_attention_backward(&c.forward, grad_out, backward.expected[0]);
    check_on_all(all, "attention_backward", run_backward, &c, &backward);
    free(qkv);
    free(grad_out);
    free(rounded);
    free(rounded_sums);
}

static void attention_of_random_shapes_matches_the_reference(void **state)
{
    static const int64_t positions[] = {1, 2, 3, 17, 25, 35, 64, 65};
    static const int64_t head_widths[] = {1, 3, 8, 17, 64, 100};
    random_source source = random_start(__func__);
    for (int i = 0; i < 40; i++) {
        int64_t samples = 1 + random_below(&source, 3), heads = 1 + random_below(&source, 3);
        int64_t length = random_of(&source, positions, 8);
        int64_t width = random_of(&source, head_widths, 6);
        check_attention(*state, &source, samples, length, heads, width, i % 2, i % 3 ? 0.3f : 0.0f);
    }
}

static void attention_of_several_blocks_matches_the_reference(void **state)
{
    random_source source = random_start(__func__);
    check_attention(*state, &source, 1, 200, 2, 16, true, 0.2f);
    check_attention(*state, &source, 1, 200, 2, 16, false, 0.2f);
    check_attention(*state, &source, 2, 129, 1, 20, true, 0);
    check_attention(*state, &source, 1, 1100, 1, 4, true, 0.1f);
}

static void attention_of_no_samples_does_nothing(void **state)
{
    random_source source = random_start(__func__);
    check_attention(*state, &source, 0, 35, 2, 8, true, 0);
}

static void attention_gives_its_workspace_back(void **state)
{
    const lab *all = *state;
    sl_memory_stats stats;
    sl_device_memory(all->devices[0][0], &stats);
    assert_int_equal(stats.current_total_bytes, 0);
    assert_true(stats.peak_bytes[SL_MEMORY_WORKSPACE] > 0);
}

int attention_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_of_random_shapes_matches_the_reference),
        cmocka_unit_test(attention_of_several_blocks_matches_the_reference),
        cmocka_unit_test(attention_of_no_samples_does_nothing),
        cmocka_unit_test(attention_gives_its_workspace_back),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
