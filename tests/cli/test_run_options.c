/* Every option that describes a run reaches it: the run log's first record has its value. */
#include "cli/corpus.h"

#define TINY TINY_MODEL " " TINY_BATCH " --batch-size 8 --epochs 1 --max-batches 1"

typedef struct option_case {
    const char *option, *field; /* the field is not in the record without the option */
} option_case;

static const option_case cases[] = {
    {"--preset ddp-pipeline", "\"preset\":\"ddp-pipeline\""},
    {"--emsize 32", "\"emsize\":32,"},
    {"--nhid 24", "\"nhid\":24,"},
    {"--nlayers 3", "\"nlayers\":3,"},
    {"--nhead 4", "\"nhead\":4,"},
    {"--dropout 0", "\"dropout\":0.0,"},
    {"--mask none", "\"mask\":\"none\""},
    {"--activation gelu", "\"activation\":\"gelu\""},
    {"--pre-norm", "\"pre_norm\":true"},
    {"--pp 2", "\"partition\":[2,2]"},
    {"--balance 1,3", "\"partition\":[1,3]"},
    {"--devices cpu", "\"devices\":[\"cpu\"]"},
    {"--chunks 3", "\"chunks\":3,"},
    {"--checkpoint always", "\"checkpoint\":\"always\""},
    {"--schedule 1f1b", "\"schedule\":\"1f1b\""},
    {"--dp 2", "\"replicas\":2,"},
    {"--dp 2 --zero", "\"zero\":true"},
    {"--bptt 9", "\"bptt\":9,"},
    {"--batch-size 7", "\"batch_size\":7,"},
    {"--eval-batch-size 6", "\"eval_batch_size\":6,"},
    {"--max-batches 2", "\"max_batches\":2,"},
    {"--eval-max-batches 3", "\"eval_max_batches\":3,"},
    {"--epochs 2", "\"epochs\":2,"},
    {"--lr 0.5", "\"lr\":0.5,"},
    {"--optimizer adamw", "\"lr\":0.001,"},
    {"--preset transformer-tutorial --optimizer adamw", "\"lr\":0.001,"},
    {"--optimizer adamw --lr 0.5", "\"lr\":0.5,"},
    {"--lr-schedule cosine", "\"lr_schedule\":\"cosine\""},
    {"--gamma 0.5", "\"gamma\":0.5,"},
    {"--step-epochs 2", "\"step_epochs\":2,"},
    {"--warmup 4", "\"warmup_steps\":4,"},
    {"--clip 0.25", "\"clip\":0.25,"},
    {"--optimizer adamw", "\"optimizer\":\"adamw\""},
    {"--momentum 0.5", "\"momentum\":0.5,"},
    {"--momentum 0.5 --nesterov", "\"nesterov\":true"},
    {"--momentum 0.5 --dampening 0.25", "\"dampening\":0.25,"},
    {"--weight-decay 0.125", "\"weight_decay\":0.125}"},
    {"--optimizer adamw --betas 0.5,0.75", "\"beta1\":0.5,\"beta2\":0.75,"},
    {"--optimizer adamw --eps 0.5", "\"eps\":0.5,"},
    {"--seed 5", "\"seed\":5,"},
    {"--allow-nan", "\"allow_nan\":true"},
};

/* The record of a run with `options`. */
static void read_record(scratch *in, const char *options, char *line, size_t bytes)
{
    program_run run;
    program_start(&run, "train --data %s " TINY " --quiet --log-json %s/log %s", in->directory,
                  in->directory, options);
    if (run.status != 0)
        fail_msg("\"%s\": %s", options, run.err);
    FILE *log = fopen(scratch_path(in, "log"), "r");
    assert_non_null(log);
    assert_non_null(fgets(line, (int)bytes, log));
    fclose(log);
    assert_int_equal(remove(in->path), 0);
}

static void every_option_reaches_the_run(void **state)
{
    scratch *in = *state;
    static char before[8192], after[8192];
    read_record(in, "", before, sizeof before);
    check_text(before, "\"record\":\"run\"");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_without(before, cases[i].field);
        read_record(in, cases[i].option, after, sizeof after);
        check_text(after, cases[i].field);
    }
}

int run_options_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_option_reaches_the_run, corpus_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
