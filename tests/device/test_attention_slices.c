/* Attention of one slice of the positions after the other, forward and backward, is that of all. */
#include "device/cases.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 2, HEAD_COUNT = 4, HEAD_WIDTH = 12, WIDTH = HEAD_COUNT * HEAD_WIDTH };

/* A tensor [SAMPLES, positions, width] in host memory, of which a device gets ranges. */
typedef struct matrix {
    int64_t positions, width;
    float *at;
} matrix;

static matrix create_matrix(int64_t positions, int64_t width, random_source *random)
{
    matrix m = {positions, width, calloc((size_t)(SAMPLES * positions * width), sizeof(float))};
    assert_non_null(m.at);
    for (int64_t i = 0; random && i < SAMPLES * positions * width; i++)
        m.at[i] = random_float(random);
    return m;
}

static void matrix_destroy(matrix *m)
{
    free(m->at);
}

/* Copies positions `first` to `end` - 1 of each sample out of m, or into it. */
static void copy_range(const matrix *m, int64_t first, int64_t end, float *dense, bool into)
{
    size_t bytes = (size_t)((end - first) * m->width) * sizeof(float);
    for (int64_t s = 0; s < SAMPLES; s++) {
        float *own = m->at + (s * m->positions + first) * m->width;
        float *other = dense + s * (end - first) * m->width;
        memcpy(into ? own : other, into ? other : own, bytes);
    }
}

typedef struct problem {
    int64_t key_heads, positions;
    float dropout;
    matrix qkv, grad_out;      /* given */
    matrix out, lse, grad_qkv; /* what comes out; lse [SAMPLES * HEAD_COUNT, positions] in rows */
} problem;

static problem create_problem(int64_t key_heads, int64_t positions, float dropout)
{
    random_source random = {.state = 3};
    int64_t row = (HEAD_COUNT + 2 * key_heads) * HEAD_WIDTH;
    return (problem){.key_heads = key_heads,
                     .positions = positions,
                     .dropout = dropout,
                     .qkv = create_matrix(positions, row, &random),
                     .grad_out = create_matrix(positions, WIDTH, &random),
                     .out = create_matrix(positions, WIDTH, NULL),
                     .lse = create_matrix(positions, HEAD_COUNT, NULL),
                     .grad_qkv = create_matrix(positions, row, NULL)};
}

static void problem_destroy(problem *p)
{
    matrix_destroy(&p->qkv);
    matrix_destroy(&p->grad_out);
    matrix_destroy(&p->out);
    matrix_destroy(&p->lse);
    matrix_destroy(&p->grad_qkv);
}

static void *allocate(sl_device *device, size_t bytes)
{
    void *memory;
    check_ok(sli_device_allocate(device, SL_MEMORY_WORKSPACE, bytes, &memory));
    return memory;
}

static void release(sl_device *device, const void *memory, size_t bytes)
{
    sli_device_release(device, SL_MEMORY_WORKSPACE, (void *)memory, bytes);
}

static size_t bytes_of(const matrix *m, int64_t positions)
{
    return (size_t)(SAMPLES * positions * m->width) * sizeof(float);
}

static sli_dropout dropout_of(const problem *p)
{
    return (sli_dropout){.p = p->dropout,
                         .key = {{5, 6}},
                         .first_sample = 7,
                         .rows_per_sample = HEAD_COUNT * p->positions};
}

static void forward_slice(sl_device *device, problem *p, int64_t first, int64_t end)
{
    size_t qkv = bytes_of(&p->qkv, p->positions), out = bytes_of(&p->out, end - first);
    size_t lse = bytes_of(&p->lse, end - first);
    float *read = malloc(out);
    void *in = allocate(device, qkv);
    sli_attention a = {.samples = SAMPLES,
                       .positions = end,
                       .first_query = first,
                       .room = p->positions,
                       .heads = HEAD_COUNT,
                       .key_heads = p->key_heads,
                       .head_width = HEAD_WIDTH,
                       .causal = true,
                       .qkv = in,
                       .dropout = dropout_of(p),
                       .out = allocate(device, out),
                       .log_sum_exp = allocate(device, lse)};
    assert_non_null(read);
    check_ok(sli_device_write(device, in, p->qkv.at, qkv));
    check_ok(sli_device_attention(device, &a));
    check_ok(sli_device_read(device, read, a.out, out));
    copy_range(&p->out, first, end, read, true);
    check_ok(sli_device_read(device, read, a.log_sum_exp, lse));
    for (int64_t row = 0; row < SAMPLES * HEAD_COUNT; row++)
        memcpy(p->lse.at + row * p->positions + first, read + row * (end - first),
               (size_t)(end - first) * sizeof(float));
    release(device, a.out, out);
    release(device, a.log_sum_exp, lse);
    release(device, in, qkv);
    free(read);
}

/* `grad_qkv` is the device's, of all positions. */
static void backward_slice(sl_device *device, problem *p, int64_t first, int64_t end, bool adds,
                           float *grad_qkv)
{
    size_t qkv = bytes_of(&p->qkv, p->positions), out = bytes_of(&p->out, end - first);
    size_t lse = bytes_of(&p->lse, end - first);
    float *dense = malloc(out);
    void *in = allocate(device, qkv), *attended = allocate(device, out);
    void *grad = allocate(device, out), *sums = allocate(device, lse);
    assert_non_null(dense);
    check_ok(sli_device_write(device, in, p->qkv.at, qkv));
    copy_range(&p->out, first, end, dense, false);
    check_ok(sli_device_write(device, attended, dense, out));
    copy_range(&p->grad_out, first, end, dense, false);
    check_ok(sli_device_write(device, grad, dense, out));
    for (int64_t row = 0; row < SAMPLES * HEAD_COUNT; row++)
        memcpy(dense + row * (end - first), p->lse.at + row * p->positions + first,
               (size_t)(end - first) * sizeof(float));
    check_ok(sli_device_write(device, sums, dense, lse));
    check_ok(
        sli_device_attention_backward(device, &(sli_attention_backward){.samples = SAMPLES,
                                                                        .positions = end,
                                                                        .first_query = first,
                                                                        .room = p->positions,
                                                                        .adds = adds,
                                                                        .heads = HEAD_COUNT,
                                                                        .key_heads = p->key_heads,
                                                                        .head_width = HEAD_WIDTH,
                                                                        .causal = true,
                                                                        .qkv = in,
                                                                        .out = attended,
                                                                        .log_sum_exp = sums,
                                                                        .dropout = dropout_of(p),
                                                                        .grad_out = grad,
                                                                        .grad_qkv = grad_qkv}));
    release(device, in, qkv);
    release(device, attended, out);
    release(device, grad, out);
    release(device, sums, lse);
    free(dense);
}

/* cuts[0 … slices]: where slices begin, and the end. */
static void run_slices(sl_device *device, problem *p, const int64_t *cuts, int slices)
{
    size_t bytes = bytes_of(&p->grad_qkv, p->positions);
    float *grad_qkv = allocate(device, bytes);
    memset(p->grad_qkv.at, 0xff, bytes); /* NaN */
    check_ok(sli_device_write(device, grad_qkv, p->grad_qkv.at, bytes));
    for (int k = 0; k < slices; k++)
        forward_slice(device, p, cuts[k], cuts[k + 1]);
    for (int k = slices - 1; k >= 0; k--)
        backward_slice(device, p, cuts[k], cuts[k + 1], k + 1 < slices, grad_qkv);
    check_ok(sli_device_read(device, p->grad_qkv.at, grad_qkv, bytes));
    release(device, grad_qkv, bytes);
}

static void check_near(const char *what, const matrix *got, const matrix *expected)
{
    for (int64_t i = 0; i < SAMPLES * got->positions * got->width; i++)
        if (!(fabsf(got->at[i] - expected->at[i]) <= 2e-5f * (1 + fabsf(expected->at[i]))))
            fail_msg("%s, element %d: %g, of all positions %g", what, (int)i, got->at[i],
                     expected->at[i]);
}

static void check_cut(sl_device *device, int64_t key_heads, float dropout, const int64_t *cuts,
                      int slices)
{
    int64_t positions = cuts[slices], all[] = {0, positions};
    SCOPED(problem) whole = create_problem(key_heads, positions, dropout);
    SCOPED(problem) sliced = create_problem(key_heads, positions, dropout);
    run_slices(device, &whole, all, 1);
    run_slices(device, &sliced, cuts, slices);
    check_near("out", &sliced.out, &whole.out);
    check_near("log_sum_exp", &sliced.lse, &whole.lse);
    check_near("grad_qkv", &sliced.grad_qkv, &whole.grad_qkv);
}

/* Slices of one position, of fewer and of more than a tile's, of tiles, and of more than the cells
 * into which backward is cut. */
static void slices_give_what_all_positions_give(void **state)
{
    static const int64_t cuts[][5] = {{0, 1, 2, 3, 4},        {0, 5, 10, 15, 20},
                                      {0, 9, 18, 27, 33},     {0, 3, 60, 64, 65},
                                      {0, 50, 100, 150, 200}, {0, 64, 128, 192, 256},
                                      {0, 100, 300, 500, 530}};
    const lab *all = *state;
    int count = 0;
    for (int f = 0; f < all->count; f++) {
        sl_device *device = all->families[f].members[0];
        if (!sli_device_takes_slices(device))
            continue;
        count++;
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
            for (int64_t key_heads = 1; key_heads <= HEAD_COUNT; key_heads *= 2) {
                check_cut(device, key_heads, 0, cuts[i], 4);
                check_cut(device, key_heads, 0.3f, cuts[i], 4);
            }
    }
    assert_true(count > 0);
}

static void devices_without_slices_refuse_them(void **state)
{
    const lab *all = *state;
    float qkv[2 * 3 * 8], out[8], lse[1], grad[2 * 3 * 8];
    sli_attention a = {.samples = 1,
                       .positions = 2,
                       .first_query = 1,
                       .heads = 1,
                       .head_width = 8,
                       .causal = true,
                       .qkv = qkv,
                       .out = out,
                       .log_sum_exp = lse};
    sli_attention_backward b = {.samples = 1,
                                .positions = 2,
                                .first_query = 1,
                                .heads = 1,
                                .head_width = 8,
                                .causal = true,
                                .qkv = qkv,
                                .out = out,
                                .log_sum_exp = lse,
                                .grad_out = out,
                                .grad_qkv = grad};
    int count = 0;
    for (int f = 0; f < all->count; f++)
        for (int m = 0; m < all->families[f].count; m++) {
            sl_device *device = all->families[f].members[m];
            if (sli_device_takes_slices(device))
                continue;
            count++;
            check_error(sli_device_attention(device, &a), SL_ERR_INVALID,
                        "all queries and dense samples");
            check_error(sli_device_attention_backward(device, &b), SL_ERR_INVALID,
                        "all queries and dense samples");
        }
    assert_true(count > 0);
}

int attention_slices_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_give_what_all_positions_give),
        cmocka_unit_test(devices_without_slices_refuse_them),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
