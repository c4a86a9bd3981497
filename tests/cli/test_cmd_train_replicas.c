/* `sluice train --dp`, run as a user does. */
#include "support/program.h"

#include <stdlib.h>
#include <string.h>

#define TINY_REPLICAS                                                                              \
    TINY_MODEL " " TINY_BATCH " --batch-size 8 --epochs 1 --max-batches 3 --log-interval 2"

enum { REPLICAS = 2 };

/* Fails the test unless every line begins with "[RANK r]: ", r below `replicas`; how many each
 * replica has in counts[0 … replicas - 1]. */
static void count_lines(const char *out, int replicas, int *counts)
{
    memset(counts, 0, (size_t)replicas * sizeof *counts);
    for (const char *line = out; *line; line = strchr(line, '\n') + 1) {
        int rank = -1, end = 0;
        if (sscanf(line, "[RANK %d]:%n", &rank, &end) != 1 || end == 0 || line[end] != ' ' ||
            rank < 0 || rank >= replicas)
            fail_msg("expected \"[RANK r]: \", got: %.60s", line);
        assert_non_null(strchr(line, '\n'));
        counts[rank]++;
    }
}

static void lines_have_their_rank_in_front(void **state)
{
    scratch *dir = *state;
    program_run run;
    int counts[REPLICAS];
    program_start(&run, "train --data %s " TINY_REPLICAS " --dp 2 --pp 2 --chunks 2 --save %s/m.st",
                  dir->directory, dir->directory);
    assert_int_equal(run.status, 0);
    count_lines(run.out, REPLICAS, counts);
    assert_int_equal(counts[1], 2 + 1); /* steps, the epoch's pipeline */
    assert_true(counts[0] > counts[1] + 3 + 2 + 4);
    for (int r = 0; r < REPLICAS; r++) {
        char pattern[128];
        for (int s = 0; s < 2; s++) {
            snprintf(pattern, sizeof pattern,
                     "^\\[RANK 0\\]: %d .* cpu:%d +[0-9]+ \\([a-z0-9_]+\\) +%d \\(modules ", r,
                     2 * r + s, s);
            check_line(run.out, pattern);
        }
        snprintf(pattern, sizeof pattern,
                 "^\\[RANK %d\\]: \\| epoch   1 \\|     2/    3 batches \\| lr 5.00 \\| ms/batch",
                 r);
        check_line(run.out, pattern);
        snprintf(pattern, sizeof pattern, "^\\[RANK %d\\]: \\| pipeline: bubble ", r);
        check_line(run.out, pattern);
    }
    check_line(run.out,
               "^\\[RANK 0\\]: Slowest of all: rank [01] on .*, cpu:[0-3], from stage [01] on$");
    /* Where all have the same numbers, the first one alone shows them. */
    check_line(run.out, "^\\[RANK 0\\]: \\| end of epoch   1 \\| time: ");
    check_line(run.out, "^\\[RANK 0\\]: \\| End of training \\| test loss");
    check_without(run.out, "[RANK 1]: | end of");
    check_without(run.out, "[RANK 1]: | End of");
    check_text(run.out, "[RANK 0]: Data parallelism: 2 replicas, batches of 2 x 8 columns\n");
    check_text(run.out, "[RANK 0]: The best weights are in ");
    check_without(run.out, "[RANK 1]: The best weights");
    check_without(run.out, "[RANK 1]: Model:");
    for (int i = 0; i < 4; i++) { /* every device's memory, from the first replica */
        char row[128];
        snprintf(row, sizeof row,
                 "^\\[RANK 0\\]: %d     %d     cpu:%d .* KiB +[0-9.]+ KiB +[0-9.]+ KiB +0 B ",
                 i / 2, i % 2, i);
        check_line(run.out, row);
    }
}

static void one_replica_has_no_rank_in_front(void **state)
{
    scratch *dir = *state;
    program_run alone, one;
    program_succeed(&alone, "train --data %s " TINY_REPLICAS " --quiet", dir->directory);
    program_succeed(&one, "train --data %s " TINY_REPLICAS " --quiet --dp 1", dir->directory);
    assert_string_equal(alone.out, one.out);
    check_without(one.out, "RANK");
}

static void quiet_replicas_show_one_result(void **state)
{
    scratch *dir = *state;
    program_run run, sharded;
    int counts[REPLICAS];
    program_start(&run, "train --data %s " TINY_REPLICAS " --quiet --dp 2 --momentum 0.5",
                  dir->directory);
    assert_int_equal(run.status, 0);
    count_lines(run.out, REPLICAS, counts);
    assert_int_equal(counts[1], 0);
    assert_int_equal(counts[0], 3); /* test, rule, the corpus's best */
    program_start(&sharded,
                  "train --data %s " TINY_REPLICAS " --quiet --dp 2 --momentum 0.5 --zero",
                  dir->directory);
    assert_string_equal(sharded.out, run.out);
}

static void first_replica_alone_draws(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start_on_terminal(&run, "train --data %s " TINY_REPLICAS " --dp 2", dir->directory);
    assert_int_equal(run.status, 0);
    static const char line[] = "\r\033[Kepoch 1 [########                ] 1/3 | loss ";
    const char *drawn = strstr(run.err, line);
    assert_non_null(drawn);
    assert_null(strstr(drawn + strlen(line), "] 1/3 | loss "));
    size_t length = strlen(run.err);
    assert_string_equal(run.err + length - 4, "\r\033[K"); /* it does not stay */
}

static void run_log_is_one_for_all_replicas(void **state)
{
    scratch *dir = *state;
    program_run run;
    static char text[65536];
    const char *path = scratch_path(dir, "log.jsonl");
    program_start(&run,
                  "train --data %s " TINY_REPLICAS
                  " --devices cpu:2;cpu:0;cpu:1 --momentum 0.5 --zero --log-json %s",
                  dir->directory, path);
    assert_int_equal(run.status, 0);
    text[read_file(path, text, sizeof text - 1)] = '\0';
    assert_int_equal(remove(path), 0);
    check_text(text, "\"replicas\":3,\"devices\":[\"cpu:2\"],");
    check_text(text, "\"zero\":true,");
    int records = 0;
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        records++;
    /* run, steps, evaluations and the memory of three replicas, end */
    assert_int_equal(records, 1 + 3 + 2 * (1 + 3) + 1);
}

static void debugging_shows_the_buckets(void **state)
{
    scratch *dir = *state;
    program_run run;
    setenv("SL_DEBUG", "ddp", 1);
    program_start(&run, "train --data %s " TINY_REPLICAS " --dp 2 --pp 2 --quiet", dir->directory);
    unsetenv("SL_DEBUG");
    assert_int_equal(run.status, 0);
    check_text(run.err, "ddp: rank 0 of 2, step 3, ");
    check_text(run.err, "ddp:   stage 1 bucket 0: ");
    check_without(run.err, "rank 1");
    setenv("SL_DEBUG", "all", 1);
    program_start(&run, "train --data %s " TINY_REPLICAS, dir->directory);
    unsetenv("SL_DEBUG");
    check_refused(&run, 1, "environment variable SL_DEBUG must be ");
}

static void replicas_of_the_preset_can_be_overridden(void **state)
{
    scratch *dir = *state;
    program_run run;
    int counts[3];
    program_start(&run, "train --preset ddp-pipeline --data %s " TINY_REPLICAS " --chunks 2",
                  dir->directory);
    assert_int_equal(run.status, 0);
    count_lines(run.out, 2, counts);
    check_line(run.out, "^\\[RANK 0\\]: 1 .* cpu:3 +[0-9]+ \\([a-z0-9_]+\\) +1 \\(modules ");
    program_succeed(&run,
                    "train --preset ddp-pipeline --data %s " TINY_REPLICAS
                    " --chunks 2 --dp 1 --pp 1",
                    dir->directory);
    check_without(run.out, "RANK");
    program_start(&run,
                  "train --preset ddp-pipeline --data %s " TINY_REPLICAS
                  " --chunks 2 --devices cpu:0;cpu:1;cpu:2",
                  dir->directory);
    assert_int_equal(run.status, 0);
    count_lines(run.out, 3, counts);
    assert_true(counts[2] > 0);
}

static void impossible_replicas_are_one_sentence(void **state)
{
    static const struct {
        const char *options;
        int status;
        const char *text;
    } refusals[] = {
        {"--dp 0", 2, "--dp must be a whole number from 1 to 1024, got \"0\"\n"},
        {"--dp two", 2, "--dp must be a whole number from 1 to 1024, got \"two\"\n"},
        {"--dp 2 --devices cpu:0,cpu:1,cpu:2", 1, "2 replicas, 1 rank, devices \"cpu:0,cpu:1,"},
        {"--devices cpu:0;;cpu:1", 1, "list 2 of the devices is empty: \"cpu:0;;cpu:1\"\n"},
        {"--dp 3 --devices cpu:0;cpu:1", 1, "each of 3 replicas needs a list of devices"},
        {"--devices cpu:0;cpu:0", 1, "\"cpu:0\" is named twice\n"},
        {"--dp 2 --batch-size 300", 1, "tokens a column in 2 shards are "},
        {"--zero", 1, "zero shards the optimizer's state over replicas, and there is only one\n"},
        {"--dp 2 --save /nowhere/model", 1, "its directory does not exist\n"},
        {"--dp 2 --log-json /nowhere/log", 1, "/nowhere/log: the run log cannot be written"},
        {"--dp 2 --init /nowhere/model", 1, "/nowhere/model: cannot be"},
    };
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        program_run run;
        program_start(&run, "train --data %s " TINY_REPLICAS " %s", dir->directory,
                      refusals[i].options);
        check_refused(&run, refusals[i].status, refusals[i].text);
        assert_int_equal(scratch_entries(dir, 0), CORPUS_FILES);
    }
}

/* The first attempt had two processes, this one has one. */
static void job_with_fewer_processes_warns_of_a_cut_that_fits_none(void **state)
{
    scratch *dir = *state;
    program_run run;
    for (int is_fixed = 0; is_fixed < 2; is_fixed++) {
        setenv("RANK", "0", 1);
        setenv("WORLD_SIZE", "1", 1);
        setenv("SLUICE_FIRST_WORLD_SIZE", "2", 1);
        program_start(&run, "train --data %s " TINY_REPLICAS " --quiet --dp 1 --pp 2 %s",
                      dir->directory,
                      is_fixed ? "--schedule interleaved --virtual 2 --placement 0,1,0,1 "
                                 "--balance 1,1,1,1"
                               : "");
        unsetenv("RANK");
        unsetenv("WORLD_SIZE");
        unsetenv("SLUICE_FIRST_WORLD_SIZE");
        assert_int_equal(run.status, 0);
        assert_string_equal(run.err,
                            is_fixed
                                ? "sluice: warning: --balance fits no layout of 1 process: using "
                                  "--balance auto\n"
                                  "sluice: warning: --placement fits no layout of 1 process: using "
                                  "the schedule's\n"
                                : "");
    }
}

/* Prints the plan, with these variables in the environment; nothing is trained or written. */
static void print_plan(program_run *run, scratch *dir, const char *line, const char *first)
{
    int entries = scratch_entries(dir, 0);
    setenv("RANK", "0", first != NULL);
    setenv("WORLD_SIZE", "1", first != NULL);
    if (first)
        setenv("SLUICE_FIRST_WORLD_SIZE", first, 1);
    else
        unsetenv("RANK"), unsetenv("WORLD_SIZE");
    program_start(run, "train %s --print-plan", line);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("SLUICE_FIRST_WORLD_SIZE");
    assert_int_equal(run->status, 0);
    assert_string_equal(run->err, "");
    assert_int_equal(scratch_entries(dir, 0), entries);
}

static void plan_says_who_decided_what(void **state)
{
    scratch *dir = *state;
    program_run run;
    char line[512];
    snprintf(line, sizeof line, "--data %s " TINY_REPLICAS " --dp 2 --pp 2 --schedule 1f1b",
             dir->directory);
    print_plan(&run, dir, line, NULL);
    check_line(run.out, "^dp +2 replicas +given$");
    check_line(run.out, "^pp +2 pipeline ranks of each, 2 stages +given$");
    check_line(run.out, "^schedule +1f1b, recompute except_last +given$");
    check_line(run.out, "^chunks +8 micro-batches of an accumulation step +default$");
    check_line(run.out, "^shards +2 of 8 rows in a batch +default$");
    check_line(run.out, "^lr +5 +default$");
    check_line(run.out, "^1 +0 +1 +1 +1 +cpu:3 +[0-9]+$");
    check_line(run.out, "^1 +cpu:1 +2-3 +[0-9,]+ +[0-9.]+ KiB ");
    check_line(run.out, "^This host needs [0-9.]+ MiB: parameters ");
    /* A job that had two processes has one: what decides numbers is as it was. */
    print_plan(&run, dir, line, "2");
    check_line(run.out, "^dp +1 replica +search$");
    check_line(run.out, "^pp +1 pipeline rank of each, 1 stage +search$");
    check_line(run.out, "^chunks +8 micro-batches of an accumulation step +default$");
    check_line(run.out, "^shards +2 of 8 rows in a batch +default$");
    /* A run that resumes keeps its checkpoint's. */
    program_start(&run, "train %s --shards 3 --chunks 2 --lr 0.5 --save-dir %s/saved --quiet", line,
                  dir->directory);
    assert_int_equal(run.status, 0);
    snprintf(line, sizeof line, "--data %s " TINY_REPLICAS " --pp 2 --resume %s/saved",
             dir->directory, dir->directory);
    print_plan(&run, dir, line, NULL);
    check_line(run.out, "^resume +after step 3, from .*/saved/step-00000003 +given$");
    check_line(run.out, "^dp +1 replica +default$");
    check_line(run.out, "^chunks +2 micro-batches of an accumulation step +checkpoint$");
    check_line(run.out, "^shards +3 of 8 rows in a batch +checkpoint$");
    check_line(run.out, "^lr +0.5 +checkpoint$");
    check_line(run.out, "^devices +cpu(:0)?,cpu(:1)? +profile$");
    scratch_remove_tree(dir, "saved");
}

static void only_process_of_a_launcher_needs_no_replicas(void **state)
{
    scratch *dir = *state;
    program_run run;
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "1", 1);
    program_start(&run, "train --data %s " TINY_REPLICAS " --quiet --zero --nccl", dir->directory);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    assert_int_equal(run.status, 0);
    assert_string_equal(run.err, "");
}

static void failing_replica_is_named(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "train --data %s " TINY_REPLICAS " --dp 2 --quiet --lr 1e30 --clip 0",
                  dir->directory);
    assert_int_equal(run.status, 1);
    check_line(run.err, "^sluice: rank [01]: the loss is nan in epoch 1, batch 2 \\(step 2\\): ");
}

/* What one rank leaves idle of cores that all have, the others use. */
static void ranks_that_share_the_cores_do_not_idle(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run,
                  "train --data %s " TINY_MODEL " " TINY_BATCH
                  " --batch-size 8 --epochs 1 --max-batches 3 --devices cpu,cpu",
                  dir->directory);
    assert_int_equal(run.status, 0);
    check_line(run.out, "^\\| pipeline: the ranks share the cores, and worked [0-9]+%, [0-9]+% of "
                        "the step \\| slowest: stage [01], modules [02] to [13]$");
    check_without(run.out, "idle");
}

static double number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    assert_non_null(at);
    return strtod(at + strlen(name), NULL);
}

/* Of two stages that recompute all and do not overlap, as a rule; on a busy machine the profile may
 * say otherwise, and of short steps nothing is said. */
static void one_stage_that_would_be_faster_is_said(void **state)
{
    scratch *dir = *state;
    program_run run;
    const char *said = "warning: one stage (--pp 1) would take ";
    static char text[65536];
    program_start(&run,
                  "train --data %s --emsize 256 --nhid 2048 --nhead 4 --nlayers 6 --bptt 64 "
                  "--batch-size 16 --eval-batch-size 2 --epochs 1 --max-batches 1 --chunks 1 "
                  "--eval-max-batches 1 --pp 2 --recompute always --log-json %s/log",
                  dir->directory, dir->directory);
    assert_int_equal(run.status, 0);
    text[read_file(scratch_path(dir, "log"), text, sizeof text - 1)] = '\0';
    double one_stage = number_behind(text, "\"one_stage\":");
    if (strstr(run.err, said))
        assert_float_equal(number_behind(run.err, said), 100 * one_stage, 0.51);
    else
        assert_true(one_stage >= 0.95 || number_behind(text, "\"ms\":") < 200);
}

int cmd_train_replicas_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_CORPUS(test) cmocka_unit_test_setup_teardown(test, corpus_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(ranks_that_share_the_cores_do_not_idle),
        WITH_CORPUS(one_stage_that_would_be_faster_is_said),
        WITH_CORPUS(lines_have_their_rank_in_front),
        WITH_CORPUS(one_replica_has_no_rank_in_front),
        WITH_CORPUS(quiet_replicas_show_one_result),
        WITH_CORPUS(first_replica_alone_draws),
        WITH_CORPUS(run_log_is_one_for_all_replicas),
        WITH_CORPUS(debugging_shows_the_buckets),
        WITH_CORPUS(replicas_of_the_preset_can_be_overridden),
        WITH_CORPUS(impossible_replicas_are_one_sentence),
        WITH_CORPUS(job_with_fewer_processes_warns_of_a_cut_that_fits_none),
        WITH_CORPUS(plan_says_who_decided_what),
        WITH_CORPUS(only_process_of_a_launcher_needs_no_replicas),
        WITH_CORPUS(failing_replica_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
