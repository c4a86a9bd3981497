/* The optimizer's state in shards: each replica saves what it has, and together it is what one
 * replica alone would have saved. */
#include "small_run.h"
#include "tensor/tensor.h"

#include "sluice/checkpoint.h"

#include <stdatomic.h>
#include <time.h>

enum { BATCHES = 4 };

typedef struct layout {
    int replicas, stages;
    uint64_t shard_bytes;
} layout;

static const layout layouts[] = {{2, 1, 0}, {3, 1, 0}, {3, 2, 0}, {5, 1, 0}, {2, 2, 4000}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static sl_train_options options_of(scratch *dir, const layout *l, bool zero)
{
    sl_train_options options = small_options(dir);
    options.replicas = l->replicas;
    options.pipeline_ranks = l->stages;
    static char devices[128];
    devices[0] = '\0';
    for (int i = 0; i < l->replicas * l->stages; i++)
        strcat(strcat(devices, i ? "," : ""), "cpu");
    options.devices = devices;
    options.zero = zero;
    options.batch_size = 4;
    options.max_batches = BATCHES;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.1f};
    options.lr.lr = 0.01;
    return options;
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
    SCOPED(sl_device) *device = new_device(1);
    sl_checkpoint_tensor *of_a, *of_b;
    size_t count, other;
    check_ok(sl_checkpoint_load(a, part, everything, device, &of_a, &count));
    check_ok(sl_checkpoint_load(b, part, everything, device, &of_b, &other));
    assert_int_equal(count, other);
    assert_true(count > 10);
    for (size_t i = 0; i < count; i++) {
        const sl_tensor *mine = of_a[i].tensor, *theirs = find(of_b, count, of_a[i].name);
        assert_true(sl_shape_equal(sl_tensor_shape(mine), sl_tensor_shape(theirs)));
        assert_memory_equal(sl_tensor_f32(mine), sl_tensor_f32(theirs), sli_tensor_bytes(mine));
    }
    sl_checkpoint_tensors_destroy(&of_a, count);
    sl_checkpoint_tensors_destroy(&of_b, other);
}

static void shards_make_up_what_one_replica_saves(void **state)
{
    static small_record record;
    scratch *dir = *state;
    for (int i = 0; i < LAYOUTS; i++) {
        sl_train_options whole = options_of(dir, &layouts[i], false), sharded = whole;
        char one[512], many[512];
        snprintf(one, sizeof one, "%s", scratch_path(dir, "one"));
        snprintf(many, sizeof many, "%s", scratch_path(dir, "many"));
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
        scratch_remove_tree(dir, "one");
        scratch_remove_tree(dir, "many");
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
    peaks *p = context;
    sl_memory_stats stats;
    p->pipe = info->pipe;
    sl_device_memory(sl_pipe_device(p->pipe, 0), &stats);
    p->now = stats.current_bytes[SL_MEMORY_OPTIMIZER];
    p->loading = stats.peak_bytes[SL_MEMORY_OPTIMIZER];
    sl_device_reset_peak(sl_pipe_device(p->pipe, 0));
    return SL_OK;
}

static sl_status note_finish(void *context, const sl_run_info *info, const sl_run_result *result)
{
    peaks *p = context;
    sl_memory_stats stats;
    sl_device_memory(sl_pipe_device(p->pipe, 0), &stats);
    p->training = stats.peak_bytes[SL_MEMORY_OPTIMIZER];
    return SL_OK;
}

static void no_replica_holds_more_than_its_shard(void **state)
{
    scratch *dir = *state;
    const layout two = {2, 1, 0};
    peaks p[2] = {{0}};
    sl_reporter reporters[2];
    sl_run_result result;
    const char *path = scratch_path(dir, "saved");
    sl_train_options options = options_of(dir, &two, true);
    options.checkpoints = (sl_save_options){.directory = path, .every_steps = 1};
    for (int replica = 0; replica < 2; replica++)
        reporters[replica] = (sl_reporter){.context = &p[replica],
                                           .started = note_start,
                                           .finished = note_finish,
                                           .rank = replica};
    for (int epochs = 1; epochs <= 2; epochs++) { /* the second one resumes */
        options.epochs = epochs;
        check_ok(sl_train_run(&options, reporters, 2, &result));
        assert_int_equal(result.steps, epochs * BATCHES);
        for (int replica = 0; replica < 2; replica++) {
            assert_true(p[replica].now > 0);
            assert_int_equal(p[replica].loading, p[replica].now);
            assert_int_equal(p[replica].training, p[replica].now);
        }
        options.checkpoints.resume = path;
    }
    scratch_remove_tree(dir, "saved");
}

/* ---- When all replicas have written --------------------------------------------------------- */

typedef struct seen {
    int saved, failed;
    int64_t step;
} seen;

static sl_status see_step(void *context, const sl_step_info *info)
{
    seen *s = context;
    s->step = info->step;
    return SL_OK;
}

static sl_status see_checkpoint(void *context, const sl_checkpoint_event *event)
{
    seen *s = context;
    s->saved += event->kind == SL_CHECKPOINT_SAVED;
    s->failed += event->kind == SL_CHECKPOINT_FAILED;
    if (event->kind == SL_CHECKPOINT_SAVED)
        assert_true(event->step <= s->step);
    return SL_OK;
}

static void every_save_is_completed_and_reported_once(void **state)
{
    scratch *dir = *state;
    const layout three = {3, 1, 0};
    const char *path = scratch_path(dir, "saved");
    seen s = {0};
    const sl_reporter reporter = {.context = &s, .step = see_step, .checkpoint = see_checkpoint};
    sl_run_result result;
    sl_train_options options = options_of(dir, &three, true);
    options.epochs = 2;
    options.checkpoints =
        (sl_save_options){.directory = path, .every_steps = 3, .every_epoch = true, .keep = 2};
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    /* After steps 3, 4 (the epoch's), 6 and 8 (the end's); each validation was the best. */
    assert_int_equal(s.saved, 4);
    assert_int_equal(s.failed, 0);
    sl_checkpoint_reader *last = open_step(path, 8), *before = open_step(path, 6);
    sl_checkpoint_close(&last);
    sl_checkpoint_close(&before);
    scratch_remove_tree(dir, "saved");
}

static sl_status fail_after_two_steps(void *context, const sl_step_info *info)
{
    return info->step < 2 ? SL_OK : sl_error(SL_ERR_CANCELLED, "enough");
}

/* Whatever the savers of all replicas have come to: the save under way is completed. */
static void run_that_fails_completes_its_save_and_ends(void **state)
{
    scratch *dir = *state;
    const layout three = {3, 1, 0};
    const sl_reporter reporter = {.step = fail_after_two_steps};
    sl_run_result result;
    for (int i = 0; i < 10; i++) {
        const char *path = scratch_path(dir, "saved");
        sl_train_options options = options_of(dir, &three, true);
        options.checkpoints = (sl_save_options){.directory = path, .every_steps = 1};
        check_error(sl_train_run(&options, &reporter, 1, &result), SL_ERR_CANCELLED, "enough");
        sl_checkpoint_reader *first = open_step(path, 1);
        sl_checkpoint_close(&first);
        scratch_remove_tree(dir, "saved");
    }
}

static atomic_bool begun, is_late;

static void see_save(void *context, bool begins)
{
    if (begins)
        atomic_store(&begun, true);
}

/* Holds a replica up until the first one saves. */
static unsigned wait_for_save(void *context)
{
    enum { PATIENCE = 10000 }; /* milliseconds */
    for (int i = 0; i < PATIENCE && !atomic_load(&begun); i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    if (!atomic_load(&begun))
        atomic_store(&is_late, true);
    return SL_TRAIN_GO_ON;
}

static void save_that_is_due_waits_for_no_replica(void **state)
{
    scratch *dir = *state;
    const layout two = {2, 1, 0};
    sl_run_result result;
    sl_train_options options = options_of(dir, &two, false);
    options.max_batches = 1;
    options.checkpoints = (sl_save_options){.directory = scratch_path(dir, "saved"),
                                            .every_steps = 1,
                                            .request = wait_for_save,
                                            .saving = see_save};
    check_ok(sl_train_run(&options, NULL, 0, &result));
    assert_false(atomic_load(&is_late));
    scratch_remove_tree(dir, "saved");
}

int sharded_checkpoints_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_make_up_what_one_replica_saves),
        cmocka_unit_test(no_replica_holds_more_than_its_shard),
        cmocka_unit_test(every_save_is_completed_and_reported_once),
        cmocka_unit_test(run_that_fails_completes_its_save_and_ends),
        cmocka_unit_test(save_that_is_due_waits_for_no_replica),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, scratch_remove);
}
