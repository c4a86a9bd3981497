#include "comm/contract.h"

#include "comm/group.h"
#include "core/sum_tree.h"
#include "support/check.h"
#include "support/replicas.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* ---- Reductions --------------------------------------------------------------------------- */

static float bf16_value(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* Ranks give 2, 3, 4, then ones: PyTorch's own example, on three ranks and more. */
static sl_status reduce_each_way(sl_group *group, void *arg)
{
    int rank = sl_group_rank(group), ones = sl_group_size(group) - 3;
    const struct {
        sl_reduce_op op;
        double expected;
    } cases[] = {{SL_REDUCE_SUM, 9 + ones},
                 {SL_REDUCE_PRODUCT, 24},
                 {SL_REDUCE_MIN, ones ? 1 : 2},
                 {SL_REDUCE_MAX, 4},
                 {SL_REDUCE_AVERAGE, (9.0 + ones) / (3 + ones)}};
    static const uint16_t bf16_values[] = {0x4000, 0x4040, 0x4080, 0x3f80};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double expected = cases[i].expected, f64 = rank < 3 ? 2 + rank : 1;
        float f32 = (float)f64;
        uint16_t bf16 = bf16_values[rank < 3 ? rank : 3];
        SL_TRY(sl_group_all_reduce(group, &f32, 1, SL_F32, cases[i].op, NULL));
        SL_TRY(sl_group_all_reduce(group, &f64, 1, SL_F64, cases[i].op, NULL));
        SL_TRY(sl_group_all_reduce(group, &bf16, 1, SL_BF16, cases[i].op, NULL));
        SL_TRY(expect(fabs(f32 - expected) <= 1e-6 * expected, "the f32 result %g, got %g",
                      expected, f32));
        SL_TRY(expect(fabs(f64 - expected) <= 1e-15 * expected, "the f64 result %g, got %g",
                      expected, f64));
        SL_TRY(expect(fabs(bf16_value(bf16) - expected) <= expected / 256,
                      "the bf16 result %g, got %g", expected, bf16_value(bf16)));
        if (cases[i].op == SL_REDUCE_AVERAGE)
            continue;
        int32_t i32 = rank < 3 ? 2 + rank : 1;
        int64_t i64 = i32;
        SL_TRY(sl_group_all_reduce(group, &i32, 1, SL_I32, cases[i].op, NULL));
        SL_TRY(sl_group_all_reduce(group, &i64, 1, SL_I64, cases[i].op, NULL));
        SL_TRY(expect(i32 == (int32_t)expected, "the i32 result %g, got %d", expected, i32));
        SL_TRY(expect(i64 == (int64_t)expected, "the i64 result %g", expected));
    }
    return SL_OK;
}

enum { FLOAT_TYPES = 3 };

/* Element i is NaN on rank i alone; the others give their rank. */
static sl_status reduce_nan(sl_group *group, sl_reduce_op op, int64_t count, void *data[])
{
    static const sl_dtype types[FLOAT_TYPES] = {SL_F32, SL_F64, SL_BF16};
    int rank = sl_group_rank(group), size = sl_group_size(group);
    float *f32 = data[0];
    double *f64 = data[1];
    uint16_t *bf16 = data[2];
    for (int64_t i = 0; i < count; i++) {
        bool is_nan = i % (size + 1) == rank;
        f32[i] = is_nan ? NAN : (float)rank;
        f64[i] = f32[i];
        uint32_t wide;
        memcpy(&wide, &f32[i], sizeof wide);
        bf16[i] = (uint16_t)(wide >> 16);
    }
    for (int t = 0; t < FLOAT_TYPES; t++)
        SL_TRY(sl_group_all_reduce(group, data[t], count, types[t], op, NULL));
    for (int64_t i = 0; i < count; i++) {
        double got[FLOAT_TYPES] = {f32[i], f64[i], bf16_value(bf16[i])};
        double ordered = op == SL_REDUCE_MIN ? 0 : size - 1;
        for (int t = 0; t < FLOAT_TYPES; t++)
            SL_TRY(expect(i % (size + 1) == size ? got[t] == ordered : isnan(got[t]),
                          "element %d of type %d to be NaN where a rank gave one, got %g", (int)i,
                          t, got[t]));
    }
    return SL_OK;
}

static sl_status reduce_nan_of_any_rank(sl_group *group, void *arg)
{
    enum { MANY = 20011 }; /* more than goes at once */
    void *data[FLOAT_TYPES] = {malloc(MANY * sizeof(float)), malloc(MANY * sizeof(double)),
                               malloc(MANY * sizeof(uint16_t))};
    sl_status status = data[0] && data[1] && data[2] ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory");
    for (int op = SL_REDUCE_MIN; op <= SL_REDUCE_MAX && status == SL_OK; op++) {
        status = reduce_nan(group, (sl_reduce_op)op, 17, data);
        if (status == SL_OK)
            status = reduce_nan(group, (sl_reduce_op)op, MANY, data);
    }
    for (int t = 0; t < FLOAT_TYPES; t++)
        free(data[t]);
    return status;
}

enum {
    LONG = 200003,   /* more than MPI takes at once */
    LONGER = 3000017 /* more pieces for each rank than are under way at a time */
};

static float element(int rank, int64_t i)
{
    return (float)((i * 7919 + rank * 104729) % 1000003) * 1e-3f;
}

enum { MOST_TERMS = 9 };

/* The sum of 1 to 9 terms in the order of addition, by hand. */
static float sum_by_hand(const float *t, int terms)
{
    switch (terms) {
    case 1:
        return t[0];
    case 2:
        return t[0] + t[1];
    case 3:
        return (t[0] + t[1]) + t[2];
    case 4:
        return (t[0] + t[1]) + (t[2] + t[3]);
    case 5:
        return ((t[0] + t[1]) + (t[2] + t[3])) + t[4];
    case 6:
        return ((t[0] + t[1]) + (t[2] + t[3])) + (t[4] + t[5]);
    case 7:
        return ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + t[6]);
    case 8:
        return ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]));
    default:
        return (((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]))) + t[8];
    }
}

static sl_status check_sums(const float *data, int64_t count, int terms, float divisor)
{
    sl_status status = SL_OK;
    for (int64_t i = 0; i < count && status == SL_OK; i++) {
        float each[MOST_TERMS];
        for (int t = 0; t < terms; t++)
            each[t] = element(t, i);
        float sum = sum_by_hand(each, terms) * (1.0f / divisor);
        status = expect(memcmp(&sum, &data[i], sizeof sum) == 0,
                        "element %d of the sum of %d terms to be %.9g, got %.9g", (int)i, terms,
                        sum, data[i]);
    }
    return status;
}

static sl_status reduce_long(sl_group *group, void *arg)
{
    FREED float *data = malloc(LONGER * sizeof *data);
    if (!data)
        return sl_error(SL_ERR_MEMORY, "no memory");
    for (int64_t i = 0; i < LONGER; i++)
        data[i] = element(sl_group_rank(group), i);
    SL_TRY(sl_group_all_reduce(group, data, LONGER, SL_F32, SL_REDUCE_SUM, NULL));
    return check_sums(data, LONGER, sl_group_size(group), 1);
}

/* Each rank has neighbouring terms, added up to as few nodes as the tree allows; the result goes
 * where the last one was. */
static sl_status reduce_nodes(sl_group *group, int terms, int64_t count, float *room)
{
    int ends[SLI_SUM_TREE_MOST_NODES], rank = sl_group_rank(group), size = sl_group_size(group);
    int at = sli_sum_tree_first(terms, rank, size);
    int nodes = sli_sum_tree_nodes(at, sli_sum_tree_first(terms, rank + 1, size), terms, ends);
    const void *data[SLI_SUM_TREE_MOST_NODES];
    SL_TRY(expect(nodes <= 2 * 3 - 1, "few nodes, got %d", nodes));
    for (int n = 0; n < nodes; at = ends[n++]) {
        float *node = room + n * count;
        data[n] = node;
        for (int64_t i = 0; i < count; i++) {
            float each[MOST_TERMS];
            for (int t = at; t < ends[n]; t++)
                each[t - at] = element(t, i);
            node[i] = sum_by_hand(each, ends[n] - at);
        }
    }
    float *out = room + (nodes - 1) * count;
    SL_TRY(sli_group_all_reduce_nodes(group, data, terms, out, count, SL_F32, SL_REDUCE_AVERAGE));
    return check_sums(out, count, terms, (float)terms);
}

static sl_status reduce_more_terms_than_ranks(sl_group *group, void *arg)
{
    static const int64_t counts[] = {1, 100, 20011, LONG};
    FREED float *room = malloc(5 * LONG * sizeof *room);
    SL_TRY(room ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory"));
    for (int terms = sl_group_size(group); terms <= MOST_TERMS; terms++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            SL_TRY(reduce_nodes(group, terms, counts[c], room));
    return SL_OK;
}

/* ---- Moving data -------------------------------------------------------------------------- */

static sl_status move_around(sl_group *group, void *arg)
{
    int rank = sl_group_rank(group), size = sl_group_size(group), last = size - 1;
    int32_t own[2] = {rank, 10 * rank}, all[16], part[2], one = rank == last ? 42 : 0;
    SL_TRY(sl_group_broadcast(group, &one, 1, SL_I32, last, NULL));
    SL_TRY(expect(one == 42, "root's value"));
    SL_TRY(sl_group_all_gather(group, own, all, 2, SL_I32, NULL));
    for (int r = 0; r < size; r++)
        SL_TRY(expect(all[2 * r] == r && all[2 * r + 1] == 10 * r, "everybody's values in order"));
    SL_TRY(sl_group_scatter(group, rank == last ? all : NULL, part, 2, SL_I32, last, NULL));
    SL_TRY(expect(part[0] == rank && part[1] == 10 * rank, "the own part"));
    memset(all, 0, sizeof all);
    SL_TRY(sl_group_gather(group, part, rank == 0 ? all : NULL, 2, SL_I32, 0, NULL));
    SL_TRY(expect(rank != 0 || all[2 * last + 1] == 10 * last, "the last rank's value"));
    int32_t sum = rank, total = size * last / 2;
    SL_TRY(sl_group_reduce(group, &sum, 1, SL_I32, SL_REDUCE_SUM, last, NULL));
    SL_TRY(expect(sum == (rank == last ? total : rank), "a sum at the root alone"));
    for (int i = 0; i < size; i++)
        all[i] = rank + i;
    SL_TRY(sl_group_reduce_scatter(group, all, &sum, 1, SL_I32, SL_REDUCE_SUM, NULL));
    return expect(sum == total + size * rank, "the own part of the sum");
}

static sl_status start_many(sl_group *group, void *arg)
{
    enum { MANY = 20 };
    int size = sl_group_size(group);
    sl_work *works[MANY];
    double values[MANY], sum = sl_group_rank(group), total = size * (size - 1) / 2.0;
    for (int i = 0; i < MANY; i++) {
        values[i] = sl_group_rank(group) * (i + 1);
        SL_TRY(sl_group_all_reduce(group, &values[i], 1, SL_F64, SL_REDUCE_SUM, &works[i]));
    }
    SL_TRY(sl_group_all_reduce(group, &sum, 1, SL_F64, SL_REDUCE_SUM, NULL)); /* keeps its place */
    for (int i = MANY - 1; i >= 0; i--)
        SL_TRY(sl_work_wait(&works[i]));
    for (int i = 0; i < MANY; i++)
        SL_TRY(expect(values[i] == total * (i + 1), "each sum"));
    return expect(sum == total, "the waited-for sum");
}

/* ---- Sub-groups --------------------------------------------------------------------------- */

/* Both at once, each with its own communication thread, and the whole group meanwhile. */
static sl_status sum_in_parts(sl_group *group, sl_group *row, sl_group *column)
{
    int rank = sl_group_rank(group), size = sl_group_size(group);
    int32_t in_row = rank, in_column = rank, in_all = rank, row_sum = 0, column_sum = 0;
    sl_work *works[2];
    SL_TRY(sl_group_all_reduce(row, &in_row, 1, SL_I32, SL_REDUCE_SUM, &works[0]));
    SL_TRY(sl_group_all_reduce(column, &in_column, 1, SL_I32, SL_REDUCE_SUM, &works[1]));
    SL_TRY(sl_group_all_reduce(group, &in_all, 1, SL_I32, SL_REDUCE_SUM, NULL));
    SL_TRY(sl_work_wait(&works[0]));
    SL_TRY(sl_work_wait(&works[1]));
    for (int r = 0; r < size; r++) {
        row_sum += r / 2 == rank / 2 ? r : 0;
        column_sum += r % 2 == rank % 2 ? r : 0;
    }
    return expect(in_row == row_sum && in_column == column_sum && in_all == size * (size - 1) / 2,
                  "sums of row, column and all");
}

static sl_status split_mesh(sl_group *group, void *arg)
{
    SCOPED(sl_group) *none = NULL, *column = NULL, *row = NULL;
    int rank = sl_group_rank(group), size = sl_group_size(group); /* replicas of two stages */
    SL_TRY(sl_group_split(group, rank / 2, &row));
    SL_TRY(sl_group_split(group, rank % 2, &column));
    SL_TRY(sl_group_split(group, rank == size - 1 ? 0 : -1, &none));
    SL_TRY(expect(sl_group_rank(row) == rank % 2 && sl_group_rank(column) == rank / 2,
                  "ranks within row and column"));
    SL_TRY(expect(rank == size - 1 ? sl_group_size(none) == 1 : none == NULL, "one member"));
    return sum_in_parts(group, row, column);
}

/* A rank that has started a receive has a communication thread, the others have none. */
static sl_status split_after_started_receive(sl_group *group, void *arg)
{
    sl_group *half = NULL;
    sl_work *work = NULL;
    int32_t sent = 5, got = 0, sum = 1;
    int rank = sl_group_rank(group), size = sl_group_size(group);
    if (rank == 0)
        SL_TRY(sl_group_send(group, &sent, 1, SL_I32, 1, 3, NULL));
    if (rank == 1)
        SL_TRY(sl_group_recv(group, &got, 1, SL_I32, 0, 3, NULL, &work));
    sl_status status = sl_group_split(group, rank % 2, &half);
    if (work) {
        sl_status received = sl_work_wait(&work);
        status = status == SL_OK ? received : status;
    }
    if (status == SL_OK)
        status = sl_group_all_reduce(half, &sum, 1, SL_I32, SL_REDUCE_SUM, NULL);
    if (status == SL_OK)
        status = expect(sum == (size + 1 - rank % 2) / 2 && got == (rank == 1 ? sent : 0),
                        "%d ranks in this half and %d received, got %d and %d",
                        (size + 1 - rank % 2) / 2, rank == 1 ? sent : 0, sum, got);
    sl_group_destroy(&half);
    return status == SL_OK ? sl_group_barrier(group, NULL) : status;
}

/* ---- Messages ----------------------------------------------------------------------------- */

static sl_status exchange(sl_group *group, void *arg)
{
    int32_t a = 1, b = 2, got = 0;
    int source = -7;
    sl_work *works[2];
    if (sl_group_rank(group) > 1)
        return SL_OK;
    if (sl_group_rank(group) == 0) {
        SL_TRY(sl_group_send(group, &a, 1, SL_I32, 1, 1, &works[0]));
        SL_TRY(sl_group_send(group, &b, 1, SL_I32, 1, 2, &works[1]));
        SL_TRY(sl_work_wait(&works[0]));
        return sl_work_wait(&works[1]);
    }
    SL_TRY(sl_group_recv(group, &got, 1, SL_I32, 0, 2, NULL, NULL));
    SL_TRY(expect(got == 2, "tag 2 first"));
    SL_TRY(sl_group_recv(group, &got, 1, SL_I32, SL_ANY_RANK, 1, &source, NULL));
    return expect(got == 1 && source == 0, "tag 1 from rank 0");
}

/* A send never waits, so both may send before either receives, whatever the size. */
static sl_status exchange_large(sl_group *group, void *arg)
{
    int rank = sl_group_rank(group), size = sl_group_size(group);
    FREED float *data = malloc(2 * LONG * sizeof *data);
    if (!data)
        return sl_error(SL_ERR_MEMORY, "no memory");
    for (int64_t i = 0; i < LONG; i++)
        data[i] = element(rank, i);
    int from = (rank + size - 1) % size;
    SL_TRY(sl_group_send(group, data, LONG, SL_F32, (rank + 1) % size, 0, NULL));
    SL_TRY(sl_group_recv(group, data + LONG, LONG, SL_F32, from, 0, NULL, NULL));
    for (int64_t i = 0; i < LONG; i++)
        SL_TRY(expect(data[LONG + i] == element(from, i), "the left neighbour's data"));
    return SL_OK;
}

static sl_status receive_something_else(sl_group *group, void *arg)
{
    int32_t sent[2] = {1, 2};
    float got = 0;
    if (sl_group_rank(group) == 0)
        SL_TRY(sl_group_send(group, sent, 2, SL_I32, 1, 5, NULL));
    if (sl_group_rank(group) == 1) {
        SL_TRY(expect(sl_group_recv(group, &got, 1, SL_F32, 0, 5, NULL, NULL) == SL_ERR_INVALID,
                      "a message of another type to be refused"));
        SL_TRY(expect(strcmp(sl_error_text(), "recv from rank 0, tag 5: expected 1 x f32, got 2 x "
                                              "i32") == 0,
                      "both types in the error, got: %.150s", sl_error_text()));
    }
    return sl_group_barrier(group, NULL); /* the group goes on */
}

static sl_status wrong_arguments(sl_group *group, void *arg)
{
    int32_t x[8] = {0};
    SL_TRY(expect(sl_group_all_reduce(group, x, 1, SL_F16, SL_REDUCE_SUM, NULL) == SL_ERR_INVALID,
                  "numbers of f16 to have no sum"));
    SL_TRY(
        expect(sl_group_all_reduce(group, x, 1, SL_I32, SL_REDUCE_AVERAGE, NULL) == SL_ERR_INVALID,
               "integers to have no average"));
    SL_TRY(expect(sl_group_broadcast(group, x, 1, SL_I32, 8, NULL) == SL_ERR_INVALID,
                  "a root that is no rank to be refused"));
    SL_TRY(expect(sl_group_all_reduce(group, x, -1, SL_I32, SL_REDUCE_SUM, NULL) == SL_ERR_INVALID,
                  "a negative count to be refused"));
    return sl_group_barrier(group, NULL); /* the group goes on */
}

/* One rank gives gather, or scatter, a buffer that is wrong; all hear of it, in that call or in the
 * next, and do not wait for it. */
static sl_status wrong_buffer_of_one(sl_group *group, bool scatters, int wrong)
{
    enum { RANKS = 8 };
    int32_t own = 7, all[RANKS] = {0};
    int rank = sl_group_rank(group);
    int32_t *given = (rank == 0) != (rank == wrong) ? all : NULL;
    sl_status status = scatters ? sl_group_scatter(group, given, &own, 1, SL_I32, 0, NULL)
                                : sl_group_gather(group, &own, given, 1, SL_I32, 0, NULL);
    if (rank != wrong && status == SL_OK)
        status = sl_group_barrier(group, NULL);
    SL_TRY(expect(status == SL_ERR_INVALID, "rank %d's mistake to be everybody's error", wrong));
    return expect(strstr(sl_error_text(), wrong ? "must be NULL on rank" : "must be given on the"),
                  "the mistake to be named, got: %.150s", sl_error_text());
}

static sl_status wrong_buffers(sl_group *group, void *arg)
{
    for (int which = 0; which < 4; which++) {
        SCOPED(sl_group) *broken = NULL;
        SL_TRY(sl_group_split(group, 0, &broken));
        SL_TRY(wrong_buffer_of_one(broken, which / 2, which % 2));
    }
    return SL_OK;
}

const contract_case contract_cases[] = {
    {"all_reduce_gives_pytorchs_results", reduce_each_way, 3},
    {"minimum_and_maximum_keep_the_nan_of_any_rank", reduce_nan_of_any_rank, 1},
    {"all_reduce_adds_in_the_order_of_the_tree", reduce_long, 1},
    {"all_reduce_of_more_terms_than_ranks_adds_in_the_same_order", reduce_more_terms_than_ranks, 1},
    {"data_move_in_the_order_of_ranks", move_around, 1},
    {"started_operations_run_in_order", start_many, 1},
    {"split_gives_each_rank_its_row_and_column", split_mesh, 1},
    {"split_after_a_started_receive_of_one_rank", split_after_started_receive, 2},
    {"messages_are_matched_by_tag", exchange, 2},
    {"sends_do_not_wait_for_receivers", exchange_large, 1},
    {"message_of_another_type_is_refused", receive_something_else, 2},
    {"wrong_arguments_are_refused_and_the_group_goes_on", wrong_arguments, 1},
    {"wrong_buffer_of_one_rank_ends_the_others", wrong_buffers, 2},
    {NULL, NULL, 0}};

/* ---- Digests ------------------------------------------------------------------------------ */

typedef struct sweep {
    sl_group *group;
    uint64_t seed, digest;
    int64_t count;
    sl_dtype dtype;
    void *in, *out; /* [size * count] */
} sweep;

static uint64_t next(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Any bits, but for numbers that are none. */
static void fill(sweep *run)
{
    uint64_t state = run->seed + 1000003 * (uint64_t)sl_group_rank(run->group);
    int64_t count = run->count * sl_group_size(run->group);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = next(&state);
        double value = (double)(int64_t)bits * 0x1p-62;
        if (run->dtype == SL_F32)
            ((float *)run->in)[i] = (float)value;
        else if (run->dtype == SL_F64)
            ((double *)run->in)[i] = value;
        else if (run->dtype == SL_BF16)
            ((uint16_t *)run->in)[i] = (uint16_t)((bits & 0x80ff) | 0x3f00);
        else if (run->dtype == SL_I32)
            ((int32_t *)run->in)[i] = (int32_t)bits;
        else
            ((int64_t *)run->in)[i] = (int64_t)bits;
    }
    memcpy(run->out, run->in, (size_t)count * sl_dtype_bytes(run->dtype));
}

static void fold(sweep *run)
{
    size_t bytes = (size_t)(run->count * sl_group_size(run->group)) * sl_dtype_bytes(run->dtype);
    const char *out = run->out;
    for (size_t done = 0; done < bytes; done += sizeof(uint64_t)) { /* FNV-1a, by words */
        uint64_t word = 0;
        memcpy(&word, out + done, bytes - done < sizeof word ? bytes - done : sizeof word);
        run->digest = (run->digest ^ word) * 0x100000001b3u;
        run->digest ^= run->digest >> 29;
    }
    if (bytes > 0)
        memcpy(run->out, run->in, bytes);
}

static sl_status sweep_reductions(sweep *run)
{
    int root = sl_group_size(run->group) - 1;
    bool is_float = run->dtype != SL_I32 && run->dtype != SL_I64;
    for (int op = SL_REDUCE_SUM; op <= SL_REDUCE_MAX; op++) {
        sl_reduce_op how = (sl_reduce_op)op;
        if (how == SL_REDUCE_AVERAGE && !is_float)
            continue;
        SL_TRY(sl_group_all_reduce(run->group, run->out, run->count, run->dtype, how, NULL));
        fold(run);
        SL_TRY(sl_group_reduce(run->group, run->out, run->count, run->dtype, how, root, NULL));
        fold(run);
        SL_TRY(sl_group_reduce_scatter(run->group, run->in, run->out, run->count, run->dtype, how,
                                       NULL));
        fold(run);
    }
    return SL_OK;
}

static sl_status sweep_moves(sweep *run)
{
    sl_group *group = run->group;
    int root = sl_group_size(group) / 2;
    bool is_root = sl_group_rank(group) == root;
    SL_TRY(sl_group_broadcast(group, run->out, run->count, run->dtype, root, NULL));
    fold(run);
    SL_TRY(sl_group_all_gather(group, run->in, run->out, run->count, run->dtype, NULL));
    fold(run);
    SL_TRY(sl_group_gather(group, run->in, is_root ? run->out : NULL, run->count, run->dtype, root,
                           NULL));
    fold(run);
    SL_TRY(sl_group_scatter(group, is_root ? run->in : NULL, run->out, run->count, run->dtype, root,
                            NULL));
    fold(run);
    return SL_OK;
}

sl_status contract_digest(sl_group *group, uint64_t seed, uint64_t *digest)
{
    static const int64_t counts[] = {0, 1, 63, 1000, 1025, 5003, 70001, 300007};
    static const sl_dtype dtypes[] = {SL_F32, SL_F64, SL_BF16, SL_I32, SL_I64};
    size_t most = (size_t)(300007 * sl_group_size(group)) * sizeof(double);
    sweep run = {.group = group, .seed = seed, .in = malloc(most), .out = malloc(most)};
    sl_status status = run.in && run.out ? SL_OK : sl_error(SL_ERR_MEMORY, "no memory");
    for (size_t c = 0; c < sizeof counts / sizeof *counts && status == SL_OK; c++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes && status == SL_OK; d++) {
            run.count = counts[c];
            run.dtype = dtypes[d];
            if (run.count > 100000 && run.dtype != SL_F32 && run.dtype != SL_BF16)
                continue; /* as many elements, no other path */
            run.seed = next(&seed);
            fill(&run);
            status = sweep_reductions(&run);
            if (status == SL_OK)
                status = sweep_moves(&run);
        }
    free(run.in);
    free(run.out);
    *digest = run.digest;
    return status;
}
