/* What the program itself says, before a command takes over; and `sluice schedule`. */
#include "io/scratch.h"
#include "support/program.h"

#include <jansson.h>

#include <stdio.h>
#include <sys/resource.h>

static const char *const commands[] = {"train",    "eval",   "generate", "model",
                                       "schedule", "launch", "data"};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void help_names_every_command(void **state)
{
    program_run run;
    program_succeed(&run, "--help");
    check_text(run.out, "Usage: sluice COMMAND");
    for (int i = 0; i < COMMANDS; i++) {
        char line[32];
        snprintf(line, sizeof line, "\n  %-10s ", commands[i]);
        check_text(run.out, line);
    }
}

static void version_is_a_number(void **state)
{
    program_run run;
    char expected[64];
    program_succeed(&run, "--version");
    check_line(run.out, "^sluice [0-9]+\\.[0-9]+\\.[0-9]+$");
    snprintf(expected, sizeof expected, "sluice %s\n", sl_version());
    assert_string_equal(run.out, expected);
}

static void every_command_has_help(void **state)
{
    for (int i = 0; i < COMMANDS; i++) {
        program_run run;
        char usage[64];
        program_succeed(&run, "%s --help", commands[i]);
        snprintf(usage, sizeof usage, "Usage: sluice %s ", commands[i]);
        check_text(run.out, usage);
        check_text(run.out, "\n      --");
    }
}

static void help_has_short_forms(void **state)
{
    static const char *const same[][2] = {{"-h", "--help"},
                                          {"train -h", "train --help"},
                                          {"--help train", "train --help"}};
    program_run one, other;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        program_succeed(&one, "%s", same[i][0]);
        program_succeed(&other, "%s", same[i][1]);
        assert_string_equal(one.out, other.out);
    }
}

/* A script in mpirun's place says which limit it was started with, and the refusal quotes it. */
static void limit_on_open_files_is_raised_to_the_hard_one(void **state)
{
    scratch *dir = *state;
    char path[256], before[4096], quoted[64];
    struct rlimit limit, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = (struct rlimit){.rlim_cur = 64, .rlim_max = limit.rlim_max};
    write_file(scratch_path(dir, "mpirun"), "#!/bin/sh\nulimit -n\n", 19);
    assert_int_equal(chmod(scratch_path(dir, "mpirun"), 0755), 0);
    snprintf(before, sizeof before, "%s", getenv("PATH"));
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", dir->directory);
    setenv("PATH", path, 1);
    program_run run;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    program_start(&run, "launch -n 1 true");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    setenv("PATH", before, 1);
    snprintf(quoted, sizeof quoted, "\"%llu\"", (unsigned long long)limit.rlim_max);
    check_text(run.err, quoted);
}

static void help_of_train_is_in_groups(void **state)
{
    static const char *const groups[] = {"Model:",    "Pipeline:",  "Batches:",
                                         "Training:", "Optimizer:", "Files and display:"};
    program_run run;
    program_succeed(&run, "train --help");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        char title[32];
        snprintf(title, sizeof title, "\n\n %s\n      --", groups[i]);
        check_text(run.out, title);
    }
}

static void bad_option_of_any_command_is_one_sentence(void **state)
{
    program_run run;
    for (int i = 0; i < COMMANDS; i++) {
        program_start(&run, "%s --bogus", commands[i]);
        check_refused(&run, 2, "there is no such option (see sluice ");
        check_text(run.err, "got \"--bogus\"\n");
        program_start(&run, "%s -zyx", commands[i]);
        check_refused(&run, 2, "there is no such option");
    }
    program_start(&run, "train --data");
    check_refused(&run, 2, "--data needs a value\n");
    program_start(&run, "train --quiet=3");
    check_refused(&run, 2, "--quiet takes no value, got \"3\"\n");
}

static void word_where_only_options_go_is_refused(void **state)
{
    program_run run;
    for (int i = 0; i < COMMANDS - 2; i++) { /* the last two take words */
        program_start(&run, "%s word", commands[i]);
        check_refused(&run, 2, "takes options only, got \"word\"\n");
    }
}

static void command_that_is_none_is_refused(void **state)
{
    program_run run;
    program_start(&run, "fine-tune");
    check_refused(&run, 2, "there is no such command (see sluice --help), got \"fine-tune\"\n");
    program_start(&run, "''");
    check_refused(&run, 2, "there is no such command");
    program_start(&run, " ");
    check_refused(&run, 2, "a command is needed: see sluice --help\n");
}

static void near_miss_is_refused_with_what_was_meant(void **state)
{
    static const struct {
        const char *line, *end;
    } cases[] = {
        {"trian", "got \"trian\": did you mean train?\n"},
        {"Launch", "got \"Launch\": did you mean launch?\n"},
        {"launch-ran",
         "got \"launch-ran\": did you mean launch?\n"}, /* launch-rank is not for users */
        {"train --batchsize 3", "got \"--batchsize\": did you mean --batch-size?\n"},
        {"train --bathc-size=3", "got \"--bathc-size=3\": did you mean --batch-size?\n"},
        {"train --save-dri x", "got \"--save-dri\": did you mean --save-dir?\n"},
        {"schedule --chunsk 3", "got \"--chunsk\": did you mean --chunks?\n"},
        {"train --optimizer adam", "must be sgd or adamw, got \"adam\": did you mean adamw?\n"},
        {"model --schedule 1F1B", "must be gpipe, 1f1b, interleaved, looped-bfs, zb-h1 or zb-v, "
                                  "got \"1F1B\": did you mean 1f1b?\n"},
        {"model --schedule zigzag",
         "must be gpipe, 1f1b, interleaved, looped-bfs, zb-h1 or zb-v, got \"zigzag\"\n"},
        {"train --preset ddp-pipline", "got \"ddp-pipline\": did you mean ddp-pipeline?\n"},
        {"eval --split tset", "train, valid or test, got \"tset\": did you mean test?\n"},
        {"train --schedule Interleaved1F1B", "did you mean interleaved?\n"},
        {"schedule --schedule looped", "did you mean looped-bfs?\n"},
        {"checkpoint shwo", "got \"shwo\": did you mean show?\n"},
    };
    program_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_start(&run, "%s", cases[i].line);
        check_refused(&run, 2, cases[i].end);
    }
}

static void control_characters_in_an_error_are_escaped(void **state)
{
    program_run run;
    program_start(&run, "two\nlines\033[31m");
    check_refused(&run, 2, "got \"two\\x0alines\\x1b[31m\"\n");
    program_start(&run, "data no\nsuch\033directory");
    check_refused(&run, 1, "no\\x0asuch\\x1bdirectory: expected a directory of text");
}

/* ---- sluice schedule ----------------------------------------------------------------------------
 */

static void gpipe_is_drawn(void **state)
{
    program_run run;
    program_succeed(&run, "schedule --pp 2 --chunks 3");
    check_text(run.out, "0F2 0F1 0F0 ... ... 0B0 0R1 0B1 0R2 0B2\n"
                        "... 1F2 1F1 1F0 1B0 1R1 1B1 1R2 1B2 ...\n");
}

static void one_forward_one_backward_holds_less(void **state)
{
    program_run gpipe, other;
    program_succeed(&gpipe, "schedule --pp 3 --chunks 6 --recompute never");
    program_succeed(&other, "schedule --pp 3 --chunks 6 --recompute never --schedule 1f1b");
    check_text(gpipe.out, "each rank holds at its peak: 6 6 6\n");
    check_text(other.out, "each rank holds at its peak: 3 2 1\n");
    /* (S - 1) / (M + S - 1), for both */
    check_text(gpipe.out, "Makespan 24. Bubble 25.0% of the ranks' time (25.0% by");
    check_text(other.out, "Makespan 24. Bubble 25.0% of the ranks' time (25.0% by");
}

/* Runs `sluice schedule LINE --json`. */
static json_t *simulate(const char *line)
{
    program_run run;
    json_error_t error;
    program_succeed(&run, "schedule %s --json", line);
    json_t *json = json_loads(run.out, 0, &error);
    assert_non_null(json);
    return json;
}

static double number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* With costs of a line of the Zero Bubble paper's table, of which each of two stages has half. */
static void simulation_is_one_json_object(void **state)
{
    static const char *const keys[] = {"ranks",     "stages",    "micros",      "slices",
                                       "makespan",  "bubble",    "bubble_span", "idle",
                                       "peak_held", "placement", "actions"};
    json_t *json = simulate("--pp 8 --chunks 24 --schedule zb-v --recompute never --costs "
                            "18.522,18.086,9.337 --comm 0.601");
    assert_int_equal(json_object_size(json), sizeof keys / sizeof *keys);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(json_object_get(json, keys[i]));
    assert_int_equal(number(json, "ranks"), 8);
    assert_int_equal(number(json, "stages"), 16);
    assert_int_equal(number(json, "micros"), 24);
    assert_int_equal(number(json, "slices"), 1);
    assert_float_equal(number(json, "bubble_span"), 0.0703, 5e-5);
    assert_int_equal(json_array_size(json_object_get(json, "idle")), 8);
    assert_int_equal(json_array_size(json_object_get(json, "peak_held")), 8);
    json_decref(json);
    /* 3 stages a rank: the bubble is (P - 1) / (V M + P - 1). */
    json = simulate("--pp 4 --virtual 3 --chunks 8 --schedule interleaved --recompute never");
    assert_int_equal(number(json, "stages"), 12);
    assert_float_equal(number(json, "bubble"), 3 / 27.0, 1e-12);
    json_decref(json);
    /* Each way to the other rank and back takes 2 x 5. */
    json = simulate("--pp 2 --chunks 1 --recompute never --comm 5");
    assert_float_equal(number(json, "makespan"), 6 + 10, 0);
    char *actions = json_dumps(json_object_get(json, "actions"), JSON_COMPACT);
    assert_string_equal(actions, "[[\"0F0\",0,1],[\"0B0\",14,16],[\"1F0\",6,7],[\"1B0\",7,9]]");
    free(actions);
    json_decref(json);
    /* R costs an F, and the last stage's F that discards nothing: 10, where it is 9 without. */
    json = simulate("--pp 2 --chunks 2 --recompute always");
    assert_float_equal(number(json, "makespan"), 10, 0);
    json_decref(json);
}

static void table_is_written_and_read_again(void **state)
{
    scratch *dir = *state;
    program_run run, again;
    program_succeed(&run, "schedule --pp 2 --chunks 2 --schedule looped-bfs --placement v "
                          "--recompute never --csv");
    assert_string_equal(run.out, "0F1,0F0,3F1,3F0,3B0,3B1,0B0,0B1\n"
                                 "1F1,1F0,2F1,2F0,2B0,2B1,1B0,1B1\n");
    program_succeed(&run, "schedule --pp 2 --chunks 3 --schedule looped-bfs --virtual 3 "
                          "--placement 1,0,0,1,1,0 --csv");
    const char *path = scratch_path(dir, "table.csv");
    write_file(path, run.out, strlen(run.out));
    program_succeed(&again, "schedule --schedule %s --csv", path);
    assert_string_equal(again.out, run.out);
    program_succeed(&again,
                    "schedule --schedule %s --pp 2 --chunks 3 --virtual 3 --placement "
                    "1,0,0,1,1,0 --csv",
                    path);
    assert_string_equal(again.out, run.out);
    static const char *const cases[][2] = {
        {"--pp 3", "table.csv has 2 ranks, not 3\n"},
        {"--virtual 2", "table.csv has 3 stages a rank, not 2\n"},
        {"--chunks 4", "table.csv has 3 micro-batches, not 4\n"},
        {"--placement loop", "table.csv has stage 0 on rank 1, not 0\n"},
        {"--placement 0,1", "placement must be loop, v or the rank (0 to 1) of each of the 6"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_start(&run, "schedule --schedule %s %s", path, cases[i][0]);
        check_refused(&run, 1, cases[i][1]);
    }
}

static void picture_does_not_replace_the_table(void **state)
{
    static const char table[] = "0F0,0B0\n";
    char text[64];
    program_run run;
    const char *path = scratch_path(*state, "table.csv");
    write_file(path, table, strlen(table));
    program_start(&run, "schedule --schedule %s --svg %s", path, path);
    check_refused(&run, 1, "--svg: /");
    check_text(run.err, "/table.csv is an input and must not be overwritten\n");
    assert_int_equal(read_file(path, text, sizeof text), strlen(table));
}

static void error_in_a_table_is_drawn_on_lines_of_its_own(void **state)
{
    static const char table[] = "0F0,0B0\n1B0,1F0\n";
    program_run run;
    const char *path = scratch_path(*state, "bad\ntable.csv");
    write_file(path, table, strlen(table));
    program_start(&run, "schedule --schedule %s", path);
    assert_int_equal(run.status, 1);
    check_text(run.err, "bad\\x0atable.csv: schedule: ");
    check_text(run.err, "1B0 comes before the micro-batch's forward:\n0F0\n1B0\n");
}

static void pytorchs_dual_pipe_v_takes_66_units(void **state)
{
    scratch *dir = *state;
    char line[600];
    const char *path = scratch_path(dir, "table.csv");
    write_file(path, pytorch_dual_pipe_v, strlen(pytorch_dual_pipe_v));
    snprintf(line, sizeof line, "--schedule %s --recompute never --costs 2,2,2", path);
    json_t *json = simulate(line);
    assert_float_equal(number(json, "makespan"), 66, 0);
    for (size_t rank = 0; rank < 4; rank++)
        assert_float_equal(json_number_value(json_array_get(json_object_get(json, "idle"), rank)),
                           6, 0);
    json_decref(json);
}

/* A bar for each action, and a label where there is room. */
static void picture_has_a_bar_for_each_action(void **state)
{
    scratch *dir = *state;
    static char text[1 << 16];
    program_run run;
    const char *path = scratch_path(dir, "table.svg");
    program_succeed(&run, "schedule --pp 2 --chunks 2 --schedule zb-v --recompute never --svg %s",
                    path);
    check_text(run.out, "0F0 0F1 ... 3F0");
    size_t bytes = read_file(path, text, sizeof text - 1);
    assert_true(bytes > 0 && bytes < sizeof text - 1);
    text[bytes] = '\0';
    check_text(text, "<svg xmlns=\"http://www.w3.org/2000/svg\"");
    check_text(text, ">rank 1</text>");
    check_text(text, ">4 stages, 2 micro-batches: makespan ");
    check_text(text + bytes - 7, "</svg>\n");
    int bars = 0;
    for (const char *at = text; (at = strstr(at, "<rect x=")); at++)
        bars++;
    assert_int_equal(bars, 2 * 12);
    program_succeed(&run, "schedule --chunks 3 --slices 2 --svg %s", path);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    check_text(text, ">2 stages, 3 micro-batches of 2 slices: makespan ");
    program_succeed(&run, "schedule --chunks 3 --split-vocabulary --svg %s", path);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    check_text(text, ">S2</text>");
    check_text(text, ">T0</text>");
    program_start(&run, "schedule --svg %s/absent/table.svg", dir->directory);
    assert_int_equal(run.status, 1);
    check_text(run.err, "absent/table.svg: its directory does not exist");
}

static void impossible_value_is_refused(void **state)
{
    program_run run;
    program_start(&run, "schedule --pp 0");
    check_refused(&run, 2, "--pp must be a whole number from 1 to 4096, got \"0\"\n");
    program_start(&run, "schedule --chunks 1e3");
    check_refused(&run, 2, "--chunks must be a whole number from 1 to 65536, got \"1e3\"\n");
    program_start(&run, "schedule --recompute sometimes");
    check_refused(&run, 2, "--recompute must be except_last, never or always, got \"sometimes\"");
    program_start(&run, "schedule --costs 1,2");
    check_refused(&run, 2, "--costs must be three numbers of 0 or more, F,I,W, got \"1,2\"\n");
    program_start(&run, "schedule --csv --json");
    check_refused(&run, 2, "--csv prints the table alone, so it cannot be combined with --json\n");
    program_start(&run, "schedule --json --costs 1,1,1e308");
    check_refused(&run, 1, "the makespan is not finite: --costs or --comm is too large\n");
    program_start(&run, "schedule --chunks 65536 --slices 2");
    check_refused(&run, 2, "--chunks times --slices must be at most 65536, got 65536 times 2\n");
    program_start(&run, "schedule --schedule /no/table.csv");
    check_refused(
        &run, 2,
        "--schedule must name a file (No such file or directory), got \"/no/table.csv\"\n");
    program_start(&run, "schedule --schedule x");
    check_refused(&run, 2,
                  "--schedule must be gpipe, 1f1b, interleaved, looped-bfs, zb-h1 or zb-v, got "
                  "\"x\"\n");
}

int main_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_names_every_command),
        cmocka_unit_test(version_is_a_number),
        cmocka_unit_test(every_command_has_help),
        cmocka_unit_test(help_has_short_forms),
        WITH_SCRATCH(limit_on_open_files_is_raised_to_the_hard_one),
        cmocka_unit_test(help_of_train_is_in_groups),
        cmocka_unit_test(bad_option_of_any_command_is_one_sentence),
        cmocka_unit_test(word_where_only_options_go_is_refused),
        cmocka_unit_test(command_that_is_none_is_refused),
        cmocka_unit_test(near_miss_is_refused_with_what_was_meant),
        cmocka_unit_test(control_characters_in_an_error_are_escaped),
        cmocka_unit_test(gpipe_is_drawn),
        cmocka_unit_test(one_forward_one_backward_holds_less),
        cmocka_unit_test(simulation_is_one_json_object),
        WITH_SCRATCH(table_is_written_and_read_again),
        WITH_SCRATCH(picture_does_not_replace_the_table),
        WITH_SCRATCH(error_in_a_table_is_drawn_on_lines_of_its_own),
        WITH_SCRATCH(pytorchs_dual_pipe_v_takes_66_units),
        WITH_SCRATCH(picture_has_a_bar_for_each_action),
        cmocka_unit_test(impossible_value_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
