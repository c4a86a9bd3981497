/* Replicas train as one that has all their rows, and agree in every number, to the bit. */
#include "plans.h"
#include "small_run.h"

#include "support/replicas.h"
#include "train/loop/run.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST_REPLICAS = 4, MOST_RANKS = 9 };

static small_record records[MOST_RANKS];

/* Runs options->replicas replicas (0: 1); what each reported is in `records`. */
static sl_status run_replicas(const sl_train_options *options)
{
    sl_reporter reporters[MOST_REPLICAS];
    sl_run_result result;
    int count = options->replicas ? options->replicas : 1;
    for (int r = 0; r < count; r++) {
        reporters[r] = small_reporter(&records[r]);
        reporters[r].rank = r;
    }
    return sl_train_run(options, reporters, count, &result);
}

static void check_bits(double one, double other, const char *what, int index)
{
    if (memcmp(&one, &other, sizeof one) != 0)
        fail_msg("%s %d is %.17g and %.17g", what, index, one, other);
}

/* The numbers that follow from averaged gradients and losses. */
static void check_same_record(const small_record *one, const small_record *other)
{
    assert_int_equal(one->step_count, other->step_count);
    assert_int_equal(one->eval_count, other->eval_count);
    for (int i = 0; i < one->step_count; i++) {
        check_bits(one->steps[i].loss, other->steps[i].loss, "loss of step", i);
        check_bits(one->steps[i].grad_norm, other->steps[i].grad_norm, "norm of step", i);
        check_bits(one->steps[i].lr, other->steps[i].lr, "rate of step", i);
        assert_int_equal(one->steps[i].tokens, other->steps[i].tokens);
    }
    for (int i = 0; i < one->eval_count; i++) {
        check_bits(one->evals[i].loss, other->evals[i].loss, "loss of evaluation", i);
        assert_int_equal(one->evals[i].tokens, other->evals[i].tokens);
        assert_int_equal(one->evals[i].best, other->evals[i].best);
    }
}

/* ---- What replicas report ----------------------------------------------------------------- */

static void one_replica_is_a_run_of_its_own(void **state)
{
    static small_record alone;
    sl_train_options options = small_options(*state);
    check_ok(small_run(&options, &alone));
    options.replicas = 1;
    check_ok(run_replicas(&options));
    check_same_record(&alone, &records[0]);
    for (int i = 0; i < alone.step_count; i++)
        check_bits(alone.steps[i].replica_loss, alone.steps[i].loss, "loss of step", i);
}

static void replicas_report_the_same_numbers(void **state)
{
    sl_train_options options = small_options(*state);
    options.pipeline_ranks = 2;
    options.epochs = 2;
    for (options.replicas = 2; options.replicas <= MOST_REPLICAS; options.replicas++) {
        check_ok(run_replicas(&options));
        for (int r = 0; r < options.replicas; r++) {
            assert_int_equal(records[r].started, 1);
            assert_int_equal(records[r].finished, 1);
            check_same_record(&records[0], &records[r]);
        }
        assert_int_equal(records[0].steps[0].tokens, options.replicas * 7 * 9);
        for (int i = 0; i < records[0].step_count; i++) {
            double sum = 0;
            for (int r = 0; r < options.replicas; r++)
                sum += records[r].steps[i].replica_loss;
            assert_float_equal(sum / options.replicas, records[0].steps[i].loss, 1e-12);
            assert_true(records[0].steps[i].replica_loss != records[1].steps[i].replica_loss);
        }
    }
}

/* ---- Requests ----------------------------------------------------------------------------- */

typedef struct requests {
    atomic_int asked; /* by every replica */
    int rows;         /* that have one step each */
    int saved;
} requests;

/* After the first step one of the two replicas asks for a save, the other for the times. */
static unsigned ask_after_first_step(void *context)
{
    static const unsigned flags[] = {SL_TRAIN_SAVE, SL_TRAIN_REFRESH};
    requests *r = context;
    int number = atomic_fetch_add(&r->asked, 1);
    return number < 2 ? flags[number] : SL_TRAIN_GO_ON;
}

static sl_status count_saved(void *context, const sl_checkpoint_event *event)
{
    requests *r = context;
    r->saved += event->kind == SL_CHECKPOINT_SAVED;
    return SL_OK;
}

static sl_status count_rows(void *context, const sl_run_info *info)
{
    requests *r = context;
    for (int i = 0; i < info->rank_count; i++)
        r->rows += info->ranks[i].steps == 1 && info->ranks[i].seconds[SL_TIME_FORWARD] > 0 &&
                   info->ranks[i].seconds[SL_TIME_BACKWARD] > 0;
    assert_non_null(info->slowest);
    return SL_OK;
}

static void requests_of_two_replicas_after_one_step_are_both_met(void **state)
{
    char directory[600];
    sl_run_result result;
    requests r = {0};
    scratch *dir = *state;
    const sl_reporter reporter = {.context = &r,
                                  .refreshed = count_rows,
                                  .checkpoint = count_saved};
    sl_train_options options = small_options(dir);
    snprintf(directory, sizeof directory, "%s/checkpoints", dir->directory);
    options.replicas = options.pipeline_ranks = options.max_batches = 2;
    options.checkpoints =
        (sl_save_options){.directory = directory, .request = ask_after_first_step, .context = &r};
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    scratch_remove_tree(dir, "checkpoints");
    assert_int_equal(r.rows, 4);
    assert_int_equal(r.saved, 2); /* with the end's */
}

/* The first replica's stages share a core, the second's do not. */
static void check_layouts(const sl_schedule_options *layouts)
{
    assert_non_null(layouts);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(layouts[r].ranks, 2);
        assert_int_equal(layouts[r].virtual_stages, 1);
        assert_int_equal(layouts[r].placement[1], 1);
        assert_true(layouts[r].links[0] == 0);
    }
    assert_non_null(layouts[0].cores);
    assert_int_equal(layouts[0].cores[0], layouts[0].cores[1]);
    assert_null(layouts[1].cores);
}

static sl_status check_pipeline_layouts(void *context, const sl_pipeline_info *info)
{
    int *reports = context; /* within epochs, and at their ends */
    check_layouts(info->layouts);
    assert_true(info->utilization->action_count > 0);
    reports[info->ends_epoch]++;
    return SL_OK;
}

static void timelines_come_with_each_replicas_layout(void **state)
{
    int reports[2] = {0};
    sl_run_result result;
    const sl_reporter reporter = {.context = reports, .pipeline = check_pipeline_layouts};
    sl_train_options options = small_options(*state);
    options.replicas = 2;
    char devices[128];
    int one = allowed_core(0), other = allowed_core(1);
    snprintf(devices, sizeof devices, "cpu:%d-%d,cpu:%d-%d;cpu:%d-%d,cpu:%d-%d", one, one, one, one,
             one, one, other, other);
    options.devices = devices;
    options.report_timelines = true;
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    assert_true(reports[false] >= 1); /* the first step */
    assert_int_equal(reports[true], 1);
}

static void batches_are_as_many_as_one_shard_has(void **state)
{
    sl_train_options options = small_options(*state);
    options.batch_size = 20;
    options.max_batches = 0;
    options.replicas = 3;
    check_ok(run_replicas(&options));
    sl_corpus *corpus;
    check_ok(sl_corpus_load(options.data, NULL, &corpus));
    int64_t shard = sl_corpus_tokens(corpus, SL_SPLIT_TRAIN)->count / 20 / 3;
    sl_corpus_destroy(&corpus);
    assert_int_equal(records[2].step_count, (shard - 1 + 8) / 9);
    assert_int_equal(records[2].steps[0].batches_per_epoch, records[2].step_count);
}

/* ---- One that has all rows ---------------------------------------------------------------- */

static void check_close(double one, double other, const char *what, int index)
{
    if (!(fabs(one - other) <= 1e-4 * fabs(one)))
        fail_msg("%s %d is %.9g, not %.9g", what, index, other, one);
}

/* Every replica's rows of a block, one replica after the other: [replicas * columns, T]. */
static void gather_block(const sli_run *run, int64_t block, int32_t *inputs, int32_t *targets)
{
    const sl_train_options *options = run->options;
    const sl_tokens *tokens = sl_corpus_tokens(run->corpus, SL_SPLIT_TRAIN);
    sl_batches whole, shard;
    check_ok(sl_batchify(tokens->ids, tokens->count, options->batch_size, options->bptt, &whole));
    for (int r = 0; r < options->replicas; r++) {
        check_ok(sl_batches_shard(&whole, r, options->replicas, &shard));
        int64_t count = shard.columns * sl_batches_block_length(&shard, block);
        check_ok(sl_batches_block(&shard, block, inputs + r * count, targets + r * count));
    }
}

/* One pipe's step with all rows, numbered through. */
static double train_whole(const sli_run *run, sl_pipe *pipe, sl_pipe_optimizer *optimizer, int step)
{
    enum { MOST = 4096 };
    int32_t inputs[MOST], targets[MOST];
    double loss;
    const sl_train_options *options = run->options;
    sl_shape shape = sl_shape_2d(options->replicas * options->batch_size, options->bptt);
    assert_true(sl_shape_count(&shape) <= MOST);
    SCOPED(sl_tensor) *out = NULL, *in = NULL;
    check_ok(sl_tensor_create(sl_pipe_device(pipe, 0), SL_MEMORY_WORKSPACE, SL_I32, &shape, &in));
    check_ok(sl_tensor_create(sl_pipe_device(pipe, 0), SL_MEMORY_WORKSPACE, SL_I32, &shape, &out));
    gather_block(run, step, inputs, targets);
    check_ok(sl_tensor_write(in, inputs));
    check_ok(sl_tensor_write(out, targets));
    sl_pipe_zero_grad(pipe);
    check_ok(sl_pipe_train(pipe,
                           &(sl_pipe_batch){.input = in, .targets = out, .step = (uint64_t)step},
                           &loss));
    check_ok(
        sl_pipe_optimizer_step(optimizer, sl_lr_at(&options->lr, step, 0), options->clip, NULL));
    return loss;
}

/* Replicas train as one that has all their rows: row i of replica r drops what row r * columns + i
 * of that one does. */
static void replicas_with_dropout_equal_one_with_all_their_rows(void **state)
{
    sl_train_options options = small_options(*state);
    options.model.dropout = 0.5f;
    options.lr.lr = 0.5;
    options.replicas = 3;
    check_ok(run_replicas(&options));
    SCOPED(sl_run) *run = NULL;
    sli_replica replica;
    sl_pipe_optimizer *optimizer;
    check_ok(sl_run_create(&options, NULL, NULL, NULL, 0, &run));
    sl_device *device = sl_device_list_get(run->devices.list, 0);
    check_ok(sli_replica_create(run->plan, run->task, NULL, &device, true, NULL, &replica));
    check_ok(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = replica.pipe,
                                                                   .optimizer = options.optimizer},
                                      &optimizer));
    for (int i = 0; i < records[0].step_count; i++)
        check_close(train_whole(run, replica.pipe, optimizer, i), records[0].steps[i].loss,
                    "loss of step", i);
    sl_pipe_optimizer_destroy(&optimizer);
    sli_replica_clear(&replica);
}

/* Replicas divide an evaluation's blocks: several each, none for some, or all for one.
 */
static void evaluation_has_the_bits_of_one_replicas(void **state)
{
    static small_record alone;
    scratch *dir = *state;
    sl_train_options options = small_options(dir);
    options.lr.lr = 0.5;
    options.eval_max_batches = 3;
    for (options.replicas = 2; options.replicas <= MOST_REPLICAS; options.replicas++) {
        options.save = scratch_path(dir, "model");
        check_ok(run_replicas(&options));
        int scored = 0;
        for (int r = 0; r < options.replicas; r++)
            scored += records[r].evaluated_batches;
        assert_int_equal(scored, 2 * 3);
        sl_train_options again = options;
        again.init = options.save;
        again.save = NULL;
        again.lr.lr = 0;
        again.replicas = 1;
        check_ok(small_run(&again, &alone));
        for (int i = 0; i < 2; i++) {
            check_bits(alone.evals[i].loss, records[0].evals[i].loss, "evaluation", i);
            assert_int_equal(alone.evals[i].tokens, records[0].evals[i].tokens);
        }
    }
}

/* ---- What changes nothing ----------------------------------------------------------------- */

static void gradients_of_a_run_in_bf16_are_rounded_on_request_only(void **state)
{
    double norms[2];
    sl_train_options options = small_options(*state);
    options.precision = SL_PRECISION_BF16;
    options.replicas = 2;
    check_ok(run_replicas(&options));
    norms[0] = records[0].steps[0].grad_norm;
    options.comm_precision = SL_PRECISION_BF16;
    check_ok(run_replicas(&options));
    norms[1] = records[0].steps[0].grad_norm;
    assert_true(norms[0] != norms[1]);
    assert_float_equal(norms[0], norms[1], 0.01 * norms[0]);
}

/* The second epoch's rate ruins the model: every replica goes back to the first epoch's. */
static void replicas_go_back_to_the_best_parameters(void **state)
{
    static small_record one_epoch;
    sl_train_options options = small_options(*state);
    options.replicas = 2;
    options.zero = true;
    options.optimizer.momentum = 0.5f;
    check_ok(run_replicas(&options));
    one_epoch = records[0];
    options.epochs = 2;
    options.lr.gamma = 10;
    check_ok(run_replicas(&options));
    for (int r = 0; r < 2; r++) {
        assert_true(records[r].evals[1].loss > records[r].evals[0].loss);
        check_bits(one_epoch.result.test_loss, records[r].result.test_loss, "test", r);
    }
}

/* ---- Ranks that are no threads of one run -------------------------------------------------- */

typedef struct own_run {
    sl_train_options options;
    int local_ranks; /* of each host */
    int blind;       /* a rank without the text; 0: none */
} own_run;

static sl_status run_own_rank(sl_group *group, void *arg)
{
    const own_run *r = arg;
    sl_train_options options = r->options;
    sl_run_result result;
    int rank = sl_group_rank(group);
    sl_reporter reporter = small_reporter(&records[rank]);
    reporter.rank = rank;
    if (rank > 0 && rank == r->blind)
        options.data = "/nowhere";
    return run_as_rank(&options, group, r->local_ranks, &reporter, 1, &result);
}

static void ranks_with_devices_of_their_own_give_the_same_bits(void **state)
{
    static small_record reference;
    own_run run = {.options = small_options(*state)};
    run.options.pipeline_ranks = 2;
    run.options.replicas = 4;
    check_ok(run_replicas(&run.options));
    reference = records[0];
    run.options.replicas = 0; /* as many as there are ranks */
    for (run.local_ranks = 1; run.local_ranks <= 4; run.local_ranks *= 2) {
        run.options.balance_kind = /* the first rank decides for all */
            run.local_ranks == 2 ? SL_BALANCE_AUTO : SL_BALANCE_LAYERS;
        check_ranks(run_own_rank, &run, 4);
        for (int r = 0; r < 4; r++)
            check_same_record(&reference, &records[r]);
    }
}

/* Pipes whose stages are on several ranks. One in the middle has no text. */
static void check_some_stages(scratch *dir, sl_precision precision)
{
    static const struct {
        int replicas, ranks, pipeline_ranks, shards;
        const char *schedule;
    } layouts[] = {{1, 2, 2, 1, "1f1b"},  {1, 3, 3, 3, "gpipe"}, {1, 2, 2, 3, "zb-v"},
                   {2, 4, 2, 3, "zb-h1"}, {3, 3, 2, 3, "1f1b"},  {3, 9, 3, 3, "1f1b"}};
    static small_record reference;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        own_run run = {.options = small_options(dir), .local_ranks = layouts[i].ranks};
        run.options.model.nlayers = 4;
        run.options.precision = precision;
        run.options.shards = layouts[i].shards;
        check_ok(run_replicas(&run.options));
        reference = records[0];
        run.options.replicas = layouts[i].replicas;
        run.options.pipeline_ranks = layouts[i].pipeline_ranks;
        run.options.schedule = layouts[i].schedule;
        run.options.balance_kind = /* the first rank decides for all */
            i % 2 ? SL_BALANCE_AUTO : SL_BALANCE_LAYERS;
        run.options.zero = layouts[i].replicas > 1;
        run.blind = layouts[i].pipeline_ranks == 3 ? layouts[i].ranks - 2 : 0;
        check_ranks(run_own_rank, &run, layouts[i].ranks);
        for (int r = 0; r < layouts[i].ranks; r += layouts[i].ranks / layouts[i].replicas)
            check_same_record(&reference, &records[r]);
    }
}

static void ranks_with_some_stages_give_the_same_bits(void **state)
{
    if (!IS_SANITIZED)
        check_some_stages(*state, SL_PRECISION_F32);
    check_some_stages(*state, SL_PRECISION_BF16);
}

static void ranks_that_do_not_fit_the_replicas_are_refused(void **state)
{
    own_run run = {.options = small_options(*state), .local_ranks = 2};
    run.options.replicas = 3;
    check_error(sl_spawn(run_own_rank, &run, 2, NULL), SL_ERR_INVALID,
                "2 processes cannot be 3 replicas of 1 pipeline rank: start 1 or 3");
    run.options.replicas = 2;
    run.options.pipeline_ranks = 4;
    run.options.model.nlayers = 4;
    run.options.shards = 3;
    check_error(sl_spawn(run_own_rank, &run, 6, NULL), SL_ERR_INVALID,
                "6 processes cannot be 2 replicas of 4 pipeline ranks: start 1, 2, 4 or 8");
}

/* ---- Failures ----------------------------------------------------------------------------- */

static sl_status refuse_step(void *context, const sl_step_info *step)
{
    return step->step < 3 ? SL_OK : sl_error(SL_ERR_IO, "the disk is full");
}

static void error_of_a_replica_ends_all_and_names_it(void **state)
{
    sl_run_result result;
    sl_train_options options = small_options(*state);
    options.replicas = 3;
    options.pipeline_ranks = 2;
    for (int failing = 0; failing < 3; failing++) {
        sl_reporter reporters[4] = {{.step = refuse_step, .rank = failing}};
        for (int r = 0; r < 3; r++) {
            reporters[1 + r] = small_reporter(&records[r]);
            reporters[1 + r].rank = r;
        }
        char expected[64];
        snprintf(expected, sizeof expected, "rank %d: the disk is full", failing);
        check_error(sl_train_run(&options, reporters, 4, &result), SL_ERR_IO, expected);
        for (int r = 0; r < 3; r++) {
            assert_true(records[r].step_count <= 3);
            assert_int_equal(records[r].finished, 0);
        }
        assert_int_equal(records[failing].step_count, 2);
    }
}

static void loss_that_is_no_number_ends_all_replicas(void **state)
{
    sl_train_options options = small_options(*state);
    options.replicas = 2;
    options.pipeline_ranks = 2;
    options.lr.lr = 1e30;
    options.clip = 0;
    check_error(run_replicas(&options), SL_ERR_NUMERIC, "in epoch 1, batch 2 (step 2)");
    assert_int_equal(strncmp(sl_error_text(), "rank ", 5), 0);
    assert_int_equal(records[0].step_count, 1);
    assert_int_equal(records[1].step_count, 1);
    options.allow_nan = true;
    check_ok(run_replicas(&options));
    assert_int_equal(records[1].step_count, 4);
    assert_true(!isfinite(records[1].result.test_loss));
}

static void shard_too_short_for_a_block_is_refused(void **state)
{
    sl_train_options options = small_options(*state);
    options.replicas = 2;
    options.batch_size = 40;
    options.bptt = 60;
    check_error(run_replicas(&options), SL_ERR_INVALID,
                "train.txt: 100 tokens a column in 2 shards are 50 each");
}

int replicas_tests(void)
{
#define WITH_CORPUS(test) cmocka_unit_test_setup_teardown(test, small_corpus_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(one_replica_is_a_run_of_its_own),
        WITH_CORPUS(replicas_report_the_same_numbers),
        WITH_CORPUS(requests_of_two_replicas_after_one_step_are_both_met),
        WITH_CORPUS(timelines_come_with_each_replicas_layout),
        WITH_CORPUS(batches_are_as_many_as_one_shard_has),
        WITH_CORPUS(replicas_with_dropout_equal_one_with_all_their_rows),
        WITH_CORPUS(evaluation_has_the_bits_of_one_replicas),
        WITH_CORPUS(gradients_of_a_run_in_bf16_are_rounded_on_request_only),
        WITH_CORPUS(replicas_go_back_to_the_best_parameters),
        WITH_CORPUS(ranks_with_devices_of_their_own_give_the_same_bits),
        WITH_CORPUS(ranks_with_some_stages_give_the_same_bits),
        WITH_CORPUS(ranks_that_do_not_fit_the_replicas_are_refused),
        WITH_CORPUS(error_of_a_replica_ends_all_and_names_it),
        WITH_CORPUS(loss_that_is_no_number_ends_all_replicas),
        WITH_CORPUS(shard_too_short_for_a_block_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
