#define _GNU_SOURCE /* nftw */
/* A program whose locale writes 0,25: every file of the library has 0.25, and is read again. */
#include "io/safetensors/format.h"
#include "small_run.h"

#include "core/json.h"
#include "sluice/checkpoint.h"

#include <ftw.h>
#include <jansson.h>
#include <locale.h>
#include <unistd.h>

static char locales[] = "/tmp/sluice-locale-XXXXXX";

static int remove_entry(const char *path, const struct stat *found, int kind, struct FTW *at)
{
    (void)found, (void)kind, (void)at;
    return remove(path);
}

/* A locale of its own, since those with a comma are installed on few machines. */
static bool choose_a_comma(void)
{
    static const char source[] = "LC_NUMERIC\ndecimal_point \",\"\nthousands_sep \".\"\n"
                                 "grouping 3;3\nEND LC_NUMERIC\n";
    char text[8], path[128], command[256];
    if (!mkdtemp(locales))
        return false;
    snprintf(path, sizeof path, "%s/source", locales);
    write_file(path, source, sizeof source - 1);
    snprintf(command, sizeof command, "localedef -c -i %s %s/comma >%s/output 2>&1", path, locales,
             locales);
    (void)!system(command); /* its status tells of the categories that are missing too */
    setenv("LOCPATH", locales, 1);
    if (!setlocale(LC_NUMERIC, "comma"))
        return false;
    snprintf(text, sizeof text, "%.2f", 0.25);
    return strcmp(text, "0,25") == 0;
}

static int remove_run(void **state)
{
    FREED scratch *dir = *state;
    nftw(dir->directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return 0;
}

static void numbers_are_those_of_c_between_begin_and_end(void **state)
{
    char inside[8], nested[8], after[8];
    sli_c_numbers outer = sli_c_numbers_begin();
    sli_c_numbers inner = sli_c_numbers_begin();
    snprintf(nested, sizeof nested, "%.2f", 0.25);
    sli_c_numbers_end(inner);
    snprintf(inside, sizeof inside, "%.2f", 0.25);
    assert_true(strtod("0.25", NULL) == 0.25);
    sli_c_numbers_end(outer);
    snprintf(after, sizeof after, "%.2f", 0.25);
    assert_string_equal(nested, "0.25");
    assert_string_equal(inside, "0.25");
    assert_string_equal(after, "0,25");
}

static void options_have_points(void **state)
{
    sl_train_options options;
    const sl_option *row;
    int seen = 0;
    sl_train_options_default(&options);
    for (int i = 0; (row = sl_train_option_row(i)); i++) {
        char *text;
        if (row->type != SL_OPTION_FLOAT && row->type != SL_OPTION_DOUBLE)
            continue;
        check_ok(sl_option_set(row, &options, "0.25"));
        check_ok(sl_option_text(row, &options, &text));
        assert_string_equal(text, "0.25");
        free(text);
        seen++;
    }
    assert_true(seen >= 8 && options.model.dropout == 0.25f && options.lr.lr == 0.25);
}

static void saved_models_have_points(void **state)
{
    char *path = scratch_path(*state, "model"), text[512];
    sl_saved_model *model;
    sl_model_options saved = small_model_options;
    saved.dropout = 0.25f;
    SCOPED(test_pipe) pipe = open_small_model(1, 1);
    check_ok(sl_model_save(pipe.pipe, &saved, NULL, NULL, path));
    check_ok(sl_saved_model_open(path, &model));
    assert_true(sl_saved_model_options(model)->dropout == 0.25f);
    check_ok(sl_saved_model_load(model, pipe.pipe, NULL, NULL));
    sl_saved_model_close(&model);
    path = scratch_path(*state, "model/config.json");
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_non_null(strstr(text, "\"dropout\": 0.25\n"));
}

/* Reads a line of JSON, whose numbers with a comma would be two. */
static json_t *read_line(FILE *file)
{
    char line[16384];
    return fgets(line, sizeof line, file) ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
}

static void run_has_points_in_its_log_and_checkpoints(void **state)
{
    static small_record record;
    scratch *dir = *state;
    sl_run_log *log;
    sl_run_result result;
    sl_checkpoint_reader *reader;
    char path[256], directory[128];
    check_ok(sli_synthetic_write(dir->directory,
                                 &(sli_synthetic_options){.seed = 1, .train_tokens = 4000}));
    sl_train_options options = small_options(dir);
    options.model.dropout = 0.25f;
    options.lr.lr = 0.5;
    snprintf(path, sizeof path, "%s/log.jsonl", dir->directory);
    snprintf(directory, sizeof directory, "%s/saved", dir->directory);
    options.checkpoints = (sl_save_options){.directory = directory, .every_steps = 2};
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    const sl_reporter reporters[] = {sl_run_log_reporter(log), small_reporter(&record)};
    check_ok(sl_train_run(&options, reporters, 2, &result));
    sl_run_log_destroy(&log);

    FILE *file = fopen(path, "r");
    assert_non_null(file);
    json_t *run = read_line(file), *step = read_line(file);
    assert_true(json_number_value(json_object_get(run, "lr")) == 0.5);
    assert_true(json_number_value(json_object_get(step, "loss")) == record.steps[0].loss);
    json_decref(step);
    json_decref(run);
    fclose(file);

    snprintf(path, sizeof path, "%s/step-00000004", directory);
    check_ok(sl_checkpoint_open(path, &reader));
    assert_non_null(strstr(sl_checkpoint_state(reader), "\"lr\":0.5"));
    assert_non_null(strstr(sl_checkpoint_state(reader), "\"dropout\":0.25"));
    sl_checkpoint_close(&reader);
    options.checkpoints.resume = directory; /* compares the options with these */
    check_ok(small_run(&options, &record));
}

int locale_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_those_of_c_between_begin_and_end),
        cmocka_unit_test(options_have_points),
        cmocka_unit_test_setup_teardown(saved_models_have_points, scratch_create, remove_run),
        cmocka_unit_test_setup_teardown(run_has_points_in_its_log_and_checkpoints, scratch_create,
                                        remove_run),
    };
    int failed = 77;
    if (choose_a_comma())
        failed = cmocka_run_group_tests(tests, NULL, NULL);
    else
        print_message("skipped: localedef made no locale with a comma\n");
    nftw(locales, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    return failed;
}
