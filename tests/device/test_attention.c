/* Attention of later queries alone, and of thousands of positions. */
#include "device/cases.h"
#include "support/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct device_array {
    float *at;
    size_t bytes;
} device_array;

static device_array to_device(sl_device *device, const float *values, int64_t count)
{
    device_array array = {.bytes = (size_t)count * sizeof(float)};
    void *memory;
    check_ok(sli_device_allocate(device, SL_MEMORY_WORKSPACE, array.bytes, &memory));
    array.at = memory;
    if (values)
        check_ok(sli_device_write(device, array.at, values, array.bytes));
    return array;
}

/* Reads it into `to`, which may be NULL, and releases it. */
static void from_device(sl_device *device, device_array array, float *to)
{
    if (to)
        check_ok(sli_device_read(device, to, array.at, array.bytes));
    sli_device_release(device, SL_MEMORY_WORKSPACE, array.at, array.bytes);
}

/* out [samples, positions - first_query, width]: *a has no pointers yet. */
static void attend(sl_device *device, sli_attention a, const float *qkv, int64_t qkv_count,
                   float *out, int64_t out_count)
{
    device_array in = to_device(device, qkv, qkv_count), to = to_device(device, NULL, out_count);
    a.qkv = in.at;
    a.out = to.at;
    check_ok(sli_device_attention(device, &a));
    from_device(device, in, NULL);
    from_device(device, to, out);
}

/* Of qkv [samples, room, row]: the last `columns` of each row, and the rows from `first` to
 * `positions` - 1 of each sample. */
static void take_apart(const sli_attention *a, const float *qkv, int64_t row, int64_t columns,
                       float *queries, float *kv)
{
    int64_t count = a->positions - a->first_query;
    for (int64_t s = 0; s < a->samples; s++) {
        const float *sample = qkv + s * a->room * row;
        memcpy(queries + s * count * row, sample + a->first_query * row,
               (size_t)(count * row) * sizeof *queries);
        for (int64_t t = 0; t < a->room; t++)
            memcpy(kv + (s * a->room + t) * columns, sample + (t + 1) * row - columns,
                   (size_t)columns * sizeof *kv);
    }
}

/* The same with keys and values apart from the queries' rows, where the device takes them. */
static void check_keys_apart(sl_device *device, sli_attention a, const float *qkv,
                             const float *expected)
{
    int64_t columns = 2 * a.key_heads * a.head_width, width = a.heads * a.head_width;
    int64_t row = width + columns, queries = a.samples * (a.positions - a.first_query);
    float *rows = malloc((size_t)(queries * row) * sizeof *rows);
    float *kv = malloc((size_t)(a.samples * a.room * columns) * sizeof *kv);
    float *out = malloc((size_t)(queries * width) * sizeof *out);
    assert_true(rows && kv && out);
    take_apart(&a, qkv, row, columns, rows, kv);
    device_array in = to_device(device, rows, queries * row);
    device_array keys = to_device(device, kv, a.samples * a.room * columns);
    device_array to = to_device(device, NULL, queries * width);
    a.qkv = in.at;
    a.kv = keys.at;
    a.out = to.at;
    if (sli_device_takes_keys(device)) {
        check_ok(sli_device_attention(device, &a));
        check_ok(sli_device_read(device, out, to.at, to.bytes));
        for (int64_t i = 0; i < queries * width; i++)
            assert_float_equal(out[i], expected[i], 2e-6);
    } else {
        check_error(sli_device_attention(device, &a), SL_ERR_INVALID, "keys and values in qkv");
    }
    from_device(device, in, NULL);
    from_device(device, keys, NULL);
    from_device(device, to, NULL);
    free(rows);
    free(kv);
    free(out);
}

/* With room behind the positions of each sample. */
static void check_later_queries(sl_device *device, int64_t key_heads, int64_t positions,
                                int64_t first)
{
    enum { SAMPLES = 2, COUNT = 4, HEAD_WIDTH = 16, WIDTH = COUNT * HEAD_WIDTH, MORE = 3 };
    int64_t row = (COUNT + 2 * key_heads) * HEAD_WIDTH, sample = positions * row;
    int64_t room = positions + MORE, queries = positions - first, count = SAMPLES * room * row;
    float *qkv = malloc((size_t)count * sizeof *qkv), *dense = malloc((size_t)count * sizeof *qkv);
    float *all = malloc((size_t)count * sizeof *all), *later = malloc((size_t)count * sizeof *all);
    random_source random = {.state = 1};
    assert_true(qkv && dense && all && later);
    for (int64_t i = 0; i < count; i++)
        qkv[i] = random_float(&random);
    for (int64_t s = 0; s < SAMPLES; s++)
        memcpy(dense + s * sample, qkv + s * room * row, (size_t)sample * sizeof *qkv);
    sli_attention a = {.samples = SAMPLES,
                       .positions = positions,
                       .heads = COUNT,
                       .head_width = HEAD_WIDTH,
                       .key_heads = key_heads,
                       .causal = true};
    attend(device, a, dense, SAMPLES * sample, all, SAMPLES * positions * WIDTH);
    a.first_query = first;
    a.room = room;
    attend(device, a, qkv, count, later, SAMPLES * queries * WIDTH);
    for (int64_t s = 0; s < SAMPLES; s++)
        for (int64_t i = 0; i < queries * WIDTH; i++)
            assert_float_equal(later[s * queries * WIDTH + i],
                               all[(s * positions + first) * WIDTH + i], 2e-6);
    check_keys_apart(device, a, qkv, later);
    free(qkv);
    free(dense);
    free(all);
    free(later);
}

static void later_queries_attend_as_they_do_among_all(void **state)
{
    static const int64_t cases[][2] = {{1, 0}, {40, 0}, {40, 39}, {64, 5}, {65, 64}, {200, 130}};
    const lab *every = *state;
    for (int f = 0; f < every->count; f++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int64_t key_heads = 1; key_heads <= 4; key_heads *= 2)
                check_later_queries(every->families[f].members[0], key_heads, cases[i][0],
                                    cases[i][1]);
}

static void key_heads_divide_the_heads(void **state)
{
    const lab *every = *state;
    sl_device *device = every->families[0].members[0];
    float row[6 * 8] = {0};
    static const int64_t refused[] = {-1, 3, 8};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        sli_attention a = {.samples = 1,
                           .positions = 1,
                           .heads = 4,
                           .head_width = 8,
                           .key_heads = refused[i],
                           .qkv = row,
                           .out = row};
        check_error(sli_device_attention(device, &a), SL_ERR_INVALID, "key_heads");
        sli_attention_backward b = {.samples = 1,
                                    .positions = 1,
                                    .heads = 4,
                                    .head_width = 8,
                                    .key_heads = refused[i],
                                    .qkv = row,
                                    .out = row,
                                    .log_sum_exp = row,
                                    .grad_out = row,
                                    .grad_qkv = row};
        check_error(sli_device_attention_backward(device, &b), SL_ERR_INVALID, "key_heads");
    }
}

enum { LARGE_WIDTH = 12, LARGE_QKV = 3 * LARGE_WIDTH, LARGE_MOST = 100 };

static void check_large_scores(sl_device *device, int64_t positions)
{
    float qkv[LARGE_MOST * LARGE_QKV], out[LARGE_MOST * LARGE_WIDTH];
    float grad_out[LARGE_MOST * LARGE_WIDTH], grad_qkv[LARGE_MOST * LARGE_QKV];
    for (int64_t t = 0; t < positions; t++)
        for (int i = 0; i < LARGE_WIDTH; i++) {
            qkv[t * LARGE_QKV + i] = 1e6f + 1e3f * (float)t;
            qkv[t * LARGE_QKV + LARGE_WIDTH + i] = 1e6f + 3e4f * (float)t;
            qkv[t * LARGE_QKV + 2 * LARGE_WIDTH + i] = (float)(t + 1);
            grad_out[t * LARGE_WIDTH + i] = (float)((t + i) % 5 - 1);
        }
    device_array in = to_device(device, qkv, positions * LARGE_QKV);
    device_array result = to_device(device, NULL, positions * LARGE_WIDTH);
    device_array log_sum_exp = to_device(device, NULL, positions);
    device_array grad = to_device(device, grad_out, positions * LARGE_WIDTH);
    device_array grad_in = to_device(device, NULL, positions * LARGE_QKV);
    check_ok(sli_device_attention(device, &(sli_attention){.samples = 1,
                                                           .positions = positions,
                                                           .heads = 1,
                                                           .head_width = LARGE_WIDTH,
                                                           .causal = true,
                                                           .qkv = in.at,
                                                           .out = result.at,
                                                           .log_sum_exp = log_sum_exp.at}));
    sli_attention_backward backward = {.samples = 1,
                                       .positions = positions,
                                       .heads = 1,
                                       .head_width = LARGE_WIDTH,
                                       .causal = true,
                                       .qkv = in.at,
                                       .out = result.at,
                                       .log_sum_exp = log_sum_exp.at,
                                       .grad_out = grad.at,
                                       .grad_qkv = grad_in.at};
    check_ok(sli_device_attention_backward(device, &backward));
    from_device(device, in, NULL);
    from_device(device, result, out);
    from_device(device, log_sum_exp, NULL);
    from_device(device, grad, NULL);
    from_device(device, grad_in, grad_qkv);
    for (int64_t i = 0; i < positions * LARGE_WIDTH; i++) {
        int64_t t = i / LARGE_WIDTH, v = t * LARGE_QKV + 2 * LARGE_WIDTH + i % LARGE_WIDTH;
        assert_true(out[i] == (float)(t + 1));
        assert_true(grad_qkv[v] == grad_out[i]);
        assert_true(grad_qkv[v - LARGE_WIDTH] == 0 && grad_qkv[v - 2 * LARGE_WIDTH] == 0);
    }
}

/* Scores of 10^13: the rounding of their products alone would pass e's largest exponent. Each query
 * sees only the last key that the mask leaves it, and only that key's value gets a gradient. */
static void large_scores_choose_the_key_of_the_largest(void **state)
{
    const lab *every = *state;
    for (int f = 0; f < every->count; f++) {
        check_large_scores(every->families[f].members[0], 5);
        check_large_scores(every->families[f].members[0], LARGE_MOST);
    }
}

/* ---- Thousands of positions --------------------------------------------------------------- */

/* Queries and keys are of a few kinds, so that sums over positions are sums over kinds: the
 * reference takes a time that grows with the positions, not with their square. All elements are
 * numbers that bf16 has. */
enum { WIDTH = 4, QKV = 3 * WIDTH, KINDS = 5 };

typedef struct sequence {
    int64_t positions;
    int *query_kinds, *key_kinds;         /* [positions] */
    float *qkv, *grad_out;                /* [positions, QKV], [positions, WIDTH] */
    double *out, *log_sum_exp, *grad_qkv; /* what attention gives */
    double queries[KINDS][WIDTH], keys[KINDS][WIDTH];
    double weights[KINDS][KINDS]; /* e^score of a query's kind and a key's */
} sequence;

static float draw_value(random_source *random)
{
    return (float)(random_below(random, 33) - 12) / 8;
}

static void draw_kinds(sequence *s, random_source *random)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int l = 0; l < WIDTH; l++) {
            s->queries[kind][l] = draw_value(random);
            s->keys[kind][l] = draw_value(random);
        }
    for (int query = 0; query < KINDS; query++)
        for (int key = 0; key < KINDS; key++) {
            double score = 0;
            for (int l = 0; l < WIDTH; l++)
                score += s->queries[query][l] * s->keys[key][l] / sqrt(WIDTH);
            s->weights[query][key] = exp(score);
        }
}

static void draw_positions(sequence *s, random_source *random)
{
    for (int64_t i = 0; i < s->positions; i++) {
        int query = s->query_kinds[i] = (int)random_below(random, KINDS);
        int key = s->key_kinds[i] = (int)random_below(random, KINDS);
        for (int l = 0; l < WIDTH; l++) {
            s->qkv[i * QKV + l] = (float)s->queries[query][l];
            s->qkv[i * QKV + WIDTH + l] = (float)s->keys[key][l];
            s->qkv[i * QKV + 2 * WIDTH + l] = draw_value(random);
            s->grad_out[i * WIDTH + l] = draw_value(random);
        }
    }
}

/* Row i of `out` and of the gradient of q; `counts` and `sums` are of the keys up to i and of their
 * values, by kinds. */
static void compute_query(sequence *s, int64_t i, const double *counts, double (*sums)[WIDTH])
{
    const double *weights = s->weights[s->query_kinds[i]];
    const float *grad = s->grad_out + i * WIDTH;
    double total = 0, inner = 0, *out = s->out + i * WIDTH;
    for (int key = 0; key < KINDS; key++)
        total += weights[key] * counts[key];
    s->log_sum_exp[i] = log(total) * sqrt(WIDTH);
    for (int key = 0; key < KINDS; key++)
        for (int l = 0; l < WIDTH; l++) {
            out[l] += weights[key] * sums[key][l] / total;
            inner += weights[key] * sums[key][l] / total * grad[l];
        }
    for (int key = 0; key < KINDS; key++) {
        double grad_scores = -inner * counts[key];
        for (int l = 0; l < WIDTH; l++)
            grad_scores += grad[l] * sums[key][l];
        grad_scores *= weights[key] / total / sqrt(WIDTH);
        for (int l = 0; l < WIDTH; l++)
            s->grad_qkv[i * QKV + l] += grad_scores * s->keys[key][l];
    }
}

static void compute_queries(sequence *s)
{
    double counts[KINDS] = {0}, sums[KINDS][WIDTH] = {{0}};
    for (int64_t i = 0; i < s->positions; i++) {
        counts[s->key_kinds[i]]++;
        for (int l = 0; l < WIDTH; l++)
            sums[s->key_kinds[i]][l] += s->qkv[i * QKV + 2 * WIDTH + l];
        compute_query(s, i, counts, sums);
    }
}

/* Row j of the gradients of k and v. By the kinds of the queries from j on: sums of the gradients
 * of `out` by the totals of the weights, and of their products with `out`. */
static void compute_key(sequence *s, int64_t j, double (*grads)[WIDTH], const double *inner)
{
    const float *value = s->qkv + j * QKV + 2 * WIDTH;
    double *grad_key = s->grad_qkv + j * QKV + WIDTH, *grad_value = grad_key + WIDTH;
    for (int query = 0; query < KINDS; query++) {
        double weight = s->weights[query][s->key_kinds[j]], grad_scores = -inner[query];
        for (int l = 0; l < WIDTH; l++) {
            grad_scores += grads[query][l] * value[l];
            grad_value[l] += weight * grads[query][l];
        }
        for (int l = 0; l < WIDTH; l++)
            grad_key[l] += weight * grad_scores / sqrt(WIDTH) * s->queries[query][l];
    }
}

static void compute_keys(sequence *s)
{
    double grads[KINDS][WIDTH] = {{0}}, inner[KINDS] = {0};
    for (int64_t i = s->positions - 1; i >= 0; i--) {
        int kind = s->query_kinds[i];
        for (int l = 0; l < WIDTH; l++) {
            double grad = s->grad_out[i * WIDTH + l] / exp(s->log_sum_exp[i] / sqrt(WIDTH));
            grads[kind][l] += grad;
            inner[kind] += grad * s->out[i * WIDTH + l];
        }
        compute_key(s, i, grads, inner);
    }
}

static sequence create_sequence(int64_t positions)
{
    size_t count = (size_t)positions;
    random_source random = {.state = 1};
    sequence s = {.positions = positions,
                  .query_kinds = calloc(count, sizeof *s.query_kinds),
                  .key_kinds = calloc(count, sizeof *s.key_kinds),
                  .qkv = calloc(count * QKV, sizeof *s.qkv),
                  .grad_out = calloc(count * WIDTH, sizeof *s.grad_out),
                  .out = calloc(count * WIDTH, sizeof *s.out),
                  .log_sum_exp = calloc(count, sizeof *s.log_sum_exp),
                  .grad_qkv = calloc(count * QKV, sizeof *s.grad_qkv)};
    assert_true(s.query_kinds && s.key_kinds && s.qkv && s.grad_out && s.out && s.log_sum_exp &&
                s.grad_qkv);
    draw_kinds(&s, &random);
    draw_positions(&s, &random);
    compute_queries(&s);
    compute_keys(&s);
    return s;
}

static void sequence_destroy(sequence *s)
{
    void *arrays[] = {s->query_kinds, s->key_kinds,   s->qkv,     s->grad_out,
                      s->out,         s->log_sum_exp, s->grad_qkv};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
}

/* A column of BLOCK rows: single elements may cancel. */
static void check_column(const char *what, const float *got, const double *expected, int64_t rows,
                         int64_t columns, double tolerance)
{
    double squares = 0, errors = 0;
    for (int64_t at = 0; at < rows * columns; at += columns) {
        squares += expected[at] * expected[at];
        errors += (got[at] - expected[at]) * (got[at] - expected[at]);
    }
    if (!(sqrt(errors) <= tolerance * sqrt(squares)))
        fail_msg("%s: the error of a column of %d rows is %g of its size (limit %g)", what,
                 (int)rows, sqrt(errors / squares), tolerance);
}

static void check_rows(const char *what, const float *got, const double *expected, int64_t rows,
                       int64_t columns, double tolerance)
{
    enum { BLOCK = 32 };
    for (int64_t row = 0; row < rows; row += BLOCK)
        for (int64_t column = 0; column < columns; column++)
            check_column(what, got + row * columns + column, expected + row * columns + column,
                         rows - row < BLOCK ? rows - row : BLOCK, columns, tolerance);
}

static void fill_floats(op_case *c, int array, const double *values)
{
    for (int64_t i = 0; i < c->arrays[array].count; i++)
        ((float *)c->arrays[array].host)[i] = (float)values[i];
}

static op_case build_case(const sequence *s, case_kind kind, unsigned precision)
{
    op_case c;
    case_spec spec = {kind, {1, s->positions, 1, WIDTH}, WITH_CAUSAL_MASK | precision, 0, "long"};
    case_build(&spec, 1, &c);
    memcpy(c.arrays[HEADS_QKV].host, s->qkv, (size_t)(s->positions * QKV) * sizeof(float));
    if (kind == CASE_ATTENTION)
        return c;
    fill_floats(&c, HEADS_OUT, s->out);
    fill_floats(&c, HEADS_LSE, s->log_sum_exp);
    memcpy(c.arrays[HEADS_GRAD_OUT].host, s->grad_out,
           (size_t)(s->positions * WIDTH) * sizeof(float));
    return c;
}

static void check_forward(sl_device *device, const sequence *s, unsigned precision,
                          double tolerance)
{
    op_case c = build_case(s, CASE_ATTENTION, precision);
    float *out = result_of(device, &c, HEADS_OUT);
    check_rows("out", out, s->out, s->positions, WIDTH, tolerance);
    free(out);
    case_free(&c);
}

static void check_backward(sl_device *device, const sequence *s, unsigned precision,
                           double tolerance)
{
    op_case c = build_case(s, CASE_ATTENTION_BACKWARD, precision);
    float *grad_qkv = result_of(device, &c, HEADS_GRAD_QKV);
    check_rows("grad_qkv", grad_qkv, s->grad_qkv, s->positions, QKV, tolerance);
    free(grad_qkv);
    case_free(&c);
}

enum {
    SHORTER = IS_SANITIZED ? 8 : 1
}; /* so many times: sanitized kernels take about ten times as long */

/* Emulated tensor cores take several times as long: there are fewer positions. The scores are never
 * in memory together, which would take 4 bytes for each pair of positions and each head. */
static void thousands_of_positions_match_the_reference(void **state)
{
    enum { MOST_BYTES = 1 << 20, MOST_FOR_A_POSITION = 256 };
    static const struct {
        int64_t positions;
        unsigned precision;
        double out, grad; /* tolerances */
    } cases[] = {
        {4096 / SHORTER, 0, 1e-5, 2e-5},
        {2048 / SHORTER, WITH_BF16, 4e-3, 2e-2},
        {1024 / SHORTER, WITH_TF32, 5e-4, 4e-3},
    };
    const lab *all = *state;
    sl_device *device = all->families[0].members[0];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(sequence) s = create_sequence(cases[i].positions);
        sl_memory_stats memory;
        sl_device_reset_peak(device);
        check_forward(device, &s, cases[i].precision, cases[i].out);
        check_backward(device, &s, cases[i].precision, cases[i].grad);
        sl_device_memory(device, &memory);
        assert_true(memory.peak_bytes[SL_MEMORY_WORKSPACE] > 0);
        assert_true((double)memory.peak_bytes[SL_MEMORY_WORKSPACE] <
                    MOST_BYTES + MOST_FOR_A_POSITION * (double)s.positions);
    }
    if (SHORTER > 1)
        print_message("with a sanitizer, sequences are shorter by a factor of %d\n", SHORTER);
}

/* Backward has forward's products: of short rows with large scores too, the probabilities that it
 * computes again from them and log_sum_exp add up to 1. With gradients of 1, a value's gradient is
 * the sum of its probabilities. */
static void probabilities_of_backward_are_those_of_forward(void **state)
{
    enum { TOKENS = 40, COLUMNS = 64, QKV_COLUMNS = 3 * COLUMNS };
    float *qkv = malloc(sizeof(float) * TOKENS * QKV_COLUMNS),
          *grad = malloc(sizeof(float) * TOKENS * QKV_COLUMNS);
    float out[TOKENS * COLUMNS], ones[TOKENS * COLUMNS], log_sum_exp[TOKENS];
    sl_device *device;
    assert_true(qkv && grad);
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_device_set_batch_invariant(device, true));
    for (int i = 0; i < TOKENS * QKV_COLUMNS; i++)
        qkv[i] = 6 * sinf((float)(i * i % 1009));
    for (int i = 0; i < TOKENS * COLUMNS; i++)
        ones[i] = 1;
    check_ok(sli_device_attention(device, &(sli_attention){.samples = 1,
                                                           .positions = TOKENS,
                                                           .heads = 1,
                                                           .head_width = COLUMNS,
                                                           .causal = true,
                                                           .bf16 = true,
                                                           .qkv = qkv,
                                                           .out = out,
                                                           .log_sum_exp = log_sum_exp}));
    check_ok(
        sli_device_attention_backward(device, &(sli_attention_backward){.samples = 1,
                                                                        .positions = TOKENS,
                                                                        .heads = 1,
                                                                        .head_width = COLUMNS,
                                                                        .causal = true,
                                                                        .bf16 = true,
                                                                        .qkv = qkv,
                                                                        .out = out,
                                                                        .log_sum_exp = log_sum_exp,
                                                                        .grad_out = ones,
                                                                        .grad_qkv = grad}));
    double sum = 0;
    for (int i = 0; i < TOKENS; i++)
        sum += grad[i * QKV_COLUMNS + 2 * COLUMNS];
    assert_float_equal(sum, TOKENS, 0.005 * TOKENS);
    sl_device_destroy(&device);
    free(qkv);
    free(grad);
}

int attention_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probabilities_of_backward_are_those_of_forward),
        cmocka_unit_test(later_queries_attend_as_they_do_among_all),
        cmocka_unit_test(key_heads_divide_the_heads),
        cmocka_unit_test(large_scores_choose_the_key_of_the_largest),
        cmocka_unit_test(thousands_of_positions_match_the_reference),
    };
    return cmocka_run_group_tests(tests, lab_create, lab_destroy);
}
