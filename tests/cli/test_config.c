/* sluice train --print-config and --config. */
#include "cli/corpus.h"

#include <string.h>

static void write_text(scratch *in, const char *name, const char *text)
{
    write_file(scratch_path(in, name), text, strlen(text));
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
    "--activation gelu --pre-norm --pp 3 --balance 2,2,2 --chunks 7 --checkpoint always "
    "--schedule 1f1b --dp 2 --zero --batch-size 6 --bptt 9 --eval-batch-size 3 --max-batches 5 "
    "--eval-max-batches 4 --epochs 9 --lr 0.3 --lr-schedule cosine --warmup 3 --clip 0 --seed "
    "18446744073709551615 --allow-nan --momentum 0.7 --nesterov --weight-decay 0.001 --init a.b "
    "--save c$d --save-dir e --save-every 7 --keep 0 --shard-size 3M --resume f --log-json g "
    "--log-interval 3 --quiet --force",
    "--optimizer adamw --betas 0.8,0.99 --eps 1e-6 --gamma 0.5 --step-epochs 2 --devices "
    "cpu:0-0,cpu:1-1",
};

static void configuration_that_is_printed_reads_back(void **state)
{
    scratch *in = *state;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        static program_run first, second;
        print_config(&first, sets[i]);
        write_text(in, "config", first.out);
        program_succeed(&second, "train --print-config --config %s/config", in->directory);
        assert_string_equal(first.out, second.out);
    }
}

static void options_on_the_line_override_the_file(void **state)
{
    scratch *in = *state;
    static program_run run;
    write_text(in, "config", "{\"preset\": \"pipeline-tutorial\", \"nlayers\": 3, \"seed\": 9}");
    program_succeed(&run, "train --print-config --nlayers 5 --config %s/config --chunks 2",
                    in->directory);
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
    scratch *in = *state;
    static program_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        print_config(&run, cases[i].printed);
        write_text(in, "config", run.out);
        program_succeed(&run, "train --print-config %s --config %s/config", cases[i].line,
                        in->directory);
        check_text(run.out, cases[i].there);
        check_without(run.out, cases[i].absent);
    }
}

static void configuration_is_never_overwritten(void **state)
{
    scratch *in = *state;
    program_run run;
    write_text(in, "config", "{\"epochs\": 1}");
    program_start(&run, "train --data %s --config %s/config --log-json %s/config", in->directory,
                  in->directory, in->directory);
    check_refused(&run, 1, "--log-json: /");
    program_start(&run, "train --data %s --config %s/config --save %s/config", in->directory,
                  in->directory, in->directory);
    check_refused(&run, 1, "--save: /");
}

static void file_trains_as_its_options_do(void **state)
{
    scratch *in = *state;
    static program_run one, two;
    static const char options[] =
        TINY_MODEL " " TINY_BATCH " --batch-size 8 --epochs 1 --max-batches 3 --quiet";
    program_succeed(&one, "train --data %s %s", in->directory, options);
    program_succeed(&two, "train --data %s %s --print-config", in->directory, options);
    write_text(in, "config", two.out);
    program_succeed(&two, "train --config %s/config", in->directory);
    assert_string_equal(one.out, two.out);
}

static void file_that_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "/config: "},
        {"[1]", "/config: must be a JSON object of options\n"},
        {"{\"nlayer\": 2}",
         "/config: there is no such option, got \"nlayer\": did you mean nlayers?"},
        {"{\"nlayers\": 0}", "--nlayers must be a whole number from 1 to 10000, got \"0\"\n"},
        {"{\"nlayers\": [2]}", "/config: nlayers must be a number or a text\n"},
        {"{\"nlayers\": true}", "/config: nlayers must be a number or a text\n"},
        {"{\"zero\": \"yes\"}", "--zero must be true or false, got \"yes\"\n"},
        {"{\"schedule\": \"1F1B\"}",
         "--schedule must be gpipe or 1f1b, got \"1F1B\": did you mean 1f1b?"},
        {"{\"keep\": 2}", "--keep needs --save-dir DIR\n"},
        {"{\"seed\": 1, \"seed\": 2}", "/config: "},
    };
    scratch *in = *state;
    program_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(in, "config", cases[i].text);
        program_start(&run, "train --data x --config %s/config", in->directory);
        check_refused(&run, 2, cases[i].sentence);
    }
    program_start(&run, "train --print-config --data a\xff");
    check_refused(&run, 2, "--data is not UTF-8 and cannot be written as JSON");
    program_start(&run, "train --config /no/file");
    check_refused(&run, 2, "/no/file");
}

int config_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(configuration_that_is_printed_reads_back),
        WITH_SCRATCH(options_on_the_line_override_the_file),
        WITH_SCRATCH(printed_configuration_yields_to_the_line),
        cmocka_unit_test_setup_teardown(configuration_is_never_overwritten, corpus_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(file_trains_as_its_options_do, corpus_create,
                                        scratch_remove),
        WITH_SCRATCH(file_that_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
