/* What the program warns of: on standard error, once a job, and the command goes on. */
#include "cli/corpus.h"

static int set_up(void **state)
{
    static program_run trained;
    scratch *in;
    corpus_create_trained(state, &trained);
    in = *state;
    assert_int_equal(mkdir(scratch_path(in, "other"), 0700), 0);
    write_file(scratch_path(in, "other/train.txt"), "the teachers\nsaw zebras\nzebras zebras\n",
               38);
    write_file(scratch_path(in, "other/valid.txt"), "zebras zebras\nzebras zebras zebras\n", 35);
    write_file(scratch_path(in, "other/test.txt"), "zebras zebras\nthe teachers zebras\n", 34);
    return 0;
}

static int tear_down(void **state)
{
    char line[200];
    scratch *in = *state;
    snprintf(line, sizeof line, "rm -rf '%s/other'", in->directory);
    assert_int_equal(system(line), 0);
    return scratch_remove(state);
}

/* The command ends well, and all that it says on standard error is `text`. */
static void check_warned(const program_run *run, const char *text)
{
    if (run->status != 0 || strcmp(run->err, text) != 0)
        fail_msg("expected status 0 and \"%s\", got %d and: %s", text, run->status, run->err);
}

static void more_micro_batches_than_rows_are_warned_of(void **state)
{
    static const struct {
        const char *options, *text;
    } cases[] = {
        {"--batch-size 8 --chunks 8", ""},
        {"--batch-size 8 --chunks 9",
         "sluice: warning: --chunks is 9, but a batch has 8 rows: it is cut into as many "
         "micro-batches\n"},
        {"--batch-size 1 --chunks 2 --quiet",
         "sluice: warning: --chunks is 2, but a batch has 1 row: it is cut into as many "
         "micro-batches\n"},
        {"--batch-size 4 --chunks 5 --dp 2 --devices cpu:0;cpu:1",
         "sluice: warning: --chunks is 5, but a batch has 4 rows: it is cut into as many "
         "micro-batches\n"},
    };
    scratch *in = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_run run;
        program_start(&run,
                      "train --data %s " TINY_MODEL " " TINY_BATCH " --epochs 1 --max-batches 2 %s",
                      in->directory, cases[i].options);
        check_warned(&run, cases[i].text);
    }
}

static void words_that_the_vocabulary_does_not_have_are_named(void **state)
{
    scratch *in = *state;
    program_run run;
    program_start(&run,
                  "generate --init %s/model.safetensors --tokens 3 --prompt the$Zebras$of$<unk>",
                  in->directory);
    check_warned(&run, "sluice: warning: the vocabulary does not have these words of --prompt, "
                       "which the model sees as <unk>: \"zebras\", \"of\"\n");
    program_succeed(&run, "generate --init %s/model.safetensors --tokens 3 --prompt the",
                    in->directory);
}

static void text_that_is_mostly_unknown_is_warned_of(void **state)
{
    scratch *in = *state;
    const char *at = in->directory;
    program_run run;
    char expected[1024];
    program_start(&run,
                  "eval --init %s/model.safetensors --data %s/other --split valid "
                  "--eval-batch-size 1 --bptt 1",
                  at, at);
    snprintf(expected, sizeof expected,
             "sluice: warning: 100%% of the tokens in %s/other/valid.txt are <unk>: the vocabulary "
             "%s/model.vocab.txt does not have them\n",
             at, at);
    check_warned(&run, expected);
    program_start(&run,
                  "train --init %s/model.safetensors --data %s/other --batch-size 1 "
                  "--eval-batch-size 1 --bptt 1 --epochs 1",
                  at, at);
    assert_int_equal(run.status, 0);
    check_text(run.err, expected);
    check_text(run.err, "% of the tokens in ");
    program_start(&run,
                  "train --data %s/other " TINY_MODEL " --batch-size 1 --eval-batch-size 1 "
                  "--bptt 1 --epochs 1 --dp 2 --devices cpu:0;cpu:1",
                  at);
    check_warned(&run, "");
}

int warnings_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_micro_batches_than_rows_are_warned_of),
        cmocka_unit_test(words_that_the_vocabulary_does_not_have_are_named),
        cmocka_unit_test(text_that_is_mostly_unknown_is_warned_of),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
