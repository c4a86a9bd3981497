/* Which files a run must not write, and which checkpoints are in a run's directory. */
#include "io/scratch.h"
#include "sluice/train.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void check_refused_output(const sl_train_options *options, const char *path, const char *end)
{
    assert_int_equal(sl_train_check_output(options, path), SL_ERR_INVALID);
    assert_non_null(strstr(sl_error_text(), end));
}

static void inputs_and_outputs_of_a_run_are_refused(void **state)
{
    scratch *in = *state;
    char text[512], save[512], vocab[512], other[512];
    write_file(scratch_path(in, "train.txt"), "a\n", 2);
    write_file(scratch_path(in, "valid.txt"), "a\n", 2);
    write_file(scratch_path(in, "test.txt"), "a\n", 2);
    snprintf(text, sizeof text, "%s/./valid.txt", in->directory);
    snprintf(save, sizeof save, "%s/m.safetensors", in->directory);
    snprintf(vocab, sizeof vocab, "%s/m.vocab.txt", in->directory);
    snprintf(other, sizeof other, "%s/log", in->directory);
    sl_train_options options = {.data = in->directory, .save = save};
    check_refused_output(&options, text, "/valid.txt is an input and must not be overwritten");
    check_refused_output(&options, save, "/m.safetensors is written by the run itself");
    check_refused_output(&options, vocab, "/m.vocab.txt is written by the run itself");
    assert_int_equal(sl_train_check_output(&options, other), SL_OK);
    options.save = NULL;
    assert_int_equal(sl_train_check_output(&options, save), SL_OK);
    options.init = save;
    check_refused_output(&options, vocab, "/m.vocab.txt is an input and must not be overwritten");
}

static void best_and_newest_checkpoint_are_found(void **state)
{
    scratch *in = *state;
    static const char *const names[] = {"run", "run/step-00000002", "run/step-00000010"};
    char *best, *newest, directory[512], command[600];
    snprintf(directory, sizeof directory, "%s/run", in->directory);
    assert_int_equal(sl_train_find_checkpoints(directory, &best, &newest), SL_OK);
    assert_null(best);
    assert_null(newest);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(mkdir(scratch_path(in, names[i]), 0700), 0);
    assert_int_equal(sl_train_find_checkpoints(directory, &best, &newest), SL_OK);
    assert_null(best);
    assert_string_equal(newest, scratch_path(in, "run/step-00000010"));
    free(newest);
    assert_int_equal(mkdir(scratch_path(in, "run/best"), 0700), 0);
    assert_int_equal(sl_train_find_checkpoints(directory, &best, &newest), SL_OK);
    assert_string_equal(best, scratch_path(in, "run/best"));
    free(best);
    free(newest);
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    assert_int_equal(system(command), 0);
}

int outputs_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(inputs_and_outputs_of_a_run_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(best_and_newest_checkpoint_are_found, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
