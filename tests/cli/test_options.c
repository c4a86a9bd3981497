/* The options of `sluice train`: that each one reaches the run, --print-config and --config; and
 * the run log, which has them, with what of it a refused run leaves. */
#include "support/program.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

typedef struct option_case {
    const char *option, *field; /* the field is not in the record without the option */
} option_case;

/* Options that go together in one run; the last of a row is {0}. */
static const option_case option_cases[][24] = {
    {{"--preset ddp-pipeline", "\"preset\":\"ddp-pipeline\""},
     {"--emsize 32", "\"emsize\":32,"},
     {"--nhid 24", "\"nhid\":24,"},
     {"--nlayers 3", "\"nlayers\":3,"},
     {"--nhead 4", "\"nhead\":4,"},
     {"--dropout 0", "\"dropout\":0.0,"},
     {"--mask none", "\"mask\":\"none\""},
     {"--activation gelu_tanh", "\"activation\":\"gelu_tanh\""},
     {"--pre-norm", "\"pre_norm\":true"},
     {"--pp 2", "\"partition\":[3,2]"},
     {"--chunks 3", "\"chunks\":3,"},
     {"--precision bf16", "\"precision\":\"bf16\""},
     {"--recompute always", "\"recompute\":\"always\""},
     {"--schedule 1f1b", "\"schedule\":\"1f1b\""},
     {"--seed 5", "\"seed\":5,"},
     {"--accumulate 2", "\"accumulate\":2,"},
     {"--split-vocabulary", "\"split_vocabulary\":true"},
     {"--batch-invariant", "\"batch_invariant\":true"},
     {"--allow-nan", "\"allow_nan\":true"}},
    {{"--balance 1,3", "\"partition\":[1,3]"},
     {"--dp 2", "\"replicas\":2,"},
     {"--zero", "\"zero\":true"},
     {"--comm-precision bf16", "\"comm_precision\":\"bf16\""},
     {"--bptt 9", "\"bptt\":9,"},
     {"--batch-size 7", "\"batch_size\":7,"},
     {"--eval-batch-size 6", "\"eval_batch_size\":6,"},
     {"--max-batches 2", "\"max_batches\":2,"},
     {"--eval-max-batches 3", "\"eval_max_batches\":3,"},
     {"--epochs 2", "\"epochs\":2,"},
     {"--eval-every 7", "\"eval_every\":7,"},
     {"--optimizer adamw", "\"optimizer\":\"adamw\""},
     {"", "\"lr\":0.001,"},
     {"--betas 0.5,0.75", "\"beta1\":0.5,\"beta2\":0.75,"},
     {"--eps 0.5", "\"eps\":0.5,"}},
    {{"--devices cpu", "\"devices\":[\"cpu\"]"},
     {"--checkpoint never", "\"recompute\":\"never\""}, /* the old name */
     {"--lr 0.5", "\"lr\":0.5,"},
     {"--gamma 0.5", "\"gamma\":0.5,"},
     {"--step-epochs 2", "\"step_epochs\":2,"},
     {"--warmup 4", "\"warmup_steps\":4,"},
     {"--clip 0.25", "\"clip\":0.25,"},
     {"--momentum 0.5", "\"momentum\":0.5,"},
     {"--nesterov", "\"nesterov\":true"},
     {"--weight-decay 0.125", "\"weight_decay\":0.125,"},
     {"--weight-decay-for matrices", "\"weight_decay_for\":\"matrices\""}},
    {{"--momentum 0.5", "\"momentum\":0.5,"},
     {"--dampening 0.25", "\"dampening\":0.25,"},
     {"--warmup-ratio 0.25", "\"warmup_ratio\":0.25,"},
     {"--lr-schedule cosine", "\"lr_schedule\":\"cosine\""},
     {"--slices 2", "\"slices\":2,"}},
    {{"--lr-schedule wsd", "\"lr_schedule\":\"wsd\""}, {"--min-lr 0.5", "\"min_lr\":0.5,"}},
    {{"--optimizer adamw", "\"optimizer\":\"adamw\""},
     {"--optimizer-precision bf16", "\"optimizer_precision\":\"bf16\""},
     {"--lr 0.5", "\"lr\":0.5,"}},
    {{"--optimizer adamw", "\"optimizer\":\"adamw\""},
     {"--preset transformer-tutorial", "\"lr\":0.001,"}},
};

/* The record of a run with `options`. */
static void read_record(scratch *dir, const char *options, char *line, size_t bytes)
{
    program_run run;
    program_start(&run,
                  "train --data %s " TINY_MODEL " " TINY_BATCH
                  " --batch-size 8 --epochs 1 --max-batches 1 --quiet --log-json %s/log %s",
                  dir->directory, dir->directory, options);
    if (run.status != 0)
        fail_msg("\"%s\": %s", options, run.err);
    FILE *log = fopen(scratch_path(dir, "log"), "r");
    assert_non_null(log);
    assert_non_null(fgets(line, (int)bytes, log));
    fclose(log);
    assert_int_equal(remove(dir->path), 0);
}

/* The run log's first record has the values of all options. */
static void every_option_reaches_the_run(void **state)
{
    scratch *dir = *state;
    static char before[8192], after[8192];
    read_record(dir, "", before, sizeof before);
    check_text(before, "\"record\":\"run\"");
    for (size_t i = 0; i < sizeof option_cases / sizeof *option_cases; i++) {
        char options[1024] = "";
        for (const option_case *one = option_cases[i]; one->option; one++) {
            check_without(before, one->field);
            strcat(strcat(options, one->option), *one->option ? " " : "");
        }
        read_record(dir, options, after, sizeof after);
        for (const option_case *one = option_cases[i]; one->option; one++)
            check_text(after, one->field);
    }
}

/* What --print-config prints for these options. */
static void print_config(program_run *run, const char *options)
{
    program_succeed(run, "train --print-config %s", options);
}

static const char *const sets[] = {
    "",
    "--preset ddp-pipeline",
    "--data text --emsize 64 --nhid 32 --nlayers 4 --nhead 4 --dropout 0.1 --mask none "
    "--activation gelu --pre-norm --pp 3 --balance 2,2,2 --chunks 7 --recompute always "
    "--schedule 1f1b --dp 2 --zero --batch-size 6 --bptt 9 --eval-batch-size 3 --max-batches 5 "
    "--eval-max-batches 4 --epochs 9 --lr 0.3 --lr-schedule cosine --warmup 3 --clip 0 --seed "
    "18446744073709551615 --allow-nan --momentum 0.7 --nesterov --weight-decay 0.001 --init a.b "
    "--save c$d --save-dir e --save-every 7 --keep 0 --shard-size 3M --resume f --log-json g "
    "--log-interval 3 --quiet --force --eval-every 2 --trace h --tensorboard i",
    "--log-interval 2.5s",
    "--optimizer adamw --betas 0.8,0.99 --eps 1e-6 --gamma 0.5 --step-epochs 2 --devices "
    "cpu:0-0,cpu:1-1",
};

static void configuration_that_is_printed_reads_back(void **state)
{
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        static program_run first, second;
        print_config(&first, sets[i]);
        scratch_write(dir, "config", first.out);
        program_succeed(&second, "train --print-config --config %s/config", dir->directory);
        assert_string_equal(first.out, second.out);
    }
}

static void options_on_the_line_override_the_file(void **state)
{
    scratch *dir = *state;
    static program_run run;
    scratch_write(dir, "config",
                  "{\"preset\": \"pipeline-tutorial\", \"nlayers\": 3, \"seed\": 9}");
    program_succeed(&run, "train --print-config --nlayers 5 --config %s/config --chunks 2",
                    dir->directory);
    check_text(run.out, "\"emsize\": 4096,"); /* the preset's */
    check_text(run.out, "\"seed\": 9,");
    check_text(run.out, "\"nlayers\": 5,");
    check_text(run.out, "\"chunks\": 2,");
    check_text(run.out, "\"pp\": 2,");
}

static void printed_configuration_yields_to_the_line(void **state)
{
    static const struct {
        const char *printed, *line, *there, *absent;
    } cases[] = {
        {"--preset pipeline-tutorial", "--devices cpu:0", "\"devices\": \"cpu:0\"", "\"pp\""},
        {"--preset pipeline-tutorial", "--balance 4,5,5", "\"balance\": \"4,5,5\"", "\"pp\""},
        {"--emsize 64 --nhead 4", "--preset ddp-pipeline", "\"emsize\": 4096", "\"emsize\": 64"},
        {"", "--optimizer adamw", "\"optimizer\": \"adamw\"", "\"lr\":"},
        {"--lr 2", "--optimizer adamw", "\"lr\": 2,", "\"lr\": 5"},
    };
    scratch *dir = *state;
    static program_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_config(&run, cases[i].printed);
        scratch_write(dir, "config", run.out);
        program_succeed(&run, "train --print-config %s --config %s/config", cases[i].line,
                        dir->directory);
        check_text(run.out, cases[i].there);
        check_without(run.out, cases[i].absent);
    }
}

static void configuration_is_never_overwritten(void **state)
{
    scratch *dir = *state;
    program_run run;
    scratch_write(dir, "config", "{\"epochs\": 1}");
    program_start(&run, "train --data %s --config %s/config --log-json %s/config", dir->directory,
                  dir->directory, dir->directory);
    check_refused(&run, 1, "--log-json: /");
    program_start(&run, "train --data %s --config %s/config --save %s/config", dir->directory,
                  dir->directory, dir->directory);
    check_refused(&run, 1, "--save: /");
}

static void table_is_never_overwritten(void **state)
{
    static const char *const cases[][2] = {{"--log-json", "t.vocab"}, {"--trace", "./t.vocab"}};
    static const char table[] = "0F0,0B0\n";
    scratch *dir = *state;
    program_run run;
    char text[64];
    scratch_write(dir, "t.vocab", table);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_start(&run, "train --data %s " TINY_MODEL " --schedule %s/t.vocab %s %s/%s",
                      dir->directory, dir->directory, cases[i][0], dir->directory, cases[i][1]);
        check_refused(&run, 1, "/t.vocab is an input and must not be overwritten\n");
    }
    assert_int_equal(read_file(scratch_path(dir, "t.vocab"), text, sizeof text), strlen(table));
}

static void file_trains_as_its_options_do(void **state)
{
    scratch *dir = *state;
    static program_run one, two;
    static const char options[] =
        TINY_MODEL " " TINY_BATCH " --batch-size 8 --epochs 1 --max-batches 3 --quiet";
    program_succeed(&one, "train --data %s %s", dir->directory, options);
    program_succeed(&two, "train --data %s %s --print-config", dir->directory, options);
    scratch_write(dir, "config", two.out);
    program_succeed(&two, "train --config %s/config", dir->directory);
    assert_string_equal(one.out, two.out);
}

static void file_that_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "/config: no JSON object of options in line 1 ("},
        {"[1]", "/config: must be a JSON object of options\n"},
        {"{\"nlayer\": 2}",
         "/config: there is no such option, got \"nlayer\": did you mean nlayers?"},
        {"{\"nlayers\": 0}", "--nlayers must be a whole number from 1 to 10000, got \"0\"\n"},
        {"{\"nlayers\": [2]}", "/config: nlayers must be a number or a text\n"},
        {"{\"nlayers\": true}", "/config: nlayers must be a number or a text\n"},
        {"{\"zero\": \"yes\"}", "--zero must be true or false, got \"yes\"\n"},
        {"{\"schedule\": \"1F1B\"}", "--schedule must be gpipe, 1f1b, interleaved, looped-bfs, "
                                     "zb-h1 or zb-v, got \"1F1B\": did you mean 1f1b?"},
        {"{\"keep\": 2}", "--keep needs --save-dir DIR\n"},
        {"{\"partial\": true}", "--partial needs --init DIR|FILE\n"},
        {"{\"config\": \"x\"}", "/config: config cannot name a second file of options\n"},
        {"{\"seed\": 1,\n \"seed\": 2}", "/config: no JSON object of options in line 2 ("},
        {"{\"data\": \"\xff\"}", "/config: no JSON object of options in line 1 ("},
    };
    scratch *dir = *state;
    program_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        scratch_write(dir, "config", cases[i].text);
        program_start(&run, "train --data x --config %s/config", dir->directory);
        check_refused(&run, 2, cases[i].sentence);
    }
    program_start(&run, "train --print-config --data a\xff");
    check_refused(&run, 2, "--data is not UTF-8 and cannot be written as JSON");
    program_start(&run, "train --config /no/file");
    check_refused(&run, 2,
                  "--config must name a file (No such file or directory), got \"/no/file\"\n");
    program_start(&run, "train --config /tmp");
    check_refused(&run, 2, "--config must name a file (Is a directory), got \"/tmp\"\n");
}

static void flag_that_is_off_needs_nothing(void **state)
{
    scratch *dir = *state;
    program_run run;
    scratch_write(dir, "config", "{\"partial\": false}");
    program_succeed(&run, "train --print-config --config %s/config", dir->directory);
    check_without(run.out, "partial");
}

/* A file of options has them as --print-config prints them. */
static void steps_of_a_schedule_without_steps_are_refused(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "train --data x --lr-schedule cosine --gamma 0.5");
    check_refused(&run, 2,
                  "--gamma is for the step schedule, but --lr-schedule is cosine: leave it out\n");
    print_config(&run, "--gamma 0.5 --step-epochs 2");
    scratch_write(dir, "config", run.out);
    program_succeed(&run, "train --print-config --config %s/config --lr-schedule cosine",
                    dir->directory);
    check_text(run.out, "\"gamma\": 0.5,");
    program_start(&run,
                  "train --print-config --config %s/config --lr-schedule cosine "
                  "--step-epochs 2",
                  dir->directory);
    check_refused(&run, 2, "--step-epochs is for the step schedule");
    program_start(&run, "train --data x --lr-schedule constant --min-lr 0.1");
    check_refused(&run, 2,
                  "--min-lr is for the linear, cosine and wsd schedules, but --lr-schedule is "
                  "constant: leave it out\n");
    program_start(&run, "train --data x --warmup 2 --warmup-ratio 0.1");
    check_refused(&run, 2, "--warmup-ratio is what --warmup says in steps: give one of them\n");
    program_start(&run, "train --data x --warmup-ratio 1");
    check_refused(&run, 2, "--warmup-ratio must be at least 0 and below 1, got \"1\"\n");
    program_start(&run, "train --data x --lr-schedule linear --lr 0.1 --min-lr 0.2");
    check_refused(&run, 1, "sluice: --min-lr must not be above lr, got 0.2 and 0.1");
}

/* ---- The run log --------------------------------------------------------------------------- */

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
    scratch *dir = *state;
    program_run run;
    json_t *records[MOST];
    int count = 0;
    const char *path = scratch_path(dir, "log.jsonl");
    write_file(path, "old\n", 4); /* is replaced */
    program_succeed(&run,
                    "train --data %s " TINY_SHORT
                    " --pp 2 --devices cpu:0,cpu:1 --seed 5 --log-json %s",
                    dir->directory, path);
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
    scratch *dir = *state;
    program_run run;
    char text[4096];
    const char *path = scratch_path(dir, "log.jsonl");
    program_succeed(&run,
                    "train --data %s " TINY_SHORT " --seed 18446744073709551615 --log-json %s",
                    dir->directory, path);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    check_text(text, "\"seed\":\"18446744073709551615\",");
}

static void run_log_has_the_numbers_that_are_used(void **state)
{
    scratch *dir = *state;
    program_run run;
    char text[4096];
    const char *path = scratch_path(dir, "log.jsonl");
    program_succeed(&run,
                    "train --data %s " TINY_SHORT " --optimizer adamw --lr 0.01 --log-json %s",
                    dir->directory, path);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    assert_true(number_after(text, "\"beta1\":") == 0.9);
    assert_true(number_after(text, "\"beta2\":") == 0.999);
    assert_true(number_after(text, "\"eps\":") == 1e-8);
    assert_true(number_after(text, "\"dropout\":") == 0.2);
}

static void log_of_names_that_are_no_utf8_is_json(void **state)
{
    scratch *dir = *state;
    program_run run;
    char text[65536];
    assert_int_equal(symlink(".", scratch_path(dir, "d\xc3\xa9\xff")), 0);
    program_succeed(&run,
                    "train --data %s/d\xc3\xa9\xff " TINY_SHORT " --log-json %s/\xfflog.jsonl",
                    dir->directory, dir->directory);
    text[read_file(scratch_path(dir, "\xfflog.jsonl"), text, sizeof text - 1)] = '\0';
    check_text(text, "/d\xc3\xa9\xef\xbf\xbd\",");
    json_t *record = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(record);
    json_decref(record);
}

/* Or the log would take the closed stream's number, and the lines that are meant for it. */
static void log_has_no_lines_of_a_closed_output(void **state)
{
    scratch *dir = *state;
    char command[1024], text[65536];
    const char *path = scratch_path(dir, "log.jsonl");
    snprintf(command, sizeof command,
             "exec '%s' train --data %s " TINY_SHORT " --log-json %s >&- 2>&- <&-",
             getenv("SLUICE_PROGRAM"), dir->directory, path);
    assert_int_equal(WEXITSTATUS(system(command)), 1);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    check_text(text, "\n{\"record\":\"end\",");
    check_without(text, "\n|");
    check_without(text, "sluice: ");
}

static void refused_run_leaves_the_old_log(void **state)
{
    scratch *dir = *state;
    program_run run;
    char text[8];
    const char *path = scratch_path(dir, "log.jsonl");
    write_file(path, "old\n", 4);
    program_start(&run, "train --data %s --nhead 3 --log-json %s", dir->directory, path);
    check_refused(&run, 1, "emsize must be divisible by nhead");
    assert_int_equal(read_file(path, text, sizeof text), 4);
    assert_int_equal(remove(path), 0);
}

int options_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
#define WITH_CORPUS(test)  cmocka_unit_test_setup_teardown(test, corpus_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(every_option_reaches_the_run),
        WITH_SCRATCH(configuration_that_is_printed_reads_back),
        WITH_SCRATCH(options_on_the_line_override_the_file),
        WITH_SCRATCH(printed_configuration_yields_to_the_line),
        WITH_CORPUS(configuration_is_never_overwritten),
        WITH_CORPUS(table_is_never_overwritten),
        WITH_CORPUS(file_trains_as_its_options_do),
        WITH_SCRATCH(file_that_makes_no_sense_is_refused),
        WITH_SCRATCH(flag_that_is_off_needs_nothing),
        WITH_SCRATCH(steps_of_a_schedule_without_steps_are_refused),
        WITH_CORPUS(run_log_is_json_lines),
        WITH_CORPUS(any_seed_is_logged_as_it_is),
        WITH_CORPUS(run_log_has_the_numbers_that_are_used),
        WITH_CORPUS(log_of_names_that_are_no_utf8_is_json),
        WITH_CORPUS(log_has_no_lines_of_a_closed_output),
        WITH_CORPUS(refused_run_leaves_the_old_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
