/* Runs with more or fewer replicas than their text has shards: what divides a batch's rows among
 * others than it was cut for, and goes on from checkpoints of other layouts. */
#include "small_run.h"

#include "core/philox.h"

#include <math.h>

enum { EPOCHS = 2, BATCHES = 4, STEPS = EPOCHS * BATCHES };

/* ---- Runs ----------------------------------------------------------------------------------- */

/* An epoch's end, dropout, clipping and AdamW's state are all in it. */
static sl_train_options two_epochs(scratch *in)
{
    sl_train_options options = small_options(in);
    options.epochs = EPOCHS;
    options.max_batches = BATCHES;
    options.optimizer.kind = SL_OPTIMIZER_ADAMW;
    options.lr = (sl_lr_schedule){.kind = SL_LR_COSINE, .lr = 0.003, .warmup_steps = 2};
    return options;
}

/* A folder of checkpoints, one a step. */
static const char *folder(scratch *in, int number)
{
    static char paths[4][600];
    snprintf(paths[number], sizeof paths[number], "%s/saved%d", in->directory, number);
    return paths[number];
}

static const char *checkpoint(scratch *in, int number, int64_t step)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/step-%08d", folder(in, number), (int)step);
    return path;
}

static void remove_folders(const scratch *in, const char *names)
{
    char line[700];
    snprintf(line, sizeof line, "rm -rf '%s'/%s", in->directory, names);
    assert_int_equal(system(line), 0);
}

static int remove_all(void **state)
{
    remove_folders(*state, "saved*");
    return scratch_remove(state);
}

static void check_close(double one, double other, const char *what, int64_t index)
{
    if (!(fabs(one - other) <= 1e-4 * fabs(one)))
        fail_msg("%s %d is %.9g, not %.9g", what, (int)index, other, one);
}

/* `part` is a run that began after `done` steps of `whole`. */
static void check_same_losses(const small_record *whole, const small_record *part, int64_t done)
{
    assert_int_equal(part->step_count, whole->step_count - done);
    for (int i = 0; i < part->step_count; i++) {
        const sl_step_info *got = &part->steps[i], *expected = &whole->steps[done + i];
        assert_int_equal(got->step, expected->step);
        assert_int_equal(got->epoch, expected->epoch);
        assert_int_equal(got->batch, expected->batch);
        assert_int_equal(got->batches_per_epoch, expected->batches_per_epoch);
        assert_int_equal(got->tokens, expected->tokens);
        check_close(expected->loss, got->loss, "loss of step", got->step);
        check_close(expected->grad_norm, got->grad_norm, "norm of step", got->step);
        assert_memory_equal(&got->lr, &expected->lr, sizeof got->lr);
    }
    int missing = whole->eval_count - part->eval_count;
    for (int i = 0; i < part->eval_count; i++) {
        assert_int_equal(part->evals[i].best, whole->evals[missing + i].best);
        check_close(whole->evals[missing + i].loss, part->evals[i].loss, "evaluation", i);
    }
    check_close(whole->result.best_valid_loss, part->result.best_valid_loss, "the best loss", 0);
}

/* ---- Shards --------------------------------------------------------------------------------- */

static void any_replicas_train_on_the_same_shares(void **state)
{
    static small_record whole, other;
    sl_train_options options = two_epochs(*state);
    options.model.dropout = 0.5f;
    options.replicas = 3;
    check_ok(small_run(&options, &whole));
    assert_int_equal(whole.steps[0].tokens, 3 * 7 * 9);
    options.shards = 3;
    for (options.replicas = 1; options.replicas <= 5; options.replicas++) {
        check_ok(small_run(&options, &other));
        check_same_losses(&whole, &other, 0);
        if (options.replicas == 3) /* nothing else than without shards */
            assert_memory_equal(&other.result.test_loss, &whole.result.test_loss, sizeof(double));
    }
}

static void a_replica_needs_one_row_at_least(void **state)
{
    static small_record whole, other;
    sl_train_options options = two_epochs(*state);
    options.batch_size = 2;
    options.chunks = 2;
    options.replicas = options.shards = 2;
    check_ok(small_run(&options, &whole));
    options.replicas = 4;
    check_ok(small_run(&options, &other));
    check_same_losses(&whole, &other, 0);
    options.replicas = 5;
    check_error(small_run(&options, &other), SL_ERR_INVALID,
                "5 replicas are too many: a batch has 4 rows, 2 times the batch size");
    options.shards = SL_MAX_REPLICAS + 1;
    check_error(small_run(&options, &other), SL_ERR_INVALID, "from 1 to 1024, got 1025");
}

/* ---- Going on ------------------------------------------------------------------------------- */

typedef struct run_layout {
    int replicas, stages;
    bool zero;
    sl_schedule_kind schedule;
    sl_recompute recompute;
} run_layout;

static sl_train_options laid_out(sl_train_options options, const run_layout *layout)
{
    options.replicas = layout->replicas;
    options.stages = layout->stages;
    options.zero = layout->zero && layout->replicas > 1;
    options.schedule = layout->schedule;
    options.recompute = layout->recompute;
    return options;
}

/* Trains in `layout`, from step `from` of the checkpoints in folder `source` (-1: from the
 * beginning, with no folders left), with a checkpoint after every step in folder `target`. */
static void train_saving(scratch *in, const sl_train_options *options, const run_layout *layout,
                         int source, int64_t from, int target, small_record *record)
{
    sl_train_options all = laid_out(*options, layout);
    if (source < 0)
        remove_folders(in, "saved*");
    all.checkpoints = (sl_save_options){.directory = folder(in, target),
                                        .every_steps = 1,
                                        .resume = source < 0 ? NULL : checkpoint(in, source, from)};
    check_ok(small_run(&all, record));
}

static void fewer_and_more_replicas_go_on(void **state)
{
    static small_record whole, rest;
    scratch *in = *state;
    static const run_layout pairs[][2] = {
        {{.replicas = 2, .stages = 2}, {.replicas = 1, .stages = 1}},
        {{.replicas = 1, .stages = 3}, {.replicas = 2, .stages = 2, .zero = true}},
        {{.replicas = 4, .stages = 1, .zero = true},
         {.replicas = 3, .stages = 2, .schedule = SL_SCHEDULE_1F1B}},
        {{.replicas = 3, .stages = 2, .zero = true},
         {.replicas = 4, .stages = 1, .zero = true, .recompute = SL_RECOMPUTE_ALWAYS}},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const int64_t before_the_epochs_end = BATCHES - 2;
        sl_train_options options = two_epochs(in);
        train_saving(in, &options, &pairs[i][0], -1, 0, 0, &whole);
        train_saving(in, &options, &pairs[i][1], 0, before_the_epochs_end, 1, &rest);
        check_same_losses(&whole, &rest, before_the_epochs_end);
    }
}

static uint32_t draw(uint64_t seed, uint32_t *draws, uint32_t below)
{
    uint32_t counter[4] = {(*draws)++, 0, 0, 0};
    sli_philox(sli_philox_key_make(seed, SLI_RANDOM_SAMPLE), counter);
    return counter[0] % below;
}

static run_layout draw_layout(uint64_t seed, uint32_t *draws)
{
    return (run_layout){
        .replicas = 1 + (int)draw(seed, draws, 5),
        .stages = 1 + (int)draw(seed, draws, 3),
        .zero = draw(seed, draws, 2),
        .schedule = (sl_schedule_kind)draw(seed, draws, 2),
        .recompute = (sl_recompute)draw(seed, draws, 3),
    };
}

/* Two interruptions in three layouts: the second goes on from a checkpoint of a run that itself has
 * not the replicas that it began with. */
static void random_layouts_go_on_from_each_other(void **state)
{
    enum { CASES = 8 };
    static small_record whole, second, third;
    scratch *in = *state;
    const char *given = getenv("SLUICE_TEST_SEED");
    uint64_t first_seed = given ? strtoull(given, NULL, 10) : 1;
    for (uint64_t seed = first_seed; seed < first_seed + CASES; seed++) {
        uint32_t draws = 0;
        sl_train_options options = two_epochs(in);
        options.batch_size = 1 + draw(seed, &draws, 6);
        options.chunks = 1 + (int)draw(seed, &draws, 4);
        run_layout layouts[3];
        for (int i = 0; i < 3; i++)
            layouts[i] = draw_layout(seed, &draws);
        int64_t rows = layouts[0].replicas * options.batch_size;
        for (int i = 1; i < 3; i++)
            if (layouts[i].replicas > rows)
                layouts[i].replicas = (int)rows;
        int64_t at = 1 + draw(seed, &draws, STEPS - 2);
        int64_t later = at + 1 + draw(seed, &draws, (uint32_t)(STEPS - at));
        print_message("seed %d: batch size %d, replicas %d, from step %d %d, from step %d %d\n",
                      (int)seed, (int)options.batch_size, layouts[0].replicas, (int)at,
                      layouts[1].replicas, (int)later, layouts[2].replicas);
        train_saving(in, &options, &layouts[0], -1, 0, 0, &whole);
        train_saving(in, &options, &layouts[1], 0, at, 1, &second);
        check_same_losses(&whole, &second, at);
        train_saving(in, &options, &layouts[2], 1, later, 2, &third);
        check_same_losses(&whole, &third, later);
    }
}

static void shares_are_the_checkpoints_and_limit_the_replicas(void **state)
{
    static small_record record;
    scratch *in = *state;
    sl_train_options options = two_epochs(in);
    options.batch_size = 2;
    train_saving(in, &options, &(run_layout){.replicas = 2, .stages = 1}, -1, 0, 0, &record);
    options.checkpoints = (sl_save_options){.resume = folder(in, 0)};
    options.shards = 3;
    options.replicas = 5;
    check_error(small_run(&options, &record), SL_ERR_INVALID,
                "5 replicas are too many: a batch has 4 rows, 2 times the batch size");
    options.replicas = 4;
    check_ok(small_run(&options, &record)); /* only the test is left */
}

int other_replicas_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_replicas_train_on_the_same_shares),
        cmocka_unit_test(a_replica_needs_one_row_at_least),
        cmocka_unit_test(fewer_and_more_replicas_go_on),
        cmocka_unit_test(random_layouts_go_on_from_each_other),
        cmocka_unit_test(shares_are_the_checkpoints_and_limit_the_replicas),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, remove_all);
}
