#include "layouts.h"
#include "tensor/tensor.h"

#include "../examples/u_net.h"
#include "check.h"
#include "core/sum_tree.h"
#include "modules.h"
#include "nn/module.h"
#include "parallel/ddp/ddp.h"
#include "pipes.h"
#include "replicas.h"
#include "rig.h"
#include "sluice/layers.h"
#include "sluice/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = RIG_WIDTH, TOKENS = 5, CLASSES = 11, STEPS = 2, MAX_ROWS = 12, MAX_SHARDS = 6 };

/* ---- What is drawn ---------------------------------------------------------------------- */

typedef struct plan {
    int layers, rows;
    bool is_language_model, is_sharded;
    bool is_decoder; /* of a family that is not the tutorials' */
    int replicas, replica, shards;
    sl_group *pipe_group, *replica_group; /* the same replica's ranks; the same stages' */
    int group_ranks[RIG_MAX_RANKS];
    sl_schedule *table;
    sl_pipe_options options;
} plan;

/* Replicas of as many ranks each, one after the other. */
static sl_status draw_replicas(sl_group *group, unsigned *seed, plan *out)
{
    int size = sl_group_size(group), rank = sl_group_rank(group);
    do
        out->replicas = test_draw(seed, 1, size);
    while (size % out->replicas != 0);
    int each = size / out->replicas;
    out->replica = rank / each;
    out->shards = test_draw(seed, out->replicas, MAX_SHARDS);
    out->is_sharded = test_draw(seed, 0, 1);
    SL_TRY(sl_group_split(group, out->replica, &out->pipe_group));
    return sl_group_split(group, rank % each, &out->replica_group);
}

/* With the same numbers on every rank. */
static sl_status draw_plan(sl_group *group, unsigned seed, plan *out)
{
    static const char *const one_stage[] = {"gpipe", "1f1b", "zb-h1"};
    static const char *const two_stages[] = {"looped-bfs", "interleaved", "zb-v"};
    SL_TRY(draw_replicas(group, &seed, out));
    plan p = *out;
    int size = sl_group_size(p.pipe_group);
    bool evenly = test_draw(&seed, 0, 1);
    int ranks = evenly ? size * test_draw(&seed, 1, RIG_MAX_RANKS / 2 / size)
                       : test_draw(&seed, size, RIG_MAX_RANKS / 2);
    int virtual_stages = test_draw(&seed, 1, 2), stages = ranks * virtual_stages;
    int choice = test_draw(&seed, 0, 3);
    p.rows = test_draw(&seed, 1, MAX_ROWS);
    p.is_language_model = test_draw(&seed, 0, 1);
    p.is_decoder = test_draw(&seed, 0, 1);
    p.layers = stages + test_draw(&seed, 0, 2);
    p.options = (sl_pipe_options){.stages = stages,
                                  .virtual_stages = virtual_stages,
                                  .chunks = test_draw(&seed, 1, 6),
                                  .accumulate = test_draw(&seed, 1, 2),
                                  .recompute = (sl_recompute)test_draw(&seed, 0, 2),
                                  .seed = seed,
                                  .first_bucket_bytes = test_draw(&seed, 1, 600),
                                  .bucket_bytes = test_draw(&seed, 1, 2000),
                                  .group = p.pipe_group};
    if (choice < 3)
        p.options.schedule = virtual_stages == 1 ? one_stage[choice] : two_stages[choice];
    else
        p.options.table = p.table = random_table(&seed, ranks, virtual_stages, p.options.chunks);
    for (int i = 0; i < ranks; i++) /* every rank of the group has some */
        p.group_ranks[i] = i < size ? size - 1 - i : test_draw(&seed, 0, size - 1);
    p.options.precision = test_draw(&seed, 0, 2) ? SL_PRECISION_F32 : SL_PRECISION_BF16;
    if (p.is_language_model && ranks <= CLASSES && test_draw(&seed, 0, 1))
        p.options.head_blocks = test_draw(&seed, ranks, CLASSES + 1);
    *out = p;
    if (!evenly)
        out->options.group_ranks = out->group_ranks;
    return SL_OK;
}

static void clear_plan(plan *p)
{
    sl_schedule_destroy(&p->table);
    sl_group_destroy(&p->pipe_group);
    sl_group_destroy(&p->replica_group);
}

static sl_model_options model_options(const plan *p)
{
    unsigned seed = (unsigned)p->options.seed;
    if (p->is_decoder)
        return draw_decoder(&seed, p->layers, CLASSES, TOKENS);
    return (sl_model_options){.ntokens = CLASSES,
                              .emsize = WIDTH,
                              .nhid = 12,
                              .nlayers = p->layers,
                              .nhead = 2,
                              .dropout = 0.2f,
                              .tie = test_draw(&seed, 0, 1)};
}

static sl_module *build_model(const plan *p)
{
    sl_module *modules[16], *model, *next;
    if (p->is_language_model) {
        sl_model_options options = model_options(p);
        check_ok(sl_transformer_lm_create(&options, &model));
        return model;
    }
    check_ok(skip_end_create("input", 0, &modules[0]));
    for (int i = 1; i < p->layers; i++)
        if (i % 2 == 1)
            check_ok(sl_linear_create(WIDTH, WIDTH, true, &modules[i]));
        else
            check_ok(sl_dropout_create(0.3f, &modules[i]));
    check_ok(create_sequential(modules, p->layers, &model));
    check_ok(append_skip_end(&model, "input", WIDTH)); /* what the first module stashes */
    check_ok(sl_sequential_append(&model, sl_linear_create(2 * WIDTH, WIDTH, true, &next), &next));
    return model;
}

static sl_loss *build_loss(const plan *p)
{
    sl_loss *loss;
    check_ok(p->is_language_model ? sl_cross_entropy_create(&loss) : sl_mse_loss_create(&loss));
    return loss;
}

static sl_tensor *build_rows(const plan *p, sl_device *device, unsigned seed)
{
    int32_t ids[MAX_ROWS * TOKENS];
    sl_shape tokens = sl_shape_2d(p->rows, TOKENS), rows = sl_shape_2d(p->rows, WIDTH);
    if (!p->is_language_model)
        return random_tensor(device, &rows, seed);
    for (int i = 0; i < p->rows * TOKENS; i++)
        ids[i] = test_draw(&seed, 0, CLASSES - 1);
    return integer_tensor(device, &tokens, ids);
}

/* ---- What is compared ------------------------------------------------------------------- */

/* What every rank gets: of its replica's shards. */
typedef struct numbers {
    double loss[STEPS][MAX_SHARDS], norm[STEPS], evaluation;
    int64_t terms;
} numbers;

/* The rows that a shard has in each step; NULL: no stage here reads them. */
typedef struct shard_rows {
    sl_tensor *input, *targets;
} shard_rows;

/* Trains on shards first … first + count - 1. */
static sl_status train_step(rig *r, int step, const shard_rows *rows, int first, int count,
                            double *losses)
{
    for (int k = first; k < first + count; k++) {
        sl_pipe_batch batch = {.input = rows[k].input,
                               .targets = rows[k].targets,
                               .step = (uint64_t)step,
                               .first_sample = 100 * step + MAX_ROWS * k};
        sl_pipe_zero_grad(r->pipe);
        SL_TRY(sl_ddp_train(r->ddp, &batch, &losses[k]));
    }
    return SL_OK;
}

static sl_status train(rig *r, const shard_rows *rows, numbers *out, sl_tensor **output)
{
    int first, count;
    sl_ddp_shards(r->ddp, &first, &count);
    for (int i = 0; i < STEPS; i++) {
        SL_TRY(train_step(r, i, rows, first, count, out->loss[i]));
        SL_TRY(sl_clip_grad_norm(r->pipe, 0.1, SL_GRAD_NORM_L2, true, &out->norm[i]));
        SL_TRY(sl_pipe_optimizer_step(r->optimizer, 0.01, 0.05, NULL));
    }
    sl_pipe_batch batch = {.input = rows[0].input, .targets = rows[0].targets};
    SL_TRY(sl_pipe_evaluate(r->pipe, &batch, &out->evaluation, &out->terms));
    return sl_pipe_forward(r->pipe, &batch, output);
}

static const sl_parameter *find_parameter(const sl_parameter_set *set, const char *name)
{
    for (int i = 0; i < sl_parameter_set_count(set); i++)
        if (strcmp(sl_parameter_name(sl_parameter_set_get(set, i)), name) == 0)
            return sl_parameter_set_get(set, i);
    return NULL;
}

static bool same_bits(const sl_tensor *a, const sl_tensor *b)
{
    return sli_tensor_bytes(a) == sli_tensor_bytes(b) &&
           memcmp(sl_tensor_data(a), sl_tensor_data(b), sli_tensor_bytes(a)) == 0;
}

/* `part`: of the whole tensor's elements from the parameter's first one on. */
static bool same_part(const sl_parameter *parameter, const sl_tensor *part, const sl_tensor *whole)
{
    size_t before = (size_t)parameter->first * sizeof(float), bytes = sli_tensor_bytes(part);
    return before + bytes <= sli_tensor_bytes(whole) &&
           memcmp(sl_tensor_data(part), (const char *)sl_tensor_data(whole) + before, bytes) == 0;
}

/* Ranks have parts of a split head. */
static sl_status compare_parameters(const rig *cut, const rig *whole)
{
    for (int s = 0; s < sl_pipe_stages(cut->pipe); s++) {
        sl_parameter_set *set = sl_pipe_parameters(cut->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            sl_parameter *mine = sl_parameter_set_get(set, i);
            const char *name = sl_parameter_name(mine);
            sl_parameter *other =
                (sl_parameter *)find_parameter(sl_pipe_parameters(whole->pipe, 0), name);
            sl_tensor *grad, *expected;
            SL_TRY(expect(same_part(mine, sl_parameter_value(mine), sl_parameter_value(other)),
                          "the same values of %s", name));
            if (sl_parameter_get_kind(mine) != SL_PARAMETER_TRAINED)
                continue;
            SL_TRY(sl_parameter_grad(mine, &grad));
            SL_TRY(sl_parameter_grad(other, &expected));
            SL_TRY(expect(same_part(mine, grad, expected), "the same gradient of %s", name));
        }
    }
    return SL_OK;
}

/* A rank's devices hold the parameters of its own stages, and its part of a split head, each in its
 * room of 64 bytes, and the value that is tied to another process's, where the head is not split:
 * no others. In bf16, also a copy of each for products. */
static sl_status check_parameter_memory(const plan *p, const rig *cut)
{
    uint64_t held = 0, expected = 0;
    int last = p->options.stages - 1;
    bool in_bf16 = p->options.precision == SL_PRECISION_BF16;
    sl_model_options model = model_options(p);
    bool has_copy = p->is_language_model && model.tie && p->options.head_blocks == 0 &&
                    sl_pipe_parameters(cut->pipe, last) && !sl_pipe_parameters(cut->pipe, 0);
    for (int i = 0; i < RIG_MAX_RANKS; i++) {
        sl_memory_stats stats = {0};
        if (cut->devices[i])
            sl_device_memory(cut->devices[i], &stats);
        held += stats.current_bytes[SL_MEMORY_PARAMETERS];
    }
    for (int s = 0; s <= last; s++) {
        const sl_parameter_set *set = sl_pipe_parameters(cut->pipe, s);
        for (int i = 0; set && i < sl_parameter_set_count(set); i++) {
            const sl_parameter *one = sl_parameter_set_get(set, i);
            size_t bytes = sli_tensor_bytes(sl_parameter_value(one));
            expected += sl_parameter_get_kind(one) == SL_PARAMETER_TRAINED
                            ? (uint64_t)sli_parameter_room(one) * sizeof(float)
                            : (bytes + 63) / 64 * 64;
            expected += in_bf16 && sli_parameter_is_in_products(one) ? bytes / 2 : 0;
        }
    }
    expected += has_copy ? (uint64_t)(CLASSES * model.emsize * (in_bf16 ? 6 : 4)) : 0;
    return expect(held == expected, "%" PRIu64 " bytes of parameters, got %" PRIu64, expected,
                  held);
}

/* A rank has the state of its own stages' parameters, under their names. */
static sl_status compare_state(const sl_checkpoint_part *got, const sl_checkpoint_part *whole)
{
    for (size_t i = 0; i < got->count; i++) {
        const sl_safetensors_item *item = &got->items[i], *other = NULL;
        for (size_t k = 0; k < whole->count; k++)
            if (strcmp(whole->items[k].name, item->name) == 0)
                other = &whole->items[k];
        size_t bytes = (size_t)sl_shape_count(&item->shape) * sl_dtype_bytes(item->dtype);
        SL_TRY(expect(other && memcmp(other->data, item->data, bytes) == 0, "the same state %s",
                      item->name));
    }
    return SL_OK;
}

/* `own` has losses of its replica's shards alone. */
static sl_status compare_numbers(const numbers *got, const numbers *whole)
{
    for (int i = 0; i < STEPS; i++) {
        SL_TRY(expect(got->norm[i] == whole->norm[i], "the norm %a, got %a", whole->norm[i],
                      got->norm[i]));
        for (int k = 0; k < MAX_SHARDS; k++)
            SL_TRY(expect(got->loss[i][k] == 0 || got->loss[i][k] == whole->loss[i][k],
                          "the loss %a, got %a", whole->loss[i][k], got->loss[i][k]));
    }
    return expect(got->evaluation == whole->evaluation && got->terms == whole->terms,
                  "the evaluation %a, got %a", whole->evaluation, got->evaluation);
}

static sl_status compare(const rig *cut, const rig *whole, const numbers *a, const numbers *b,
                         const sl_tensor *output, const sl_tensor *expected)
{
    sl_checkpoint_part state, whole_state;
    int last = sl_pipe_stages(cut->pipe) - 1;
    bool has_last = sl_pipe_parameters(cut->pipe, last) != NULL;
    SL_TRY(compare_numbers(a, b));
    SL_TRY(expect(!output == !has_last, "an output where the last stage is"));
    SL_TRY(expect(!output || same_bits(output, expected), "the same output"));
    SL_TRY(compare_parameters(cut, whole));
    SL_TRY(sl_pipe_get_state(cut->pipe, &state));
    SL_TRY(sl_pipe_get_state(whole->pipe, &whole_state));
    SL_TRY(compare_state(&state, &whole_state));
    SL_TRY(sl_pipe_optimizer_get_state(cut->optimizer, &state));
    SL_TRY(sl_pipe_optimizer_get_state(whole->optimizer, &whole_state));
    return compare_state(&state, &whole_state);
}

/* Each rank gives the tensors that its stages read, and no others. */
static sl_status train_both(const plan *p, rig *cut, rig *whole)
{
    numbers a = {0}, b = {0};
    sl_tensor *output = NULL, *expected = NULL;
    shard_rows rows[MAX_SHARDS], own_rows[MAX_SHARDS];
    unsigned seed = (unsigned)p->options.seed;
    int last = p->options.stages - 1;
    for (int k = 0; k < p->shards; k++) {
        rows[k].input = build_rows(p, whole->devices[0], seed + 2 * (unsigned)k);
        rows[k].targets = build_rows(p, whole->devices[0], seed + 2 * (unsigned)k + 1);
        own_rows[k].input = sl_pipe_parameters(cut->pipe, 0) ? rows[k].input : NULL;
        own_rows[k].targets = sl_pipe_parameters(cut->pipe, last) ? rows[k].targets : NULL;
    }
    sl_status status = train(whole, rows, &b, &expected);
    if (status == SL_OK)
        status = check_parameter_memory(p, cut);
    if (status == SL_OK)
        status = train(cut, own_rows, &a, &output);
    if (status == SL_OK)
        status = compare(cut, whole, &a, &b, output, expected);
    sl_tensor_destroy(&output);
    sl_tensor_destroy(&expected);
    for (int k = 0; k < p->shards; k++) {
        sl_tensor_destroy(&rows[k].input);
        sl_tensor_destroy(&rows[k].targets);
    }
    return status;
}

static sl_status open_replica(const plan *p, sl_pipe_options options, sl_group *replicas, rig *out)
{
    sl_training_options filled = {.pipe = options,
                                  .ddp = {.group = replicas, .shards = p->shards},
                                  .optimizer = {.kind = SL_OPTIMIZER_ADAMW},
                                  .zero = p->is_sharded};
    return rig_open(build_model(p), build_loss(p), &filled, out);
}

static sl_status check_plan(const plan *p)
{
    SCOPED(sl_group) *alone = NULL;
    SCOPED(rig) own = {0}, whole = {0};
    sl_pipe_options one = {.stages = 1,
                           .recompute = SL_RECOMPUTE_NEVER,
                           .chunks = p->options.chunks * p->options.accumulate,
                           .seed = p->options.seed,
                           .first_bucket_bytes = p->options.first_bucket_bytes,
                           .bucket_bytes = p->options.bucket_bytes,
                           .precision = p->options.precision,
                           .head_blocks = p->options.head_blocks};
    check_ok(sl_group_create_local(1, NULL, &alone));
    SL_TRY(open_replica(p, one, alone, &whole));
    SL_TRY(open_replica(p, p->options, p->replica_group, &own));
    return train_both(p, &own, &whole);
}

sl_status layout_check(sl_group *group, unsigned seed)
{
    plan p = {0};
    sl_status status = draw_plan(group, seed, &p);
    if (status == SL_OK)
        status = check_plan(&p);
    clear_plan(&p);
    return sl_error_context(status, "[seed %u, %s] ", seed,
                            sl_precision_names[p.options.precision]);
}
