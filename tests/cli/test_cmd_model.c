/* The program `sluice model`, run as a user does. */
#include "cli/corpus.h"

static void totals_of_the_presets_are_the_tutorials(void **state)
{
    (void)state;
    program_run run;
    program_succeed(&run, "model --preset pipeline-tutorial");
    check_text(run.out, "\nTotal parameters in model: 1,444,261,998\n");
    check_line(run.out, "^13 +Decoder +\\[20, 25, 28782\\] +117,919,854$");
    check_line(run.out, "^0 +cpu:0 +0-6 +722,116,608 .* GiB .* MiB$");
    check_line(run.out, "^1 +cpu:1 +7-13 +722,145,390 .* GiB .* MiB$");
    program_succeed(&run, "model --preset ddp-pipeline --ntokens 28782");
    check_text(run.out, "\nTotal parameters in model: 1,061,924,974\n");
    check_text(run.out,
               "\nIn all: 21.27 GiB, with a copy of the best parameters (3.88 GiB); this ");
    program_succeed(&run, "model --preset ddp-pipeline --emsize 1048576");
    check_line(run.out, "^It does not fit: the run needs .* force( starts it anyway)?\\.$");
    program_succeed(&run, "model");
    check_text(run.out, "\nTotal parameters in model: 12,025,582\n");
}

static void replicas_are_shown_with_their_devices(void **state)
{
    (void)state;
    program_run run, sharded;
    program_succeed(&run, "model --preset ddp-pipeline --momentum 0.9");
    check_text(run.out, "\nReplica 0:\nstage ");
    check_text(run.out, "\nReplica 1:\nstage ");
    check_line(run.out, "^0 +cpu:0 +0-4 +541,188,096 +2.02 GiB +1.94 GiB +1.94 GiB ");
    check_line(run.out, "^1 +cpu:3 +5-9 +520,736,878 +1.94 GiB +1.94 GiB +1.94 GiB ");
    program_succeed(&sharded, "model --preset ddp-pipeline --momentum 0.9 --zero");
    check_line(sharded.out, "^0 +cpu:0 +0-4 +541,188,096 +2.02 GiB +1.94 GiB +993.17 MiB ");
    program_succeed(&run, "model");
    check_without(run.out, "Replica");
}

static void types_are_counted_in_the_data(void **state)
{
    scratch *in = *state;
    program_run counted, given;
    program_succeed(&given, "data %s --head 0", in->directory);
    double types = number_after(given.out, "vocabulary: ");
    program_succeed(&given, "model " TINY_MODEL " --ntokens %.0f", types);
    program_succeed(&counted, "model " TINY_MODEL " --data %s", in->directory);
    assert_string_equal(counted.out, given.out);
}

static void devices_need_not_be_here_but_be_some(void **state)
{
    (void)state;
    program_run run;
    program_succeed(&run, "model --devices cpu:1000-1063");
    check_line(run.out, "^0 +cpu:1000-1063 +0-3 ");
    program_start(&run, "model --devices gpu");
    check_refused(&run, 1, "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST, got \"gpu\"\n");
}

static void number_of_types_beside_the_data_is_refused(void **state)
{
    scratch *in = *state;
    program_run run;
    program_start(&run, "model --ntokens 5 --data %s", in->directory);
    check_refused(&run, 2, "so it cannot go with --ntokens\n");
}

static void flag_overrides_the_preset_wherever_it_stands(void **state)
{
    (void)state;
    program_run before, after;
    program_succeed(&before, "model --nlayers 4 --pp 1 --preset pipeline-tutorial --emsize 64");
    program_succeed(&after, "model --preset pipeline-tutorial --emsize 64 --nlayers 4 --pp 1");
    assert_string_equal(before.out, after.out);
    check_line(after.out, "^5 +Decoder +\\[20, 25, 28782\\]");
    check_line(after.out, "^0 +cpu:0 +0-5 ");
}

static void balance_and_devices_replace_the_presets_stages(void **state)
{
    (void)state;
    program_run run;
    program_succeed(&run, "model --preset pipeline-tutorial --balance 5,5,4");
    check_line(run.out, "^2 +cpu:2 +10-13 ");
    program_succeed(&run, "model --preset pipeline-tutorial --devices cpu:0,cpu:1,cpu:2");
    check_line(run.out, "^2 +cpu:2 +9-13 ");
    program_start(&run, "model --preset pipeline-tutorial --pp 2 --balance 5,5,4");
    check_refused(&run, 1, "balance must give one number for each of 2 stages, got 3 numbers\n");
}

static void columns_stand_under_their_titles(void **state)
{
    (void)state;
    program_run run;
    program_succeed(&run, "model --preset pipeline-tutorial");
    size_t width = strcspn(run.out, "\n");
    const char *line = run.out;
    for (int i = 0; i < 15; i++, line += width + 1)
        assert_int_equal(strcspn(line, "\n"), width);
    width = strcspn(++line, "\n");
    for (int i = 0; i < 3; i++, line += width + 1)
        assert_int_equal(strcspn(line, "\n"), width);
}

static void impossible_model_is_refused(void **state)
{
    (void)state;
    program_run run;
    program_start(&run, "model --emsize 200 --nhead 3");
    check_refused(&run, 1, "emsize must be divisible by nhead, got emsize 200 and nhead 3\n");
    program_start(&run, "model --nlayers 2 --pp 3");
    check_refused(&run, 1, "there are more stages than layers: 3 stages, 2 layers\n");
    program_start(&run, "model --balance 2,3");
    check_refused(&run, 1, "balance must add up to the model's 4 modules");
    program_start(&run, "model --ntokens 0");
    check_refused(&run, 2, "--ntokens must be a whole number from 1 to 2147483647, got \"0\"\n");
    program_start(&run, "model --preset transformer");
    check_refused(&run, 2, "preset must be transformer-tutorial, pipeline-tutorial or ");
    program_start(&run, "model --data /nowhere");
    check_refused(&run, 1, "/nowhere: expected a directory of text files");
}

int cmd_model_tests(void)
{
    if (!program_exists())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(totals_of_the_presets_are_the_tutorials),
        cmocka_unit_test(replicas_are_shown_with_their_devices),
        cmocka_unit_test_setup_teardown(types_are_counted_in_the_data, corpus_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(number_of_types_beside_the_data_is_refused, corpus_create,
                                        scratch_remove),
        cmocka_unit_test(devices_need_not_be_here_but_be_some),
        cmocka_unit_test(flag_overrides_the_preset_wherever_it_stands),
        cmocka_unit_test(balance_and_devices_replace_the_presets_stages),
        cmocka_unit_test(columns_stand_under_their_titles),
        cmocka_unit_test(impossible_model_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
