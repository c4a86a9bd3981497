/* The programs `sluice data` and `sluice model`, run as a user does. */
#include "sluice/app/text.h"
#include "support/program.h"
#include "text/vocab.h"

#include <sys/wait.h>

static void directory_is_shown_and_its_vocabulary_written(void **state)
{
    scratch *dir = *state;
    program_run run;
    SCOPED(sl_vocab) *vocab = NULL;
    scratch_write(dir, "train.txt", "The cat.\n\nThe dog, the bird.\n");
    scratch_write(dir, "valid.txt", "the fish");
    scratch_write(dir, "test.txt", "a\nb\nc\nthe");
    program_succeed(&run, "data %s --head 3 --vocab %s", dir->directory,
                    scratch_path(dir, "vocab.json"));
    check_text(run.out, "train             3              9              0  ");
    check_text(run.out, "valid             1              2              1  ");
    check_text(run.out, "test              4              4              3  ");
    check_text(run.out, "vocabulary: 7 types, with <unk>");
    check_text(run.out, "       0              0  <unk>\n"
                        "       1              3  the\n"
                        "       2              2  .\n\n");
    check_without(run.out, "synthetic");
    check_ok(sl_vocab_open(scratch_path(dir, "vocab.json"), NULL, &vocab));
    assert_int_equal(sl_vocab_size(vocab), 7);
    assert_string_equal(sl_vocab_token(vocab, 6).text, "dog");
}

static void control_characters_of_a_text_are_escaped(void **state)
{
    static const char *const splits[] = {"train.txt", "valid.txt", "test.txt"};
    scratch *dir = *state;
    program_run run;
    for (int i = 0; i < 3; i++)
        scratch_write(dir, splits[i],
                      "\x1b[31mred na\xc3\xafve \xc2\x9b"
                      "2J\n");
    assert_int_equal(symlink(".", scratch_path(dir, "\x1b[32m")), 0);
    program_succeed(&run, "data %s/\x1b[32m --vocab %s/\x1b[32m/v", dir->directory, dir->directory);
    check_text(run.out, "/\\x1b[32m/train.txt\n");
    check_text(run.out, "vocabulary written to ");
    check_without(run.out, "\x1b");
    check_text(run.out, "  \\x1b[31mred\n");
    check_text(run.out, "  na\xc3\xafve\n");
    check_text(run.out, "  \\xc2\\x9b2j\n");
    program_succeed(&run,
                    "train --data %s --emsize 8 --nhid 8 --nhead 1 --nlayers 1 --bptt 1 "
                    "--batch-size 1 --eval-batch-size 1 --epochs 1 --quiet --save %s/m",
                    dir->directory, dir->directory);
    program_succeed(&run, "generate --init %s/m --tokens 1 --prompt \x1b[31mred", dir->directory);
    check_text(run.out, "\\x1b[31mred ");
    check_without(run.out, "\x1b");
}

static void text_in_another_encoding_is_said_or_refused(void **state)
{
    scratch *dir = *state;
    program_run run;
    char expected[512];
    scratch_write(dir, "train.txt",
                  "Stra\xdf"
                  "e nach K\xf6ln\n");
    scratch_write(dir, "valid.txt", "K\xf6ln ist gro\xc3\x9f\n");
    scratch_write(dir, "test.txt", "Berlin ist\n");
    program_start(&run, "data %s", dir->directory);
    assert_int_equal(run.status, 0);
    check_text(run.out, "  stra\xEF\xBF\xBD"
                        "e\n");
    snprintf(expected, sizeof expected,
             "sluice: warning: %s/train.txt has 2 bytes that are not UTF-8: is it in another "
             "encoding?\nsluice: warning: %s/valid.txt has 1 byte that is not UTF-8: is it in "
             "another encoding?\n",
             dir->directory, dir->directory);
    assert_string_equal(run.err, expected);
    scratch_write(dir, "test.txt", "\xe2\xe5\xf0\xeb\xe8\xed\n");
    program_start(&run, "data %s", dir->directory);
    check_refused(&run, 1, "expected text in UTF-8, but of its 6 bytes at least 6 are not UTF-8");
    scratch_write(dir, "test.txt", "nach K\xf6ln\n");
    scratch_write(dir, "valid.txt", "nach nach\n");
    program_start(&run,
                  "train --data %s --emsize 8 --nhid 8 --nhead 1 --nlayers 1 --bptt 1 "
                  "--batch-size 1 --eval-batch-size 1 --epochs 1 --quiet",
                  dir->directory);
    assert_int_equal(run.status, 0);
    check_text(run.err, "train.txt has 2 bytes that are not UTF-8");
    check_text(run.err, "test.txt has 1 byte that is not UTF-8");
}

static void synthetic_text_is_written_and_its_best_perplexity_said(void **state)
{
    scratch *dir = *state;
    program_run written, shown;
    program_succeed(&written, "data --synthetic %s --seed 5 --tokens 5000 --head 0",
                    dir->directory);
    check_text(written.out,
               "the best possible perplexity is 5.8811 (6.0484 in blocks of 35 tokens");
    check_without(written.out, "in train");
    assert_int_equal(scratch_entries(dir, 0), 3);
    program_succeed(&shown, "data %s --head 0", dir->directory);
    assert_string_equal(shown.out, written.out);
}

static void seed_decides_the_synthetic_text(void **state)
{
    scratch *dir = *state;
    program_run first, other, again;
    program_succeed(&first, "data --synthetic %s --tokens 2000 --seed 1", dir->directory);
    program_succeed(&other, "data --synthetic %s --tokens 2000 --seed 2", dir->directory);
    program_succeed(&again, "data --synthetic %s --tokens 2000 --seed 1", dir->directory);
    assert_string_not_equal(first.out, other.out);
    assert_string_equal(first.out, again.out);
}

static void failure_is_one_sentence_and_status_1(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "data /nowhere");
    check_refused(&run, 1,
                  "sluice: /nowhere: expected a directory of text files, or a file of text: ");
    program_succeed(&run, "data --synthetic %s --tokens 10 --head 0", dir->directory);
    program_start(&run, "data %s --vocab %s/no/vocab", dir->directory, dir->directory);
    assert_int_equal(run.status, 1);
    check_line(run.err, "^sluice: .*directory does not exist$");
    program_start(&run, "data %s --vocab %s/./train.txt", dir->directory, dir->directory);
    check_refused(&run, 1, "/train.txt is an input and must not be overwritten\n");
    program_start(&run, "data --synthetic %s --vocab %s/test.txt", dir->directory, dir->directory);
    check_refused(&run, 1, "/test.txt is an input and must not be overwritten\n");
    program_succeed(&run, "data %s", dir->directory);
    check_text(run.out, "synthetic text: the best possible perplexity is ");
}

static void output_that_cannot_be_written_is_an_error(void **state)
{
    static const char *const lines[] = {"schedule", "train --help", "--help", "--version"};
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: there is no /dev/full\n");
        skip();
    }
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char command[1024], text[256] = "";
        snprintf(command, sizeof command, "exec 2>&1; '%s' %s >/dev/full", getenv("SLUICE_PROGRAM"),
                 lines[i]);
        FILE *running = popen(command, "r");
        assert_non_null(running);
        assert_non_null(fgets(text, sizeof text, running));
        assert_int_equal(WEXITSTATUS(pclose(running)), 1);
        check_text(text, "sluice: standard output cannot be written: ");
    }
}

static void misuse_is_one_sentence_and_status_2(void **state)
{
    static const char *const misuses[][2] = {
        {"", "sluice: data: expected a directory of text, or --synthetic DIR\n"},
        {"''", "sluice: data: expected a directory of text, got \"\"\n"},
        {"--synthetic=", "sluice: --synthetic must not be empty\n"},
        {"a --vocab=", "sluice: --vocab must not be empty\n"},
        {"a b", "sluice: data: expected one directory, got \"b\"\n"},
        {"a --synthetic b", "sluice: data: expected one directory, got "},
        {"a --seed 1", "sluice: --seed needs --synthetic DIR\n"},
        {"a --head -1", "sluice: --head must be a whole number from 0 to 2147483647, got \"-1\"\n"},
        {"a --head x", "sluice: --head must be a whole number from 0 to 2147483647, got \"x\"\n"},
        {"--synthetic a --tokens 0", "sluice: --tokens must be a whole number from 1"},
        {"a --bogus", "got \"--bogus\"\n"},
    };
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        program_run run;
        program_start(&run, "data %s", misuses[i][0]);
        check_refused(&run, 2, misuses[i][1]);
    }
}

/* ---- sluice model -------------------------------------------------------------------------------
 */

static void totals_of_the_presets_are_the_tutorials(void **state)
{
    program_run run;
    program_succeed(&run, "model --preset pipeline-tutorial");
    check_text(run.out, "\nTotal parameters in model: 1,444,261,998\n");
    check_line(run.out, "^name +type +output +parameters +forward FLOPs$");
    check_line(run.out, "^13 +Decoder +\\[20, 25, 28782\\] +117,919,854 +117,891,072,000$");
    check_line(run.out, "^0 +cpu:0 +0-6 +722,116,608 .* GiB .* MiB$");
    check_line(run.out, "^1 +cpu:1 +7-13 +722,145,390 .* GiB .* MiB$");
    program_succeed(&run, "model --preset ddp-pipeline --ntokens 28782");
    check_text(run.out, "\nTotal parameters in model: 1,061,924,974\n");
    check_text(run.out,
               "\nIn all: 21.30 GiB, with a copy of the best parameters (3.88 GiB); this ");
    program_succeed(&run, "model --preset ddp-pipeline --emsize 1048576");
    check_line(run.out, "^It does not fit: the run needs .* force( starts it anyway)?\\.$");
    program_succeed(&run, "model");
    check_text(run.out, "\nTotal parameters in model: 12,025,582\n");
}

static void replicas_are_shown_with_their_devices(void **state)
{
    program_run run, sharded;
    program_succeed(&run, "model --preset ddp-pipeline --momentum 0.9");
    check_text(run.out, "\nReplica 0:\nstage ");
    check_text(run.out, "\nReplica 1:\nstage ");
    check_line(run.out, "^0 +cpu:0 +0-4 +541,188,096 +2.02 GiB +1.94 GiB +1.94 GiB ");
    check_line(run.out, "^1 +cpu:3 +5-9 +520,736,878 +1.94 GiB +1.94 GiB +1.94 GiB ");
    program_succeed(&sharded, "model --preset ddp-pipeline --momentum 0.9 --zero");
    check_line(sharded.out, "^0 +cpu:0 +0-4 +541,188,096 +2.02 GiB +1.94 GiB +993.17 MiB ");
    program_succeed(&run,
                    "model --preset ddp-pipeline --optimizer adamw --optimizer-precision bf16");
    check_line(run.out, "^0 +cpu:0 +0-4 +541,188,096 +2.02 GiB +1.94 GiB +1.94 GiB ");
    program_succeed(&run, "model");
    check_without(run.out, "Replica");
}

static void bytes_are_added_up_where_they_are(void **state)
{
    program_run run;
    const char *two_stages = "model " TINY_MODEL " --ntokens 1000 --pp 2";
    program_succeed(&run, "model --devices cuda:0");
    check_line(run.out, "^0 .* 49.69 MiB +45.87 MiB +0 B +10.71 MiB +76.86 MiB$");
    check_line(run.out, "^On cuda:0: 229.00 MiB, with a copy of the best parameters \\(45.87 MiB");
    program_succeed(&run, "%s --devices cuda:0/0,cuda:0/1", two_stages);
    check_line(run.out, "^On cuda:0: .*, with a copy of the best parameters \\(.*\\)\\.$");
    check_without(run.out, "In all");
    program_succeed(&run, "%s --dp 2 --devices cuda:0,cuda:1,cuda:2,cuda:3", two_stages);
    check_line(run.out, "^On cuda:1: ");
    check_line(run.out, "^On cuda:3: .*, with a copy of the best parameters \\(0 B\\)\\.$");
    program_succeed(&run, "%s --devices cpu:0,cuda:0", two_stages);
    check_line(run.out, "^On cuda:0: ");
    check_line(run.out, "^In all: .* this machine has ");
}

static void types_are_counted_in_the_data(void **state)
{
    scratch *dir = *state;
    program_run counted, given;
    program_succeed(&given, "data %s --head 0", dir->directory);
    double types = number_after(given.out, "vocabulary: ");
    program_succeed(&given, "model " TINY_MODEL " --ntokens %.0f", types);
    program_succeed(&counted, "model " TINY_MODEL " --data %s", dir->directory);
    assert_string_equal(counted.out, given.out);
}

static void devices_need_not_be_here_but_be_some(void **state)
{
    program_run run;
    program_succeed(&run, "model --devices cpu:1000-1063");
    check_line(run.out, "^0 +cpu:1000-1063 +0-3 ");
    program_start(&run, "model --devices gpu");
    check_refused(&run, 1,
                  "a device is named cpu, cpu:NUMBER or cpu:FIRST-LAST; "
                  "cuda:NUMBER or cuda:NUMBER/NUMBER, got \"gpu\"\n");
}

static void number_of_types_beside_the_data_is_refused(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "model --ntokens 5 --data %s", dir->directory);
    check_refused(&run, 2, "so it cannot be combined with --ntokens\n");
}

static void batch_invariance_is_refused_where_nothing_is_timed(void **state)
{
    program_run run;
    program_start(&run, "model --preset small --batch-invariant");
    check_refused(&run, 2, "which --profile measures: give both, or neither\n");
}

static void flag_overrides_the_preset_wherever_it_stands(void **state)
{
    program_run before, after;
    program_succeed(&before, "model --nlayers 4 --pp 1 --preset pipeline-tutorial --emsize 64");
    program_succeed(&after, "model --preset pipeline-tutorial --emsize 64 --nlayers 4 --pp 1");
    assert_string_equal(before.out, after.out);
    check_line(after.out, "^5 +Decoder +\\[20, 25, 28782\\]");
    check_line(after.out, "^0 +cpu:0 +0-5 ");
}

static void balance_and_devices_replace_the_presets_stages(void **state)
{
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

static void profile_shows_the_time_of_each_module(void **state)
{
    program_run run;
    program_succeed(&run, "model " TINY_MODEL " --ntokens 500 --nlayers 3 --pp 2 --profile");
    check_line(run.out, "^name +type +output +parameters +forward FLOPs +F ms +I ms +W ms$");
    check_line(run.out, "^0 +Encoder .* [0-9]+\\.[0-9]{3} +[0-9]+\\.[0-9]{3} +[0-9]+\\.[0-9]{3}$");
    check_line(run.out, "^3 +TransformerEncoderLayer .* [0-9]+\\.[0-9]{3} +[0-9]+\\.[0-9]{3} +");
    check_line(run.out, "^4 +Decoder .* 0\\.000 +[0-9]+\\.[0-9]{3} +[0-9]+\\.[0-9]{3}$");
}

static void impossible_model_is_refused(void **state)
{
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
    check_refused(&run, 2,
                  "preset must be transformer-tutorial, pipeline-tutorial, ddp-pipeline or ");
    program_start(&run, "model --data /nowhere");
    check_refused(&run, 1, "/nowhere: expected a directory of text files");
}

int data_and_model_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(directory_is_shown_and_its_vocabulary_written),
        WITH_SCRATCH(control_characters_of_a_text_are_escaped),
        WITH_SCRATCH(text_in_another_encoding_is_said_or_refused),
        WITH_SCRATCH(synthetic_text_is_written_and_its_best_perplexity_said),
        WITH_SCRATCH(seed_decides_the_synthetic_text),
        WITH_SCRATCH(failure_is_one_sentence_and_status_1),
        cmocka_unit_test(output_that_cannot_be_written_is_an_error),
        cmocka_unit_test(misuse_is_one_sentence_and_status_2),
        cmocka_unit_test(totals_of_the_presets_are_the_tutorials),
        cmocka_unit_test(replicas_are_shown_with_their_devices),
        cmocka_unit_test(bytes_are_added_up_where_they_are),
        cmocka_unit_test_setup_teardown(types_are_counted_in_the_data, corpus_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(number_of_types_beside_the_data_is_refused, corpus_create,
                                        scratch_remove),
        cmocka_unit_test(batch_invariance_is_refused_where_nothing_is_timed),
        cmocka_unit_test(devices_need_not_be_here_but_be_some),
        cmocka_unit_test(flag_overrides_the_preset_wherever_it_stands),
        cmocka_unit_test(balance_and_devices_replace_the_presets_stages),
        cmocka_unit_test(columns_stand_under_their_titles),
        cmocka_unit_test(profile_shows_the_time_of_each_module),
        cmocka_unit_test(impossible_model_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
