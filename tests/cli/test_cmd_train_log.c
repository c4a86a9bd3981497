/* The run log of `sluice train`, and what of it a refused run leaves. */
#include "cli/corpus.h"

#include <jansson.h>
#include <math.h>

#define TINY        TINY_MODEL " " TINY_BATCH " --batch-size 8"
#define TINY_SHORT  TINY " --epochs 1 --max-batches 3"
#define STEPS_SHORT 3

static int count_records(json_t *const *records, int count, const char *kind)
{
    int found = 0;
    for (int i = 0; i < count; i++)
        found += strcmp(json_string_value(json_object_get(records[i], "record")), kind) == 0;
    return found;
}

static void check_step(const json_t *step, int number)
{
    assert_int_equal(json_integer_value(json_object_get(step, "step")), number);
    assert_int_equal(json_integer_value(json_object_get(step, "epoch")), 1);
    assert_int_equal(json_integer_value(json_object_get(step, "batch")), number);
    static const char *const numbers[] = {"loss", "grad_norm", "lr", "ms", "tokens_per_s"};
    for (int i = 0; i < 5; i++)
        assert_true(json_real_value(json_object_get(step, numbers[i])) > 0);
}

static void run_log_is_json_lines(void **state)
{
    enum { MOST = 32 };
    scratch *in = *state;
    program_run run;
    json_t *records[MOST];
    int count = 0;
    const char *path = scratch_path(in, "log.jsonl");
    write_file(path, "old\n", 4); /* is replaced */
    program_succeed(&run, "train --data %s " TINY_SHORT " --pp 2 --seed 5 --log-json %s",
                    in->directory, path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (char line[4096]; count < MOST && fgets(line, sizeof line, file); count++)
        assert_non_null(records[count] = json_loads(line, 0, NULL));
    fclose(file);
    assert_int_equal(remove(path), 0);
    assert_int_equal(count_records(records, 1, "run"), 1);
    assert_int_equal(json_integer_value(json_object_get(records[0], "seed")), 5);
    assert_int_equal(json_array_size(json_object_get(records[0], "devices")), 2);
    assert_int_equal(count_records(records, count, "step"), STEPS_SHORT);
    for (int i = 1; i <= STEPS_SHORT; i++)
        check_step(records[i], i);
    assert_int_equal(count_records(records, count, "eval"), 2);
    assert_int_equal(count_records(records, count, "memory"), 2 * 2);
    assert_int_equal(count_records(&records[count - 1], 1, "end"), 1);
    double loss = json_real_value(json_object_get(records[count - 1], "test_loss"));
    assert_float_equal(loss, number_after(run.out, "| test loss "), 0.0051);
    for (int i = 0; i < count; i++)
        json_decref(records[i]);
}

static void any_seed_is_logged_as_it_is(void **state)
{
    scratch *in = *state;
    program_run run;
    char text[4096];
    const char *path = scratch_path(in, "log.jsonl");
    program_succeed(&run,
                    "train --data %s " TINY_SHORT " --seed 18446744073709551615 --log-json %s",
                    in->directory, path);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    check_text(text, "\"seed\":\"18446744073709551615\",");
}

static void run_log_has_the_numbers_that_are_used(void **state)
{
    scratch *in = *state;
    program_run run;
    char text[4096];
    const char *path = scratch_path(in, "log.jsonl");
    program_succeed(&run,
                    "train --data %s " TINY_SHORT " --optimizer adamw --lr 0.01 --log-json %s",
                    in->directory, path);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    assert_true(number_after(text, "\"beta1\":") == 0.9);
    assert_true(number_after(text, "\"beta2\":") == 0.999);
    assert_true(number_after(text, "\"eps\":") == 1e-8);
    assert_true(number_after(text, "\"dropout\":") == 0.2);
}

static void log_of_names_that_are_no_utf8_is_json(void **state)
{
    scratch *in = *state;
    program_run run;
    char text[65536];
    assert_int_equal(symlink(".", scratch_path(in, "d\xc3\xa9\xff")), 0);
    program_succeed(&run,
                    "train --data %s/d\xc3\xa9\xff " TINY_SHORT " --log-json %s/\xfflog.jsonl",
                    in->directory, in->directory);
    text[read_file(scratch_path(in, "\xfflog.jsonl"), text, sizeof text - 1)] = '\0';
    check_text(text, "/d\xc3\xa9\xef\xbf\xbd\",");
    json_t *record = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(record);
    json_decref(record);
}

/* Or the log would take the closed stream's number, and the lines that are meant for it. */
static void log_has_no_lines_of_a_closed_output(void **state)
{
    scratch *in = *state;
    char command[1024], text[65536];
    const char *path = scratch_path(in, "log.jsonl");
    snprintf(command, sizeof command,
             "exec '%s' train --data %s " TINY_SHORT " --log-json %s >&- 2>&- <&-",
             getenv("SLUICE_PROGRAM"), in->directory, path);
    assert_int_equal(WEXITSTATUS(system(command)), 1);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    check_text(text, "\n{\"record\":\"end\",");
    check_without(text, "\n|");
    check_without(text, "sluice: ");
}

static void refused_run_leaves_the_old_log(void **state)
{
    scratch *in = *state;
    program_run run;
    char text[8];
    const char *path = scratch_path(in, "log.jsonl");
    write_file(path, "old\n", 4);
    program_start(&run, "train --data %s --nhead 3 --log-json %s", in->directory, path);
    check_refused(&run, 1, "emsize must be divisible by nhead");
    assert_int_equal(read_file(path, text, sizeof text), 4);
    assert_int_equal(remove(path), 0);
}

int cmd_train_log_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_CORPUS(test) cmocka_unit_test_setup_teardown(test, corpus_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(run_log_is_json_lines),
        WITH_CORPUS(any_seed_is_logged_as_it_is),
        WITH_CORPUS(run_log_has_the_numbers_that_are_used),
        WITH_CORPUS(log_of_names_that_are_no_utf8_is_json),
        WITH_CORPUS(log_has_no_lines_of_a_closed_output),
        WITH_CORPUS(refused_run_leaves_the_old_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
