/* What all devices of a host hold, by arithmetic, against what they held in runs. */
#include "plans.h"
#include "small_run.h"

enum { MOST_REPLICAS = 3 };

/* The most that each stage's device of a replica has had, in all runs so far. */
typedef struct peaks {
    int64_t total[SL_MAX_STAGES], reserved[SL_MAX_STAGES];
} peaks;

static int64_t larger(int64_t a, size_t b)
{
    return a > (int64_t)b ? a : (int64_t)b;
}

static sl_status note_peaks(void *context, const sl_run_info *info, const sl_run_result *result)
{
    peaks *peak = context;
    for (int s = 0; s < sl_pipe_stages(info->pipe); s++) {
        sl_memory_stats stats;
        sl_device_memory(sl_pipe_device(info->pipe, s), &stats);
        peak->total[s] = larger(peak->total[s], stats.peak_total_bytes);
        peak->reserved[s] = larger(peak->reserved[s], stats.peak_reserved_bytes);
    }
    return SL_OK;
}

/* The peaks of all devices in one more run, whatever they are for. */
static void run_for_peaks(const sl_train_options *options, peaks *each, double *total,
                          double *reserved)
{
    sl_reporter reporters[MOST_REPLICAS];
    sl_run_result result;
    for (int r = 0; r < options->replicas; r++)
        reporters[r] = (sl_reporter){.context = &each[r], .finished = note_peaks, .rank = r};
    check_ok(sl_train_run(options, reporters, options->replicas, &result));
    *total = *reserved = 0;
    for (int r = 0; r < options->replicas; r++)
        for (int s = 0; s < options->pipeline_ranks; s++) {
            *total += (double)each[r].total[s];
            *reserved += (double)each[r].reserved[s];
        }
}

/* Every run against what was planned, and what it has from the system. Peaks are lower where
 * gradients do not wait, and where a stage happens not to run ahead of the next, so that the plan
 * is held against the largest of a few runs, whose tensors must reach `least` of it but for what is
 * cached; kernels' own workspace is not planned for. */
static void check_host(sl_train_options options, double least, double least_reserved)
{
    enum { MOST_RUNS = 40 };
    const double most_reserved = 1.05;
    sl_corpus *corpus;
    check_ok(sl_corpus_load(options.data, NULL, &corpus));
    sl_train_options complete = options;
    complete.model.ntokens = sl_vocab_size(sl_corpus_vocab(corpus));
    sl_corpus_destroy(&corpus);
    sl_plan plan = plan_of_launch(&complete, NULL);
    double planned = (double)(plan.host.total_bytes - plan.host.process_bytes);
    double in_use = planned, taken = 0, reserved = 0;
    for (int s = 0; s < plan.stages; s++)
        in_use -= (double)(options.replicas * plan.stage[s].cached_bytes);
    peaks each[MOST_REPLICAS] = {{.total = {0}}};
    bool fits = true, reached = false;
    let_stages_run_ahead();
    for (int run = 0; run < MOST_RUNS && fits && !reached; run++) {
        run_for_peaks(&options, each, &taken, &reserved);
        fits = taken <= 1.03 * in_use && reserved <= most_reserved * planned;
        reached = taken >= least * in_use && reserved >= least_reserved * planned;
    }
    if (!fits || !reached)
        fail_msg("%s, %d replicas, %d stages, %s, %s, %d epochs: planned %.2f MiB, taken %.2f MiB "
                 "of %.2f MiB, reserved %.2f MiB",
                 sl_precision_names[options.precision], options.replicas, options.pipeline_ranks,
                 sl_recompute_name(options.recompute), options.schedule, options.epochs,
                 planned / (1 << 20), taken / (1 << 20), in_use / (1 << 20), reserved / (1 << 20));
}

static void check_hosts_of_layouts(sl_train_options options)
{
    for (options.replicas = 1; options.replicas <= MOST_REPLICAS; options.replicas++)
        for (options.pipeline_ranks = 1; options.pipeline_ranks <= 2; options.pipeline_ranks++) {
            bool odd = (options.replicas + options.pipeline_ranks) % 2;
            options.epochs = options.pipeline_ranks == 1 ? 2 : 1 + odd;
            options.recompute = odd ? SL_RECOMPUTE_NEVER : SL_RECOMPUTE_ALWAYS;
            options.schedule = options.epochs == 1 ? "gpipe" : "1f1b";
            options.optimizer =
                (sl_optimizer_options){.kind = odd ? SL_OPTIMIZER_SGD : SL_OPTIMIZER_ADAMW};
            options.zero = options.replicas == 3;
            check_host(options, 0.95, 0.95);
        }
}

static void planned_totals_are_the_peaks_of_runs(void **state)
{
    sl_train_options options = small_options(*state);
    options.model.emsize = options.model.nhid = 256;
    options.model.nlayers = 4;
    options.bptt = 16;
    options.batch_size = options.eval_batch_size = 8;
    options.chunks = 4;
    options.max_batches = 2;
    options.eval_max_batches = 1;
    options.lr.lr = 1e-3;
    for (sl_precision in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++) {
        options.precision = in;
        check_hosts_of_layouts(options);
    }
}

/* Forwards alone leave little open. */
static void large_evaluations_are_planned_for(void **state)
{
    sl_train_options options = small_options(*state);
    options.replicas = 1;
    options.pipeline_ranks = 2;
    options.model.emsize = options.model.nhid = 64;
    options.batch_size = 2;
    options.eval_batch_size = 60;
    options.bptt = 4;
    options.eval_max_batches = 1;
    for (options.chunks = 1; options.chunks <= 3; options.chunks += 2)
        for (sl_precision in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++) {
            options.precision = in;
            check_host(options, 0.95, 0.94);
        }
}

/* An evaluation's workspace is not there beside a step's activations. */
static void evaluations_that_hold_less_than_a_step_add_nothing(void **state)
{
    sl_train_options options = {0};
    sl_train_options_default(&options);
    options.model.ntokens = 1000;
    options.model.nlayers = 8;
    options.recompute = SL_RECOMPUTE_NEVER;
    options.batch_size = options.chunks = 4;
    for (options.pipeline_ranks = 1; options.pipeline_ranks <= 2; options.pipeline_ranks++)
        for (sl_precision in = SL_PRECISION_F32; in <= SL_PRECISION_BF16; in++) {
            int64_t bytes[3], rows[] = {4, 20, 400};
            options.precision = in;
            for (int i = 0; i < 3; i++) {
                options.eval_batch_size = rows[i];
                bytes[i] = plan_of_launch(&options, NULL).host.activation_bytes;
            }
            assert_int_equal(bytes[1], bytes[0]);
            assert_true(bytes[2] > 2 * bytes[0]);
        }
}

/* Blocks of 16 positions, of which an epoch's last has 12, and evaluations of other rows. */
static void epochs_with_ragged_ends_reserve_what_was_planned(void **state)
{
    sl_train_options options = small_options(*state);
    options.model.emsize = options.model.nhid = 256;
    options.model.nlayers = 4;
    options.bptt = 16;
    options.batch_size = 32;
    options.eval_batch_size = 20;
    options.chunks = 4;
    options.epochs = 3;
    options.max_batches = options.eval_max_batches = 0;
    options.replicas = 1;
    options.lr.lr = 1e-3;
    for (options.pipeline_ranks = 1; options.pipeline_ranks <= 2; options.pipeline_ranks++)
        check_host(options, 0.9, 0.95);
}

int host_memory_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluations_that_hold_less_than_a_step_add_nothing),
        cmocka_unit_test_setup_teardown(planned_totals_are_the_peaks_of_runs, small_corpus_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(epochs_with_ragged_ends_reserve_what_was_planned,
                                        small_corpus_create, scratch_remove),
        cmocka_unit_test_setup_teardown(large_evaluations_are_planned_for, small_corpus_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
