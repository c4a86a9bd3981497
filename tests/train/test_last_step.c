/* The number that tells a run which goes on how many steps were lost. */
#include "train/checkpoint/save_directory.h"

#include "io/scratch.h"
#include "small_run.h"

static void last_number_is_read_back(void **state)
{
    scratch *in = *state;
    assert_int_equal(sli_last_step_read(in->directory), 0);
    sli_last_step file = sli_last_step_open(in->directory);
    assert_int_equal(sli_last_step_read(in->directory), 0);
    static const int64_t steps[] = {1, 12345, 99, 7, INT64_MAX};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        sli_last_step_write(&file, steps[i]);
        assert_int_equal(sli_last_step_read(in->directory), steps[i]);
    }
    sli_last_step_close(&file);
    sli_last_step_write(&file, 5); /* closed: nothing happens */
    assert_int_equal(sli_last_step_read(in->directory), INT64_MAX);
    file = sli_last_step_open(in->directory); /* a run that goes on has not done a step yet */
    assert_int_equal(sli_last_step_read(in->directory), INT64_MAX);
    sli_last_step_close(&file);
}

static void what_is_no_number_counts_as_none(void **state)
{
    static const char *const texts[] = {"",
                                        "7\n",
                                        "00000000000000000007",
                                        "0000000000000000007x\n",
                                        "-0000000000000000007\n",
                                        "99999999999999999999999\n"};
    scratch *in = *state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(scratch_path(in, "progress"), texts[i], strlen(texts[i]));
        assert_int_equal(sli_last_step_read(in->directory), 0);
    }
}

static void note_step(const scratch *in, int64_t step)
{
    sli_last_step file = sli_last_step_open(in->directory);
    sli_last_step_write(&file, step);
    sli_last_step_close(&file);
}

static void file_or_link_of_the_user_stays_as_it_is(void **state)
{
    scratch *in = *state;
    char text[16] = "";
    write_file(scratch_path(in, "progress"), "my notes\n", 9);
    note_step(in, 5);
    assert_int_equal(read_file(scratch_path(in, "progress"), text, sizeof text), 9);
    assert_string_equal(text, "my notes\n");
    assert_int_equal(unlink(scratch_path(in, "progress")), 0);
    assert_int_equal(symlink("target", scratch_path(in, "progress")), 0);
    note_step(in, 5);
    assert_int_equal(scratch_entries(in, 0), 1); /* nothing was made behind the link */
}

static void directory_that_is_not_there_is_no_error(void **state)
{
    (void)state;
    sli_last_step file = sli_last_step_open("/nowhere");
    sli_last_step_write(&file, 3);
    sli_last_step_close(&file);
    assert_int_equal(sli_last_step_read("/nowhere"), 0);
}

/* ---- In runs ------------------------------------------------------------------------------- */

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
    scratch *in = *state;
    char saved[128], line[300];
    snprintf(saved, sizeof saved, "%s/saved", in->directory);
    sl_train_options options = small_options(in);
    options.checkpoints = (sl_save_options){.directory = saved, .every_steps = 1};
    check_ok(small_run(&options, &record));
    assert_int_equal(sli_last_step_read(saved), 4);
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

int last_step_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(last_number_is_read_back, scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(what_is_no_number_counts_as_none, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(file_or_link_of_the_user_stays_as_it_is, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(directory_that_is_not_there_is_no_error),
        cmocka_unit_test_setup_teardown(run_says_what_was_lost_after_the_newest_checkpoint,
                                        small_corpus_create, scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
