/* Runs that are interrupted and go on: the same bits as if nothing had happened. */
#include "small_run.h"
#include "train/checkpoint/checkpoints.h"

#include "support/program.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mount.h>

enum { EPOCHS = 3, BATCHES = 4, STEPS = EPOCHS * BATCHES, EVAL_BATCHES = 2 };

/* A run is interrupted at every moment, or, as sanitizers look at the code and not at the bits, at
 * every seventh one, each in another layout. */
enum { MOMENTS_APART = IS_SANITIZED ? 7 : 1 };

/* A run that is stopped when it asks for the `at`-th time, from 1: after a step or a validation, or
 * before a block of a validation or of the test. 0: never. */
typedef struct stopper {
    atomic_int asked; /* by every replica */
    int at;
    unsigned request;
    atomic_int begun, ended; /* saves, as it is told */
} stopper;

static void count_saves(void *context, bool begins)
{
    stopper *s = context;
    atomic_fetch_add(begins ? &s->begun : &s->ended, 1);
}

static unsigned ask_stopper(void *context)
{
    stopper *s = context;
    return atomic_fetch_add(&s->asked, 1) + 1 == s->at ? s->request : SL_TRAIN_GO_ON;
}

typedef struct event_log {
    int saved, failed, skipped, resumed;
    int64_t resumed_step;
    sl_run_result result;
    char reason[2048]; /* of the last that was skipped or failed */
} event_log;

static sl_status record_event(void *context, const sl_checkpoint_event *event)
{
    event_log *log = context;
    log->saved += event->kind == SL_CHECKPOINT_SAVED;
    log->failed += event->kind == SL_CHECKPOINT_FAILED;
    log->skipped += event->kind == SL_CHECKPOINT_SKIPPED;
    log->resumed += event->kind == SL_CHECKPOINT_RESUMED;
    if (event->kind == SL_CHECKPOINT_RESUMED)
        log->resumed_step = event->step;
    if (event->reason)
        snprintf(log->reason, sizeof log->reason, "%s: %s", event->path, event->reason);
    return SL_OK;
}

static sl_status run_noting(const sl_train_options *options, small_record *record, event_log *log)
{
    sl_reporter reporters[] = {small_reporter(record),
                               {.context = log, .checkpoint = record_event}};
    *log = (event_log){0};
    return sl_train_run(options, reporters, 2, &log->result);
}

static sl_train_options three_epochs(scratch *dir)
{
    sl_train_options options = small_options(dir);
    options.epochs = EPOCHS;
    options.max_batches = BATCHES;
    options.eval_max_batches = EVAL_BATCHES;
    options.lr.lr = 1;
    options.lr.gamma = 0.5;
    return options;
}

/* ---- The directory of checkpoints ---------------------------------------------------------- */

static char *checkpoints_path(scratch *dir)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/checkpoints", dir->directory);
    return path;
}

/* How many checkpoints lie there; removes them, and what else is there, where `remove_all`. */
static int checkpoints_count(scratch *dir, bool remove_all)
{
    int count = 0;
    DIR *open = opendir(checkpoints_path(dir));
    for (struct dirent *entry; open && (entry = readdir(open));)
        count += strncmp(entry->d_name, "step-", 5) == 0;
    if (open)
        closedir(open);
    if (remove_all)
        scratch_remove_tree(dir, "checkpoints");
    return count;
}

/* A run that saves there, and does what the stopper wants. */
static sl_save_options saved_by(scratch *dir, stopper *by)
{
    return (sl_save_options){.directory = checkpoints_path(dir),
                             .request = ask_stopper,
                             .saving = count_saves,
                             .context = by};
}

static int tear_down(void **state)
{
    checkpoints_count(*state, true);
    return scratch_remove(state);
}

/* ---- Interrupted at every moment ------------------------------------------------------------ */

/* What a resumed run has of its own. */
typedef struct other_layout {
    int stages, balance[3];
    const char *schedule;
    sl_recompute recompute;
    bool zero;
} other_layout;

static const other_layout layouts[] = {
    {.stages = 1},
    {.stages = 2},
    {.stages = 3, .schedule = "1f1b"},
    {.stages = 3, .balance = {1, 3, 1}, .recompute = SL_RECOMPUTE_ALWAYS},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static void set_layout(sl_train_options *options, const other_layout *layout)
{
    options->pipeline_ranks = layout->stages;
    options->schedule = layout->schedule;
    options->recompute = layout->recompute;
    if (!layout->balance[0])
        return;
    options->balance_kind = SL_BALANCE_EXPLICIT;
    options->balance_count = layout->stages;
    memcpy(options->balance, layout->balance, sizeof layout->balance);
}

/* The undisturbed run, and how often its replicas ask in all. */
static int run_whole(sl_train_options options, small_record *whole)
{
    stopper never = {0};
    options.checkpoints = (sl_save_options){.request = ask_stopper, .context = &never};
    check_ok(small_run(&options, whole));
    assert_int_equal(whole->step_count, STEPS);
    return atomic_load(&never.asked);
}

static void interrupt_everywhere(scratch *dir, sl_train_options options)
{
    static small_record whole, first, second;
    event_log log;
    int moments = run_whole(options, &whole);
    int within = 0; /* validations within epochs, after which no replica asks */
    for (int step = 1; options.eval_every && step < STEPS; step++)
        within += step % options.eval_every == 0 && step % BATCHES != 0;
    assert_int_equal(whole.eval_count, within + EPOCHS + 1);
    assert_int_equal(moments, EPOCHS * (BATCHES + EVAL_BATCHES + 1) + (within + 1) * EVAL_BATCHES);
    for (int moment = 1; moment <= moments; moment += MOMENTS_APART) {
        stopper stop = {.at = moment, .request = SL_TRAIN_STOP};
        sl_train_options begun = options, resumed;
        begun.checkpoints = saved_by(dir, &stop);
        set_layout(&begun, &layouts[moment % LAYOUTS]);
        check_ok(run_noting(&begun, &first, &log));
        assert_true(log.result.stopped);
        assert_int_equal(log.result.steps, first.step_count);
        assert_int_equal(first.finished, 0);
        assert_int_equal(log.failed, 0);

        resumed = options;
        resumed.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
        set_layout(&resumed, &layouts[moment / LAYOUTS % LAYOUTS]);
        check_ok(run_noting(&resumed, &second, &log));
        assert_int_equal(log.resumed, 1);
        assert_int_equal(log.resumed_step, first.step_count);
        assert_false(log.result.stopped);
        check_continued(&first, &second, &whole);
        checkpoints_count(dir, true);
    }
}

/* By SGD. */
static void validations_within_epochs_go_on_with_the_same_bits(void **state)
{
    sl_train_options options = three_epochs(*state);
    options.eval_every = 2;
    interrupt_everywhere(*state, options);
}

static void momentum_goes_on_with_the_same_bits(void **state)
{
    sl_train_options options = three_epochs(*state);
    options.optimizer.momentum = 0.9f;
    options.optimizer.dampening = 0.3f;
    options.lr.lr = 0.2;
    interrupt_everywhere(*state, options);
}

static void adamw_with_cosine_goes_on_with_the_same_bits(void **state)
{
    sl_train_options options = three_epochs(*state);
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .weight_decay = 0.1f};
    options.lr = (sl_lr_schedule){.kind = SL_LR_COSINE, .lr = 0.01, .warmup_steps = 3};
    interrupt_everywhere(*state, options);
}

/* Begun on two ranks without a number of chunks, and resumed on one. */
static void chunks_that_were_chosen_go_on(void **state)
{
    static small_record whole, first, second;
    scratch *dir = *state;
    event_log log;
    stopper stop = {.at = 2, .request = SL_TRAIN_STOP};
    sl_train_options options = three_epochs(dir);
    options.chunks = 0;
    options.pipeline_ranks = 2;
    check_ok(small_run(&options, &whole));
    sl_train_options begun = options, resumed = options;
    begun.checkpoints = saved_by(dir, &stop);
    check_ok(run_noting(&begun, &first, &log));
    resumed.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
    resumed.pipeline_ranks = 1;
    check_ok(run_noting(&resumed, &second, &log));
    check_continued(&first, &second, &whole);
}

/* A rate that is far too high after the first epoch: the best parameters stay the first ones. */
static void best_parameters_go_on(void **state)
{
    static small_record whole;
    sl_train_options options = three_epochs(*state);
    options.lr.gamma = 30;
    check_ok(small_run(&options, &whole));
    assert_true(whole.evals[0].best);
    assert_false(whole.evals[1].best || whole.evals[2].best);
    interrupt_everywhere(*state, options);
}

static void replicas_go_on_with_the_same_bits(void **state)
{
    static small_record whole, first, second;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    options.replicas = 2;
    options.devices = "cpu,cpu";
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.lr.lr = 0.01;
    options.eval_max_batches = 2 * EVAL_BATCHES - 1; /* the second one has a block less */
    int moments = run_whole(options, &whole);
    for (int moment = 1; moment <= moments; moment += 3 * MOMENTS_APART) {
        stopper stop = {.at = moment, .request = SL_TRAIN_STOP}; /* one of both asks */
        sl_train_options begun = options, resumed = options;
        begun.zero = moment % 2 == 0;
        resumed.zero = moment / 2 % 2 == 0;
        begun.checkpoints = saved_by(dir, &stop);
        check_ok(run_noting(&begun, &first, &log));
        assert_true(log.result.stopped);
        /* Each replica that writes tells of it: with shards both. */
        assert_int_equal(atomic_load(&stop.begun), atomic_load(&stop.ended));
        assert_in_range(atomic_load(&stop.begun), begun.zero ? 2 : 1, INT_MAX);
        resumed.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
        check_ok(run_noting(&resumed, &second, &log));
        check_continued(&first, &second, &whole);
        checkpoints_count(dir, true);
    }
}

/* A run of which only the test is left, from elsewhere: stopped there, it goes on from here. */
static void test_alone_is_stopped_and_goes_on(void **state)
{
    static small_record whole, first, second;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    char elsewhere[600];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", dir->directory);
    options.checkpoints = (sl_save_options){.directory = elsewhere};
    check_ok(run_noting(&options, &whole, &log));
    stopper stop = {.at = 2, .request = SL_TRAIN_STOP};
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir),
                                            .resume = elsewhere,
                                            .request = ask_stopper,
                                            .context = &stop};
    check_ok(run_noting(&options, &first, &log));
    assert_true(log.result.stopped);
    assert_int_equal(first.step_count + first.eval_count, 0);
    options.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
    check_ok(run_noting(&options, &second, &log));
    assert_memory_equal(&second.result.test_loss, &whole.result.test_loss, sizeof(double));
    scratch_remove_tree(dir, "elsewhere");
}

/* ---- When checkpoints are made -------------------------------------------------------------- */

static void checkpoints_are_saved_when_due_and_kept(void **state)
{
    static small_record record;
    scratch *dir = *state;
    event_log log;
    char path[700];
    sl_train_options options = three_epochs(dir);
    options.lr.lr = 0.05; /* every epoch is the best so far */
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir),
                                            .every_steps = 5,
                                            .keep = 2,
                                            .shard_bytes = 4000};
    check_ok(run_noting(&options, &record, &log));
    int best = 0;
    for (int i = 0; i < record.eval_count; i++)
        best += strcmp(record.evals[i].split, "valid") == 0 && record.evals[i].best;
    assert_true(record.evals[EPOCHS - 1].best);
    assert_int_equal(log.saved, 2 + 1 + best - 1); /* 5, 10, the end, whose best is saved with it */
    assert_int_equal(log.failed, 0);
    snprintf(path, sizeof path, "%s/step-00000012/state.json", checkpoints_path(dir));
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/step-00000010/model.safetensors.index.json",
             checkpoints_path(dir));
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/best/state.json", checkpoints_path(dir));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(checkpoints_count(dir, true), 2);

    options.checkpoints =
        (sl_save_options){.directory = checkpoints_path(dir), .every_epoch = true};
    check_ok(run_noting(&options, &record, &log));
    assert_int_equal(log.saved, EPOCHS);
    assert_int_equal(checkpoints_count(dir, true), EPOCHS);
}

static void checkpoint_asked_for_is_saved_and_the_run_goes_on(void **state)
{
    static small_record record, whole;
    scratch *dir = *state;
    event_log log;
    stopper asking = {.at = 3, .request = SL_TRAIN_SAVE};
    sl_train_options options = three_epochs(dir);
    options.epochs = 1;
    check_ok(small_run(&options, &whole));
    options.checkpoints = saved_by(dir, &asking);
    check_ok(run_noting(&options, &record, &log));
    assert_false(log.result.stopped);
    assert_int_equal(log.saved, 2);
    assert_int_equal(checkpoints_count(dir, false), 2);
    assert_memory_equal(&record.result.test_loss, &whole.result.test_loss, sizeof(double));
}

/* Within a validation it is the state before it; the test begins when all is saved. */
static void checkpoint_asked_for_in_an_evaluation_is_of_its_begin(void **state)
{
    static small_record record, rest, whole;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir), resumed = options;
    check_ok(small_run(&options, &whole));
    for (int block = 1; block <= EVAL_BATCHES; block++) {
        stopper asking = {.at = BATCHES + block, .request = SL_TRAIN_SAVE};
        char path[700];
        options.checkpoints = saved_by(dir, &asking);
        check_ok(run_noting(&options, &record, &log));
        assert_memory_equal(&record.result.test_loss, &whole.result.test_loss, sizeof(double));
        snprintf(path, sizeof path, "%s/step-%08d", checkpoints_path(dir), BATCHES);
        resumed.checkpoints = (sl_save_options){.resume = path};
        check_ok(run_noting(&resumed, &rest, &log));
        assert_int_equal(rest.eval_count, whole.eval_count); /* the first validation again */
        assert_int_equal(rest.step_count, STEPS - BATCHES);
        assert_memory_equal(&rest.evals[0].loss, &whole.evals[0].loss, sizeof(double));
        assert_memory_equal(&rest.result.test_loss, &whole.result.test_loss, sizeof(double));
        checkpoints_count(dir, true);
    }
    int moments = EPOCHS * (BATCHES + EVAL_BATCHES + 1);
    stopper asking = {.at = moments + 1, .request = SL_TRAIN_SAVE};
    options.checkpoints.context = &asking;
    check_ok(run_noting(&options, &record, &log));
    assert_int_equal(checkpoints_count(dir, false), 1); /* the end's */
}

/* ---- Which checkpoint is taken ---------------------------------------------------------------*/

static void damage(scratch *dir, const char *checkpoint, const char *file)
{
    char path[800], line[1700];
    snprintf(path, sizeof path, "%s/%s/%s", checkpoints_path(dir), checkpoint, file);
    snprintf(line, sizeof line, "printf x | dd of='%s' bs=1 seek=200 conv=notrunc 2>/dev/null",
             path);
    assert_int_equal(system(line), 0);
}

static void damaged_checkpoints_are_skipped_with_their_reasons(void **state)
{
    static small_record record, whole;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir), .every_steps = 4};
    check_ok(run_noting(&options, &whole, &log));
    damage(dir, "step-00000012", "model.safetensors");
    options.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
    check_ok(run_noting(&options, &record, &log));
    assert_int_equal(log.skipped, 1);
    assert_int_equal(log.resumed_step, 8);
    if (!strstr(log.reason, "step-00000012: ") || !strstr(log.reason, "model.safetensors: "))
        fail_msg("no file and reason: %s", log.reason);
    assert_memory_equal(&record.result.test_loss, &whole.result.test_loss, sizeof(double));

    damage(dir, "step-00000008", "state.json");
    damage(dir, "step-00000004", "optimizer.safetensors");
    assert_int_equal(run_noting(&options, &record, &log), SL_ERR_NOT_FOUND);
    assert_int_equal(log.skipped, 3);
    assert_int_equal(record.started, 0);

    /* Among checkpoints of which none is whole, no run begins anew. */
    options.checkpoints.directory = checkpoints_path(dir);
    options.checkpoints.resume = "auto";
    assert_int_equal(run_noting(&options, &record, &log), SL_ERR_NOT_FOUND);
    check_text(sl_error_text(), "has 3 checkpoints, but none is whole: restore one, or train into");
    assert_int_equal(log.skipped, 3);
    assert_int_equal(record.started, 0);
    checkpoints_count(dir, true);
    check_ok(run_noting(&options, &record, &log));
    assert_int_equal(log.resumed, 0);
    assert_int_equal(record.step_count, STEPS);
    checkpoints_count(dir, true);
}

static void other_options_are_named_one_by_one(void **state)
{
    static small_record record;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    options.epochs = 1;
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir)};
    check_ok(run_noting(&options, &record, &log));
    options.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
    options.lr.lr = 3;
    options.seed = 77;
    options.model.dropout = 0.5f;
    options.max_batches = 3;
    assert_int_equal(run_noting(&options, &record, &log), SL_ERR_INVALID);
    const char *const named[] = {"the checkpoint was made with ", "lr 1.0, this run has lr 3.0",
                                 "seed \"1\", this run has seed \"77\"",
                                 "dropout 0.2, this run has dropout 0.5",
                                 "max-batches 4, this run has max-batches 3"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (!strstr(sl_error_text(), named[i]))
            fail_msg("\"%s\" is not in: %s", named[i], sl_error_text());
    assert_null(strstr(sl_error_text(), "emsize"));
}

static void more_epochs_continue_a_finished_run(void **state)
{
    static small_record record, whole;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    check_ok(small_run(&options, &whole));
    options.epochs = 1;
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir)};
    check_ok(run_noting(&options, &record, &log));
    options.epochs = EPOCHS;
    options.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
    check_ok(run_noting(&options, &record, &log));
    assert_int_equal(record.step_count, STEPS - BATCHES);
    assert_memory_equal(&record.result.test_loss, &whole.result.test_loss, sizeof(double));
    options.epochs = 1;
    options.checkpoints.directory = NULL;
    check_ok(run_noting(&options, &record, &log)); /* only the test is left */
    assert_int_equal(record.step_count, 0);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void second_run_to_the_same_directory_is_refused(void **state)
{
    static small_record record;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir)};
    assert_int_equal(mkdir(checkpoints_path(dir), 0777), 0);
    int other = open(checkpoints_path(dir), O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(other, LOCK_EX), 0);
    sl_status status = run_noting(&options, &record, &log);
    close(other);
    assert_int_equal(status, SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), "another run saves its checkpoints there"));
}

static void full_disk_leaves_the_older_checkpoint_and_the_run(void **state)
{
    static small_record record, whole;
    scratch *dir = *state;
    event_log log;
    sl_train_options options = three_epochs(dir);
    check_ok(small_run(&options, &whole));
    assert_int_equal(mkdir(checkpoints_path(dir), 0777), 0);
    if (mount("none", checkpoints_path(dir), "tmpfs", 0, "size=900k") != 0) {
        print_message("skipped: a small file system cannot be mounted here\n");
        skip();
    }
    /* The best model and one checkpoint fit; the next one does not fit beside them. */
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir), .every_steps = 5};
    sl_status status = run_noting(&options, &record, &log);
    int count = checkpoints_count(dir, false);
    static small_record again;
    event_log resumed = {0};
    options.checkpoints = (sl_save_options){.resume = checkpoints_path(dir)};
    sl_status second = run_noting(&options, &again, &resumed);
    assert_int_equal(umount(checkpoints_path(dir)), 0);
    assert_int_equal(status, SL_ERR_IO); /* of the last one, after the results */
    assert_int_equal(count, 1);
    assert_true(log.saved >= 1 && log.failed >= 1);
    if (!strstr(log.reason, "No space left") && !strstr(log.reason, "no room"))
        fail_msg("the disk is not blamed: %s", log.reason);
    assert_int_equal(record.step_count, STEPS);
    assert_memory_equal(&record.result.test_loss, &whole.result.test_loss, sizeof(double));
    assert_int_equal(second, SL_OK);
    assert_int_equal(resumed.skipped, 0);
    assert_int_equal(resumed.resumed_step, 5);
    assert_memory_equal(&again.result.test_loss, &whole.result.test_loss, sizeof(double));
}

static void leftovers_of_an_interrupted_save_are_removed(void **state)
{
    static small_record record;
    scratch *dir = *state;
    event_log log;
    char line[2000];
    sl_train_options options = three_epochs(dir);
    options.checkpoints = (sl_save_options){.directory = checkpoints_path(dir)};
    snprintf(line, sizeof line,
             "mkdir -p '%s/.step-00000003.0123456789abcdef.tmp'; touch '%s/mine'",
             checkpoints_path(dir), checkpoints_path(dir));
    assert_int_equal(system(line), 0);
    check_ok(run_noting(&options, &record, &log));
    snprintf(line, sizeof line, "test -e '%s/mine' && test ! -e '%s/.step-00000003.%s.tmp'",
             checkpoints_path(dir), checkpoints_path(dir), "0123456789abcdef");
    assert_int_equal(system(line), 0);
}

#define on_corpus(test) cmocka_unit_test_setup_teardown(test, small_corpus_create, tear_down)

int checkpoints_tests(void)
{
    const struct CMUnitTest tests[] = {
        on_corpus(validations_within_epochs_go_on_with_the_same_bits),
        on_corpus(momentum_goes_on_with_the_same_bits),
        on_corpus(adamw_with_cosine_goes_on_with_the_same_bits),
        on_corpus(chunks_that_were_chosen_go_on),
        on_corpus(best_parameters_go_on),
        on_corpus(replicas_go_on_with_the_same_bits),
        on_corpus(test_alone_is_stopped_and_goes_on),
        on_corpus(checkpoints_are_saved_when_due_and_kept),
        on_corpus(checkpoint_asked_for_is_saved_and_the_run_goes_on),
        on_corpus(checkpoint_asked_for_in_an_evaluation_is_of_its_begin),
        on_corpus(damaged_checkpoints_are_skipped_with_their_reasons),
        on_corpus(other_options_are_named_one_by_one),
        on_corpus(more_epochs_continue_a_finished_run),
        on_corpus(second_run_to_the_same_directory_is_refused),
        on_corpus(full_disk_leaves_the_older_checkpoint_and_the_run),
        on_corpus(leftovers_of_an_interrupted_save_are_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
