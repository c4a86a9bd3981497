/* Matrices that a device takes as bf16 (device.h) beside the same operations on f32 ones: each
 * result is that of f32, rounded. Devices that store no bf16 refuse them. */
#include "device/cases.h"
#include "support/check.h"

#include "core/bf16.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 2 * 70,
    HEAD_COUNT = 2,
    HEAD_WIDTH = 16,
    WIDTH = HEAD_COUNT * HEAD_WIDTH,
    MOST = ROWS * 3 * WIDTH
};

/* An array of a device, in f32 or in bf16, which is freed with its holder. */
typedef struct held {
    sl_device *device;
    void *memory;
    int64_t count;
    bool bf16;
} held;

enum { MOST_HELD = 24 };

typedef struct holder {
    sl_device *device;
    held arrays[MOST_HELD];
    int count;
    random_source random;
} holder;

static size_t bytes_of(const held *array)
{
    return (size_t)array->count * (array->bf16 ? sizeof(uint16_t) : sizeof(float));
}

static held *hold(holder *h, int64_t count, bool bf16)
{
    assert_true(h->count < MOST_HELD && count <= MOST);
    held *array = &h->arrays[h->count++];
    *array = (held){h->device, NULL, count, bf16};
    check_ok(sli_device_allocate(h->device, SL_MEMORY_WORKSPACE, bytes_of(array), &array->memory));
    return array;
}

static void release(holder *h)
{
    while (h->count > 0) {
        held *array = &h->arrays[--h->count];
        sli_device_release(h->device, SL_MEMORY_WORKSPACE, array->memory, bytes_of(array));
    }
}

/* Random numbers that bf16 has, in both types. */
static void draw(holder *h, int64_t count, held **f32, held **bf16)
{
    float values[MOST];
    uint16_t rounded[MOST];
    for (int64_t i = 0; i < count; i++) {
        rounded[i] = sli_bf16_from_f32(random_float(&h->random));
        values[i] = sli_f32_from_bf16(rounded[i]);
    }
    *f32 = hold(h, count, false);
    check_ok(sli_device_write(h->device, (*f32)->memory, values, bytes_of(*f32)));
    if (!bf16)
        return;
    *bf16 = hold(h, count, true);
    check_ok(sli_device_write(h->device, (*bf16)->memory, rounded, bytes_of(*bf16)));
}

/* The distance of the bf16 array from the f32 one, relative to the latter's norm. */
static double distance(const held *bf16, const held *f32)
{
    uint16_t rounded[MOST];
    float exact[MOST];
    double squares = 0, differences = 0;
    check_ok(sli_device_read(bf16->device, rounded, bf16->memory, bytes_of(bf16)));
    check_ok(sli_device_read(f32->device, exact, f32->memory, bytes_of(f32)));
    for (int64_t i = 0; i < f32->count; i++) {
        double difference = (double)sli_f32_from_bf16(rounded[i]) - exact[i];
        squares += (double)exact[i] * exact[i];
        differences += difference * difference;
    }
    return sqrt(differences / squares);
}

static bool are_equal(const held *one, const held *other)
{
    float values[2][MOST];
    check_ok(sli_device_read(one->device, values[0], one->memory, bytes_of(one)));
    check_ok(sli_device_read(other->device, values[1], other->memory, bytes_of(other)));
    return memcmp(values[0], values[1], bytes_of(one)) == 0;
}

/* Sums over rows, in f32, of rounded numbers and of exact ones. */
static void check_sums_are_near(const held *of_rounded, const held *of_exact)
{
    float rounded[WIDTH], exact[WIDTH];
    check_ok(sli_device_read(of_rounded->device, rounded, of_rounded->memory, sizeof rounded));
    check_ok(sli_device_read(of_exact->device, exact, of_exact->memory, sizeof exact));
    for (int i = 0; i < WIDTH; i++)
        assert_float_equal(rounded[i], exact[i], 0.05);
}

/* Rounding is off by at most 2^-9, by less on average; what follows rounded numbers, by some of it.
 */
static const double ROUNDED = 0x1p-9, FOLLOWS = 0x1p-6;

static const sli_dropout dropout = {.p = 0.25f, .rows_per_sample = ROWS / 2};

static void check_attention(holder *h, int64_t key_heads)
{
    int64_t count = ROWS * (HEAD_COUNT + 2 * key_heads) * HEAD_WIDTH;
    held *qkv, *qkv_bf16, *grad_out, *sums = hold(h, ROWS * HEAD_COUNT, false);
    draw(h, count, &qkv, &qkv_bf16);
    draw(h, ROWS * WIDTH, &grad_out, NULL);
    held *out = hold(h, ROWS * WIDTH, false), *out_bf16 = hold(h, ROWS * WIDTH, true);
    held *grad = hold(h, count, false), *grad_bf16 = hold(h, count, true);
    held *exact = hold(h, count, false);
    sli_dropout of_probabilities = {.p = 0.25f, .rows_per_sample = HEAD_COUNT * ROWS / 2};
    sli_attention a = {.samples = 2,
                       .positions = ROWS / 2,
                       .heads = HEAD_COUNT,
                       .head_width = HEAD_WIDTH,
                       .key_heads = key_heads,
                       .causal = true,
                       .bf16 = true,
                       .qkv = qkv->memory,
                       .out = out->memory,
                       .dropout = of_probabilities,
                       .log_sum_exp = sums->memory};
    check_ok(sli_device_attention(h->device, &a));
    a.qkv = NULL;
    a.out = NULL;
    a.qkv_bf16 = qkv_bf16->memory;
    a.out_bf16 = out_bf16->memory;
    check_ok(sli_device_attention(h->device, &a));
    assert_true(distance(out_bf16, out) < ROUNDED);
    sli_attention_backward b = {.samples = 2,
                                .positions = ROWS / 2,
                                .heads = HEAD_COUNT,
                                .head_width = HEAD_WIDTH,
                                .key_heads = key_heads,
                                .causal = true,
                                .bf16 = true,
                                .qkv = qkv->memory,
                                .out = out->memory,
                                .log_sum_exp = sums->memory,
                                .dropout = of_probabilities,
                                .grad_out = grad_out->memory,
                                .grad_qkv = grad->memory};
    check_ok(sli_device_attention_backward(h->device, &b));
    sli_attention_backward unrounded = b;
    unrounded.bf16 = false;
    unrounded.grad_qkv = exact->memory;
    check_ok(sli_device_attention_backward(h->device, &unrounded));
    assert_false(are_equal(grad, exact)); /* whose probabilities are rounded */
    b.qkv = NULL;
    b.out = NULL;
    b.grad_qkv = NULL;
    b.qkv_bf16 = qkv_bf16->memory;
    b.out_bf16 = out_bf16->memory;
    b.grad_qkv_bf16 = grad_bf16->memory;
    check_ok(sli_device_attention_backward(h->device, &b));
    assert_true(distance(grad_bf16, grad) < FOLLOWS);
}

static void check_own_keys(holder *h)
{
    check_attention(h, HEAD_COUNT);
}

static void check_shared_keys(holder *h)
{
    check_attention(h, 1);
}

static void check_norm_of(holder *h, bool rms)
{
    held *x, *residual, *weight, *grad_out, *normalized, *unused;
    draw(h, ROWS * WIDTH, &x, NULL);
    draw(h, ROWS * WIDTH, &residual, NULL);
    draw(h, WIDTH, &weight, NULL);
    draw(h, ROWS * WIDTH, &grad_out, NULL);
    draw(h, ROWS * WIDTH, &unused, &normalized); /* room for both types */
    held *out = hold(h, ROWS * WIDTH, false), *rstd = hold(h, ROWS, false);
    held *grad_sum = hold(h, ROWS * WIDTH, false);
    held *of_weight = hold(h, WIDTH, false), *of_rounded = hold(h, WIDTH, false);
    held *grad_x = hold(h, ROWS * WIDTH, false), *grad_x_bf16 = hold(h, ROWS * WIDTH, true);
    sli_add_norm a = {.rows = ROWS,
                      .width = WIDTH,
                      .x = x->memory,
                      .residual = residual->memory,
                      .dropout = dropout,
                      .out = out->memory,
                      .rms = rms,
                      .weight = weight->memory,
                      .bias = rms ? NULL : weight->memory,
                      .eps = 1e-5f,
                      .normalized = unused->memory,
                      .rstd = rstd->memory};
    check_ok(sli_device_add_norm(h->device, &a));
    a.normalized = NULL;
    a.normalized_bf16 = normalized->memory;
    check_ok(sli_device_add_norm(h->device, &a));
    assert_true(distance(normalized, unused) < ROUNDED);
    sli_add_norm_backward b = {.rows = ROWS,
                               .width = WIDTH,
                               .grad_out = grad_out->memory,
                               .normalized = unused->memory,
                               .rstd = rstd->memory,
                               .rms = rms,
                               .weight = weight->memory,
                               .dropout = dropout,
                               .grad_sum = grad_sum->memory,
                               .grad_x = grad_x->memory,
                               .grad_weight = of_weight->memory,
                               .grad_bias = rms ? NULL : out->memory};
    check_ok(sli_device_add_norm_backward(h->device, &b));
    b.normalized = NULL;
    b.grad_x = NULL;
    b.normalized_bf16 = normalized->memory;
    b.grad_x_bf16 = grad_x_bf16->memory;
    b.grad_weight = of_rounded->memory;
    check_ok(sli_device_add_norm_backward(h->device, &b));
    assert_true(distance(grad_x_bf16, grad_x) < FOLLOWS);
    check_sums_are_near(of_rounded, of_weight);
}

static void check_layer_norm(holder *h)
{
    check_norm_of(h, false);
}

static void check_rms_norm(holder *h)
{
    check_norm_of(h, true);
}

/* With and without what cuBLASLt can do in the same pass. */
static void check_product(holder *h, sli_activation activation, bool drops)
{
    held *unused, *a, *b, *bias;
    draw(h, ROWS * WIDTH, &unused, &a);
    draw(h, WIDTH * WIDTH, &unused, &b);
    draw(h, WIDTH, &bias, NULL);
    held *c = hold(h, ROWS * WIDTH, false), *room = hold(h, ROWS * WIDTH, false);
    held *c_bf16 = hold(h, ROWS * WIDTH, true);
    sli_gemm g = {.bf16 = true,
                  .m = ROWS,
                  .n = WIDTH,
                  .k = WIDTH,
                  .a = a->memory,
                  .lda = WIDTH,
                  .b = b->memory,
                  .ldb = WIDTH,
                  .transpose_b = true,
                  .c = c->memory,
                  .ldc = WIDTH,
                  .bias = bias->memory,
                  .activation = activation};
    if (drops)
        g.dropout = dropout;
    check_ok(sli_device_gemm(h->device, &g));
    g.c = room->memory;
    g.c_bf16 = c_bf16->memory;
    check_ok(sli_device_gemm(h->device, &g));
    assert_true(distance(c_bf16, c) < ROUNDED);
}

static void check_epilogue_backward(holder *h)
{
    held *grad, *saved, *saved_bf16, *sums = hold(h, WIDTH, false);
    held *result = hold(h, ROWS * WIDTH, true);
    draw(h, ROWS * WIDTH, &grad, NULL);
    draw(h, ROWS * WIDTH, &saved, &saved_bf16);
    sli_epilogue_backward e = {.rows = ROWS,
                               .columns = WIDTH,
                               .ld = WIDTH,
                               .grad = grad->memory,
                               .saved_bf16 = saved_bf16->memory,
                               .activation = SLI_ACTIVATION_RELU,
                               .dropout = dropout,
                               .result_bf16 = result->memory,
                               .grad_bias = sums->memory};
    check_ok(sli_device_epilogue_backward(h->device, &e));
    e.saved_bf16 = NULL;
    e.saved = saved->memory;
    e.result_bf16 = NULL;
    check_ok(sli_device_epilogue_backward(h->device, &e)); /* in place */
    assert_true(distance(result, grad) < ROUNDED);
    held *sums_of_rounded = hold(h, WIDTH, false);
    e = (sli_epilogue_backward){.rows = ROWS,
                                .columns = WIDTH,
                                .ld = WIDTH,
                                .grad_bf16 = result->memory,
                                .grad_bias = sums_of_rounded->memory};
    check_ok(sli_device_epilogue_backward(h->device, &e));
    check_sums_are_near(sums_of_rounded, sums);
}

static void bf16_matrices_hold_the_rounded_results(void **state)
{
    const lab *all = *state;
    int checked = 0;
    for (int f = 0; f < all->count; f++) {
        holder h = {.device = all->families[f].members[0], .random = {.state = all->seed}};
        if (!sli_device_stores_bf16(h.device))
            continue;
        void (*const checks[])(holder *) = {check_own_keys, check_shared_keys, check_layer_norm,
                                            check_rms_norm, check_epilogue_backward};
        for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
            checks[i](&h);
            release(&h);
        }
        for (int activation = SLI_ACTIVATION_NONE; activation <= SLI_ACTIVATION_GELU_TANH;
             activation++)
            for (int drops = 0; drops < 2; drops++) {
                check_product(&h, (sli_activation)activation, drops);
                release(&h);
            }
        checked++;
    }
    if (checked == 0)
        print_message("no device here stores bf16\n");
}

static void other_devices_refuse_bf16_matrices(void **state)
{
    SCOPED(sl_device) *device = NULL;
    uint16_t matrix[8 * 3] = {0};
    float sum;
    (void)state;
    check_ok(sl_device_create_cpu(1, &device));
    sli_attention a = {.samples = 1,
                       .positions = 1,
                       .heads = 1,
                       .head_width = 8,
                       .bf16 = true,
                       .qkv_bf16 = matrix,
                       .out_bf16 = matrix,
                       .log_sum_exp = &sum};
    check_error(sli_device_attention(device, &a), SL_ERR_INVALID, "matrices in f32");
}

int stored_bf16_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_matrices_hold_the_rounded_results),
        cmocka_unit_test(other_devices_refuse_bf16_matrices),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
