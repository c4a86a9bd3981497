/* Shards. Of the text: runs with more or fewer replicas than it has shards divide a batch's rows,
 * and go on from checkpoints of other layouts. Of the optimizer's state: each replica saves what it
 * has, and together it is what one replica alone would have saved. */
#include "small_run.h"

#include "core/philox.h"
#include "sluice/checkpoint.h"

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

/* ---- Of the text
 * --------------------------------------------------------------------------------- */

static void any_replicas_train_on_the_same_shards(void **state)
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
    const char *schedule;
    sl_recompute recompute;
} run_layout;

static sl_train_options laid_out(sl_train_options options, const run_layout *layout)
{
    options.replicas = layout->replicas;
    options.pipeline_ranks = layout->stages;
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
         {.replicas = 3, .stages = 2, .schedule = "1f1b"}},
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
        .schedule = test_schedules[draw(seed, draws, TEST_SCHEDULES)],
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

static void shards_are_the_checkpoints_and_limit_the_replicas(void **state)
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

/* ---- Of the optimizer's state --------------------------------------------------------------- */

typedef struct layout {
    int replicas, stages;
    uint64_t shard_bytes;
} layout;

static const layout layouts[] = {{2, 1, 0}, {3, 1, 0}, {3, 2, 0}, {5, 1, 0}, {2, 2, 4000}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static sl_train_options options_of(scratch *in, const layout *of, bool zero)
{
    sl_train_options options = small_options(in);
    options.replicas = of->replicas;
    options.pipeline_ranks = of->stages;
    static char devices[128];
    devices[0] = '\0';
    for (int i = 0; i < of->replicas * of->stages; i++)
        strcat(strcat(devices, i ? "," : ""), "cpu:0-0");
    options.devices = devices;
    options.zero = zero;
    options.batch_size = 4;
    options.max_batches = BATCHES;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.1f};
    options.lr.lr = 0.01;
    return options;
}

static char *checkpoints_path(scratch *in, const char *name)
{
    char *path = malloc(600);
    snprintf(path, 600, "%s/%s", in->directory, name);
    return path;
}

static void remove_tree(char *path)
{
    char line[700];
    snprintf(line, sizeof line, "rm -rf '%s'", path);
    assert_int_equal(system(line), 0);
    free(path);
}

static sl_checkpoint_reader *open_step(const char *directory, int step)
{
    char path[700];
    sl_checkpoint_reader *reader;
    snprintf(path, sizeof path, "%s/step-%08d", directory, step);
    check_ok(sl_checkpoint_open(path, &reader));
    check_ok(sl_checkpoint_verify(reader));
    return reader;
}

static size_t count_files(const sl_checkpoint_reader *reader, const char *prefix)
{
    size_t count = 0;
    for (size_t i = 0; i < sl_checkpoint_file_count(reader); i++)
        count += strncmp(sl_checkpoint_file_get(reader, i)->name, prefix, strlen(prefix)) == 0;
    return count;
}

static sl_device *everything(void *context, const char *name)
{
    (void)name;
    return context;
}

static const sl_tensor *find(const sl_checkpoint_tensor *in, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(in[i].name, name) == 0)
            return in[i].tensor;
    fail_msg("there is no tensor %s", name);
    return NULL;
}

static void check_same_part(const sl_checkpoint_reader *a, const sl_checkpoint_reader *b,
                            const char *part)
{
    sl_device *device;
    sl_checkpoint_tensor *of_a, *of_b;
    size_t count, other;
    check_ok(sl_device_create_cpu(1, &device));
    check_ok(sl_checkpoint_load(a, part, everything, device, &of_a, &count));
    check_ok(sl_checkpoint_load(b, part, everything, device, &of_b, &other));
    assert_int_equal(count, other);
    assert_true(count > 10);
    for (size_t i = 0; i < count; i++) {
        const sl_tensor *mine = of_a[i].tensor, *theirs = find(of_b, count, of_a[i].name);
        assert_true(sl_shape_equal(sl_tensor_shape(mine), sl_tensor_shape(theirs)));
        assert_memory_equal(sl_tensor_f32(mine), sl_tensor_f32(theirs), sl_tensor_bytes(mine));
    }
    sl_checkpoint_tensors_destroy(&of_a, count);
    sl_checkpoint_tensors_destroy(&of_b, other);
    sl_device_destroy(&device);
}

static void shards_make_up_what_one_replica_saves(void **state)
{
    static small_record record;
    scratch *in = *state;
    for (int i = 0; i < LAYOUTS; i++) {
        sl_train_options whole = options_of(in, &layouts[i], false), sharded = whole;
        char *one = checkpoints_path(in, "one"), *many = checkpoints_path(in, "many");
        sharded.zero = true;
        whole.checkpoints = (sl_save_options){.directory = one, .every_steps = 1};
        sharded.checkpoints = (sl_save_options){.directory = many,
                                                .every_steps = 1,
                                                .shard_bytes = layouts[i].shard_bytes};
        check_ok(small_run(&whole, &record));
        check_ok(small_run(&sharded, &record));
        for (int step = 1; step <= BATCHES; step++) {
            sl_checkpoint_reader *a = open_step(one, step), *b = open_step(many, step);
            size_t files = count_files(b, "optimizer-0");
            assert_int_equal(count_files(a, "optimizer.safetensors"), 1);
            assert_int_equal(files, layouts[i].replicas);
            check_same_part(a, b, "optimizer");
            check_same_part(a, b, "model");
            sl_checkpoint_close(&a);
            sl_checkpoint_close(&b);
        }
        remove_tree(one);
        remove_tree(many);
    }
}

/* ---- Memory --------------------------------------------------------------------------------- */

/* What a replica's optimizer's state takes, and has taken at most before and after the start. */
typedef struct peaks {
    const sl_pipe *pipe;
    uint64_t now, loading, training;
} peaks;

static sl_status note_start(void *context, const sl_run_info *info)
{
    peaks *of = context;
    sl_memory_stats stats;
    of->pipe = info->pipe;
    sl_device_memory(sl_pipe_device(of->pipe, 0), &stats);
    of->now = stats.current_bytes[SL_MEMORY_OPTIMIZER];
    of->loading = stats.peak_bytes[SL_MEMORY_OPTIMIZER];
    sl_device_reset_peak(sl_pipe_device(of->pipe, 0));
    return SL_OK;
}

static sl_status note_finish(void *context, const sl_run_info *info, const sl_run_result *result)
{
    (void)info;
    (void)result;
    peaks *of = context;
    sl_memory_stats stats;
    sl_device_memory(sl_pipe_device(of->pipe, 0), &stats);
    of->training = stats.peak_bytes[SL_MEMORY_OPTIMIZER];
    return SL_OK;
}

static void no_replica_holds_more_than_its_shard(void **state)
{
    scratch *in = *state;
    const layout two = {2, 1, 0};
    peaks of[2] = {{0}};
    sl_reporter reporters[2];
    sl_run_result result;
    char *path = checkpoints_path(in, "saved");
    sl_train_options options = options_of(in, &two, true);
    options.checkpoints = (sl_save_options){.directory = path, .every_steps = 1};
    for (int replica = 0; replica < 2; replica++)
        reporters[replica] = (sl_reporter){.context = &of[replica],
                                           .started = note_start,
                                           .finished = note_finish,
                                           .replica = replica};
    for (int epochs = 1; epochs <= 2; epochs++) { /* the second one resumes */
        options.epochs = epochs;
        check_ok(sl_train_run(&options, reporters, 2, &result));
        assert_int_equal(result.steps, epochs * BATCHES);
        for (int replica = 0; replica < 2; replica++) {
            assert_true(of[replica].now > 0);
            assert_int_equal(of[replica].loading, of[replica].now);
            assert_int_equal(of[replica].training, of[replica].now);
        }
        options.checkpoints.resume = path;
    }
    remove_tree(path);
}

/* ---- When all replicas have written --------------------------------------------------------- */

typedef struct seen {
    int saved, failed;
    int64_t step;
} seen;

static sl_status see_step(void *context, const sl_step_info *info)
{
    seen *of = context;
    of->step = info->step;
    return SL_OK;
}

static sl_status see_checkpoint(void *context, const sl_checkpoint_event *event)
{
    seen *of = context;
    of->saved += event->kind == SL_CHECKPOINT_SAVED;
    of->failed += event->kind == SL_CHECKPOINT_FAILED;
    if (event->kind == SL_CHECKPOINT_SAVED)
        assert_true(event->step <= of->step);
    return SL_OK;
}

static void every_save_is_completed_and_reported_once(void **state)
{
    scratch *in = *state;
    const layout three = {3, 1, 0};
    char *path = checkpoints_path(in, "saved");
    seen of = {0};
    const sl_reporter reporter = {.context = &of, .step = see_step, .checkpoint = see_checkpoint};
    sl_run_result result;
    sl_train_options options = options_of(in, &three, true);
    options.epochs = 2;
    options.checkpoints =
        (sl_save_options){.directory = path, .every_steps = 3, .every_epoch = true, .keep = 2};
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    /* After steps 3, 4 (the epoch's), 6 and 8 (the end's); each validation was the best. */
    assert_int_equal(of.saved, 4);
    assert_int_equal(of.failed, 0);
    sl_checkpoint_reader *last = open_step(path, 8), *before = open_step(path, 6);
    sl_checkpoint_close(&last);
    sl_checkpoint_close(&before);
    remove_tree(path);
}

static sl_status fail_after_two_steps(void *context, const sl_step_info *info)
{
    (void)context;
    return info->step < 2 ? SL_OK : sl_error(SL_ERR_CANCELLED, "enough");
}

/* Whatever the savers of all replicas have come to. */
static void run_that_fails_while_it_saves_ends(void **state)
{
    scratch *in = *state;
    const layout three = {3, 1, 0};
    const sl_reporter reporter = {.step = fail_after_two_steps};
    sl_run_result result;
    for (int i = 0; i < 10; i++) {
        char *path = checkpoints_path(in, "saved");
        sl_train_options options = options_of(in, &three, true);
        options.checkpoints = (sl_save_options){.directory = path, .every_steps = 1};
        check_error(sl_train_run(&options, &reporter, 1, &result), SL_ERR_CANCELLED, "enough");
        remove_tree(path);
    }
}

int shards_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_replicas_train_on_the_same_shards),
        cmocka_unit_test(a_replica_needs_one_row_at_least),
        cmocka_unit_test(fewer_and_more_replicas_go_on),
        cmocka_unit_test(random_layouts_go_on_from_each_other),
        cmocka_unit_test(shards_are_the_checkpoints_and_limit_the_replicas),
        cmocka_unit_test(shards_make_up_what_one_replica_saves),
        cmocka_unit_test(no_replica_holds_more_than_its_shard),
        cmocka_unit_test(every_save_is_completed_and_reported_once),
        cmocka_unit_test(run_that_fails_while_it_saves_ends),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, remove_all);
}
