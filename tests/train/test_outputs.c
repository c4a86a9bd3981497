/* What a run writes, and must not write: the file of the best weights, which holds them whatever
 * befell the run, or the run says that it has failed; the number of the last step; and the
 * checkpoints in a run's directory. */
#include "plans.h"
#include "small_run.h"
#include "train/checkpoint/checkpoints.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Files that are read or written already --------------------------------------------- */

static void check_refused_output(const sl_train_options *options, const char *path, const char *end)
{
    assert_int_equal(sl_train_check_output(options, path), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), end));
}

static void inputs_and_outputs_of_a_run_are_refused(void **state)
{
    scratch *dir = *state;
    char text[512], save[512], config[512], other[512];
    write_file(scratch_path(dir, "train.txt"), "a\n", 2);
    write_file(scratch_path(dir, "valid.txt"), "a\n", 2);
    write_file(scratch_path(dir, "test.txt"), "a\n", 2);
    snprintf(text, sizeof text, "%s/./valid.txt", dir->directory);
    snprintf(save, sizeof save, "%s/m", dir->directory);
    snprintf(config, sizeof config, "%s/m/config.json", dir->directory);
    snprintf(other, sizeof other, "%s/log", dir->directory);
    sl_train_options options = {.data = dir->directory, .save = save};
    check_refused_output(&options, text, "/valid.txt is an input and must not be overwritten");
    check_refused_output(&options, save, "/m, which the run replaces");
    assert_int_equal(mkdir(save, 0700), 0);
    write_file(config, "{}", 2);
    check_refused_output(&options, config, "/m/config.json would lie in ");
    assert_int_equal(sl_train_check_output(&options, other), SL_OK);
    options.save = NULL;
    assert_int_equal(sl_train_check_output(&options, config), SL_OK);
    write_safetensors(scratch_path(dir, "m/model.safetensors"), "{}", 2, 0);
    options.init = save;
    check_refused_output(&options, config,
                         "/m/config.json is an input and must not be overwritten");
    options.init = NULL;
    assert_int_equal(sl_train_check_output(&options, config), SL_OK);
    options.adapter = save;
    static const char *const adapters[] = {"m/adapter_config.json", "m/adapter_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(other, sizeof other, "%s", scratch_path(dir, adapters[i]));
        write_file(other, "{}", 2);
        check_refused_output(&options, other, adapters[i]);
    }
}

/* Who has opened the old file reads on in it; a link stays, its target is replaced. */
static void outputs_are_replaced_at_once(void **state)
{
    scratch *dir = *state;
    char path[512], link[512], text[8] = "";
    snprintf(path, sizeof path, "%s", scratch_path(dir, "out"));
    snprintf(link, sizeof link, "%s", scratch_path(dir, "link"));
    write_file(path, "old", 3);
    assert_int_equal(symlink("out", link), 0);
    FILE *old = fopen(path, "r");
    assert_non_null(old);
    check_ok(sl_train_write_output(link, "new"));
    assert_int_equal(fread(text, 1, sizeof text, old), 3);
    assert_memory_equal(text, "old", 3);
    fclose(old);
    assert_int_equal(read_file(path, text, sizeof text), 3);
    assert_memory_equal(text, "new", 3);
    check_ok(sl_train_write_output("/dev/null", "new"));
    check_error(sl_train_write_output(dir->directory, "new"), SL_ERR_INVALID, dir->directory);
    check_error(sl_train_write_output("/nowhere/out", "new"), SL_ERR_NOT_FOUND, "/nowhere/out");
    check_error(sl_train_write_output("/dev/full", "new"), SL_ERR_IO,
                "/dev/full: cannot be written: No space left on device");
}

static void best_and_newest_checkpoint_are_found(void **state)
{
    scratch *dir = *state;
    static const char *const names[] = {"run", "run/step-00000002", "run/step-00000010"};
    char *best, *newest, directory[512], command[600];
    snprintf(directory, sizeof directory, "%s/run", dir->directory);
    assert_int_equal(sl_train_find_checkpoints(directory, &best, &newest), SL_OK);
    assert_null(best);
    assert_null(newest);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(mkdir(scratch_path(dir, names[i]), 0700), 0);
    assert_int_equal(sl_train_find_checkpoints(directory, &best, &newest), SL_OK);
    assert_null(best);
    assert_string_equal(newest, scratch_path(dir, "run/step-00000010"));
    free(newest);
    assert_int_equal(mkdir(scratch_path(dir, "run/best"), 0700), 0);
    assert_int_equal(sl_train_find_checkpoints(directory, &best, &newest), SL_OK);
    assert_string_equal(best, scratch_path(dir, "run/best"));
    free(best);
    free(newest);
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    assert_int_equal(system(command), 0);
}

/* ---- The last step ---------------------------------------------------------------------- */

static const sli_identity own = {"0123456789abcdef"};

/* The step in the directory's file; 0: there is none. */
static int64_t recorded_step(const char *directory)
{
    sli_identity identity;
    int64_t step = sli_last_step_read(directory, &identity);
    assert_string_equal(identity.text, step ? own.text : "");
    return step;
}

static void last_number_is_read_back(void **state)
{
    scratch *dir = *state;
    assert_int_equal(recorded_step(dir->directory), 0);
    int file = sli_last_step_open(dir->directory);
    assert_int_equal(recorded_step(dir->directory), 0);
    static const int64_t steps[] = {1, 12345, 99, 7, INT64_MAX};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        sli_last_step_write(file, steps[i], &own);
        assert_int_equal(recorded_step(dir->directory), steps[i]);
    }
    close(file);
    sli_last_step_write(-1, 5, &own); /* not open: nothing happens */
    assert_int_equal(recorded_step(dir->directory), INT64_MAX);
    file = sli_last_step_open(dir->directory); /* a run that goes on has not done a step yet */
    assert_int_equal(recorded_step(dir->directory), INT64_MAX);
    close(file);
}

static void what_is_no_number_counts_as_none(void **state)
{
    static const char *const texts[] = {"",
                                        "7\n",
                                        "00000000000000000007",
                                        "0000000000000000007x\n",
                                        "-0000000000000000007\n",
                                        "99999999999999999999999\n",
                                        "00000000000000000007 0123456789abcdef",
                                        "00000000000000000007\n0123456789abcdef\n"};
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(scratch_path(dir, "progress"), texts[i], strlen(texts[i]));
        assert_int_equal(recorded_step(dir->directory), 0);
    }
}

static void record_step(const scratch *dir, int64_t step)
{
    int file = sli_last_step_open(dir->directory);
    sli_last_step_write(file, step, &own);
    close(file);
}

static void file_or_link_of_the_user_stays_as_it_is(void **state)
{
    scratch *dir = *state;
    char text[16] = "";
    write_file(scratch_path(dir, "progress"), "my steps\n", 9);
    record_step(dir, 5);
    assert_int_equal(read_file(scratch_path(dir, "progress"), text, sizeof text), 9);
    assert_string_equal(text, "my steps\n");
    assert_int_equal(unlink(scratch_path(dir, "progress")), 0);
    assert_int_equal(symlink("target", scratch_path(dir, "progress")), 0);
    record_step(dir, 5);
    assert_int_equal(scratch_entries(dir, 0), 1); /* nothing was made behind the link */
}

static void directory_that_is_not_there_is_no_error(void **state)
{
    assert_int_equal(sli_last_step_open("/nowhere"), -1);
    assert_int_equal(recorded_step("/nowhere"), 0);
}

static sl_status keep_resumed(void *context, const sl_checkpoint_event *event)
{
    if (event->kind == SL_CHECKPOINT_RESUMED)
        *(sl_checkpoint_event *)context = *event;
    return SL_OK;
}

static sl_checkpoint_event resume(sl_train_options options, const char *from)
{
    sl_checkpoint_event found = {.step = -1};
    sl_run_result result;
    const sl_reporter reporter = {.context = &found, .checkpoint = keep_resumed};
    options.checkpoints = (sl_save_options){.resume = from};
    check_ok(sl_train_run(&options, &reporter, 1, &result));
    return found;
}

static void run_says_what_was_lost_after_the_newest_checkpoint(void **state)
{
    static small_record record;
    scratch *dir = *state;
    char saved[128], line[300];
    snprintf(saved, sizeof saved, "%s/saved", dir->directory);
    sl_train_options options = small_options(dir);
    options.checkpoints = (sl_save_options){.directory = saved, .every_steps = 1};
    check_ok(small_run(&options, &record));
    sli_identity identity;
    assert_int_equal(sli_last_step_read(saved, &identity), 4);
    assert_int_equal(strlen(identity.text), 16);
    assert_int_equal(resume(options, saved).lost_steps, 0);
    snprintf(line, sizeof line, "rm -r '%s/step-00000004' '%s/step-00000003'", saved, saved);
    assert_int_equal(system(line), 0);
    sl_checkpoint_event event = resume(options, saved);
    assert_int_equal(event.step, 2);
    assert_int_equal(event.lost_steps, 2);
    snprintf(line, sizeof line, "%s/step-00000001", saved); /* who names one has chosen it */
    event = resume(options, line);
    assert_int_equal(event.step, 1);
    assert_int_equal(event.lost_steps, 0);
    snprintf(line, sizeof line, "rm -r '%s'", saved);
    assert_int_equal(system(line), 0);
}

/* ---- The best weights ------------------------------------------------------------------- */

/* Takes the directory of the weights away after some step, and brings it back after another. */
typedef struct disk {
    char directory[512], hidden[512];
    int64_t gone_after, back_after; /* steps; 0: never */
    int failed;                     /* saves that were reported so */
} disk;

static sl_status disk_step(void *context, const sl_step_info *step)
{
    const disk *d = context;
    if (step->step == d->gone_after)
        assert_int_equal(rename(d->directory, d->hidden), 0);
    if (step->step == d->back_after)
        assert_int_equal(rename(d->hidden, d->directory), 0);
    return SL_OK;
}

static sl_status disk_event(void *context, const sl_checkpoint_event *event)
{
    disk *d = context;
    if (event->kind == SL_WEIGHTS_FAILED) {
        d->failed++;
        assert_int_equal(event->step, 4);
        assert_non_null(strstr(event->path, "/model"));
        assert_non_null(strstr(event->reason, "its directory does not exist"));
    }
    return SL_OK;
}

static int remove_directory(const char *path)
{
    char line[600];
    snprintf(line, sizeof line, "rm -r '%s'", path);
    return system(line);
}

static sl_status run_on(disk *d, const sl_train_options *options, small_record *record)
{
    sl_run_result result;
    sl_reporter reporters[] = {small_reporter(record),
                               {.context = d, .step = disk_step, .checkpoint = disk_event}};
    return sl_train_run(options, reporters, 2, &result);
}

/* Two epochs of four steps, of which the first one's parameters are the best. */
static sl_train_options best_is_first(scratch *dir, disk *d, char path[512])
{
    sl_train_options options = small_options(dir);
    options.epochs = 2;
    options.lr.gamma = 10;
    *d = (disk){0};
    snprintf(d->directory, sizeof d->directory, "%s/weights", dir->directory);
    snprintf(d->hidden, sizeof d->hidden, "%s/hidden", dir->directory);
    snprintf(path, 512, "%.400s/model", d->directory);
    assert_int_equal(mkdir(d->directory, 0700), 0);
    options.save = path;
    return options;
}

/* The tensors of a saved model. */
static size_t read_weights(const char *model, char *bytes, size_t room)
{
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    return read_file(path, bytes, room);
}

/* What an undisturbed run saves. */
static size_t expected_weights(scratch *dir, sl_train_options options, char *bytes, size_t room)
{
    static small_record record;
    options.save = scratch_path(dir, "undisturbed");
    check_ok(small_run(&options, &record));
    assert_true(record.evals[0].best);
    assert_false(record.evals[1].best);
    assert_true(record.result.saved);
    size_t count = read_weights(options.save, bytes, room);
    assert_true(count > 1000 && count < room);
    return count;
}

static void check_weights(const char *path, const char *expected, size_t count)
{
    static char got[1 << 20];
    assert_int_equal(read_weights(path, got, sizeof got), count);
    assert_memory_equal(got, expected, count);
}

static void run_without_room_for_its_weights_goes_on(void **state)
{
    static char expected[1 << 20], path[512];
    static small_record record;
    disk d;
    sl_train_options options = best_is_first(*state, &d, path);
    size_t count = expected_weights(*state, options, expected, sizeof expected);
    d.gone_after = 2;
    d.back_after = 6;
    check_ok(run_on(&d, &options, &record));
    assert_int_equal(d.failed, 1);
    assert_int_equal(record.step_count, 8);
    assert_true(record.result.saved);
    check_weights(path, expected, count);
}

static void weights_that_cannot_be_saved_at_last_are_an_error_after_the_results(void **state)
{
    static small_record record;
    static char path[512];
    disk d;
    sl_train_options options = best_is_first(*state, &d, path);
    d.gone_after = 2;
    options.replicas = 2;
    options.devices = "cpu,cpu";
    check_error(run_on(&d, &options, &record), SL_ERR_NOT_FOUND, "its directory does not exist");
    assert_int_equal(d.failed, 1);
    assert_int_equal(record.finished, 1);
    assert_false(record.result.saved);
    assert_true(record.result.test_loss > 0);
}

typedef struct ranks_run {
    sl_train_options options;
    disk *disk;
    sl_status ended[2];
} ranks_run;

static sl_status run_rank(sl_group *group, void *arg)
{
    static small_record records[2];
    ranks_run *r = arg;
    int rank = sl_group_rank(group);
    sl_run_result result;
    sl_train_options options = r->options;
    sl_reporter reporters[] = {small_reporter(&records[rank]),
                               {.context = r->disk, .step = disk_step}};
    reporters[0].rank = rank;
    r->ended[rank] = run_as_rank(&options, group, 2, reporters, rank == 0 ? 2 : 1, &result);
    return SL_OK; /* a joined error would be the first rank's alone */
}

static void every_rank_hears_of_weights_that_cannot_be_saved(void **state)
{
    static char path[512];
    disk d;
    ranks_run run = {.options = best_is_first(*state, &d, path), .disk = &d};
    d.gone_after = 2;
    run.options.replicas = 2;
    run.options.devices = "cpu,cpu";
    check_ok(sl_spawn(run_rank, &run, 2, NULL));
    assert_int_equal(run.ended[0], SL_ERR_NOT_FOUND);
    assert_int_not_equal(run.ended[1], SL_OK);
}

static void resumed_run_saves_what_was_best_before(void **state)
{
    static char expected[1 << 20], path[512], checkpoints[512], elsewhere[512], line[600];
    static small_record record;
    scratch *dir = *state;
    disk d;
    sl_train_options options = best_is_first(dir, &d, path);
    size_t count = expected_weights(dir, options, expected, sizeof expected);
    snprintf(checkpoints, sizeof checkpoints, "%s/checkpoints", dir->directory);
    snprintf(elsewhere, sizeof elsewhere, "%.400s/elsewhere", d.directory);
    options.checkpoints = (sl_save_options){.directory = checkpoints, .every_epoch = true};
    check_ok(run_on(&d, &options, &record));
    for (int more = 2; more <= 3; more++) { /* only the test is left, and an epoch as well */
        options.save = elsewhere;
        options.epochs = more;
        options.checkpoints = (sl_save_options){.resume = checkpoints};
        check_ok(run_on(&d, &options, &record));
        assert_int_equal(record.step_count, more == 2 ? 0 : 4);
        assert_true(record.result.saved);
        check_weights(elsewhere, expected, count);
        assert_int_equal(remove_directory(elsewhere), 0);
    }
    snprintf(line, sizeof line, "rm -r '%s'", checkpoints);
    assert_int_equal(system(line), 0);
}

/* Stops a run after a step, and hears of what is being saved. */
typedef struct stopper {
    atomic_int asked, begun, ended;
    int at;
} stopper;

static unsigned ask_stopper(void *context)
{
    stopper *s = context;
    return atomic_fetch_add(&s->asked, 1) + 1 == s->at ? SL_TRAIN_STOP : SL_TRAIN_GO_ON;
}

static void hear_of_saving(void *context, bool begins)
{
    stopper *s = context;
    atomic_fetch_add(begins ? &s->begun : &s->ended, 1);
    assert_true(atomic_load(&s->begun) >= atomic_load(&s->ended));
}

/* What a run without checkpoints leaves where it is stopped when it asks for the `at`-th time. */
static void check_left_by_stop(scratch *dir, int at, int64_t step, const char *expected,
                               size_t count)
{
    for (int replicas = 1; replicas <= 2; replicas++) {
        static char path[512];
        static small_record record;
        sl_run_result result;
        disk d;
        stopper stop = {.at = at * replicas};
        sl_train_options options = best_is_first(dir, &d, path);
        options.replicas = replicas;
        options.devices = replicas == 2 ? "cpu,cpu" : NULL;
        options.checkpoints =
            (sl_save_options){.request = ask_stopper, .saving = hear_of_saving, .context = &stop};
        check_ok(sl_train_run(&options, (sl_reporter[]){small_reporter(&record)}, 1, &result));
        assert_true(result.stopped);
        assert_true(result.saved);
        assert_int_equal(result.saved_step, step);
        assert_int_equal(atomic_load(&stop.begun), 1);
        assert_int_equal(atomic_load(&stop.ended), 1);
        if (replicas == 1)
            check_weights(path, expected, count);
        assert_int_equal(remove_directory(d.directory), 0);
    }
}

static void stopped_run_leaves_its_last_weights_or_the_best(void **state)
{
    static char expected[1 << 20], path[512];
    scratch *dir = *state;
    disk d;
    sl_train_options options = best_is_first(dir, &d, path);
    assert_int_equal(remove_directory(d.directory), 0);
    size_t count = expected_weights(dir, options, expected, sizeof expected);
    check_left_by_stop(dir, 10, 4, expected, count); /* in the second epoch */
    options.epochs = 1;
    options.max_batches = 2;
    static small_record record;
    options.save = scratch_path(dir, "undisturbed");
    check_ok(small_run(&options, &record));
    count = read_weights(options.save, expected, sizeof expected);
    check_left_by_stop(dir, 2, 2, expected, count);
}

static int tear_down(void **state)
{
    scratch_remove_tree(*state, "weights");
    scratch_remove_tree(*state, "hidden");
    return scratch_remove(state);
}

int outputs_tests(void)
{
#define WITH_CORPUS(test) cmocka_unit_test_setup_teardown(test, small_corpus_create, tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(inputs_and_outputs_of_a_run_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(outputs_are_replaced_at_once, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(best_and_newest_checkpoint_are_found, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(last_number_is_read_back, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(what_is_no_number_counts_as_none, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(file_or_link_of_the_user_stays_as_it_is, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(directory_that_is_not_there_is_no_error),
        cmocka_unit_test_setup_teardown(run_says_what_was_lost_after_the_newest_checkpoint,
                                        small_corpus_create, scratch_remove),
        WITH_CORPUS(run_without_room_for_its_weights_goes_on),
        WITH_CORPUS(weights_that_cannot_be_saved_at_last_are_an_error_after_the_results),
        WITH_CORPUS(every_rank_hears_of_weights_that_cannot_be_saved),
        WITH_CORPUS(resumed_run_saves_what_was_best_before),
        WITH_CORPUS(stopped_run_leaves_its_last_weights_or_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
