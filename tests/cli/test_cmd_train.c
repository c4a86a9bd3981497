/* The program `sluice train`, run as a user does, on a small synthetic text. */
#include "support/program.h"

#include <jansson.h>
#include <math.h>
#include <sys/mount.h>
#include <sys/resource.h>

#define TINY        TINY_MODEL " " TINY_BATCH " --batch-size 8"
#define TINY_SHORT  TINY " --epochs 1 --max-batches 3"
#define STEPS_SHORT 3

/* ---- What a run shows --------------------------------------------------------------------- */

static void lines_have_the_tutorials_form(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run,
                    "train --data %s " TINY " --epochs 2 --max-batches 12 --pp 2 "
                    "--devices cpu:0,cpu:1 --chunks 3 --save %s/model",
                    dir->directory, dir->directory);
    check_line(run.out, "^  train +4,0[0-9]+ tokens  /.*/train\\.txt$");
    check_line(run.out,
               "^Model: emsize 16, nhid 16, 2 layers, 2 heads, dropout 0\\.2, mask causal");
    check_line(run.out, "^Total parameters in model: [0-9,]+$");
    check_line(run.out, "^Optimizer: sgd, lr 5$");
    check_line(run.out, "^Pipeline: 2 stages, 3 chunks, recompute except_last, schedule gpipe$");
    check_line(run.out, "^0 +[^ ]+ +cpu:1 +[0-9]+ \\([a-z0-9_]+\\) +1 \\(modules 2 to 3\\)$");
    check_line(run.out,
               "^\\| epoch   1 \\|    10/   12 batches \\| lr 5\\.00 \\| ms/batch +[0-9.]+ "
               "\\| loss +[0-9.]+ \\| ppl +[0-9.]+ \\| [0-9]+ tokens/s$");
    check_line(run.out, "^\\| epoch   2 \\|    12/   12 batches \\| lr 4\\.75 \\| ");
    check_line(run.out,
               "^\\| pipeline: bubble [0-9.]+% \\(predicted [0-9.]+%\\) \\| idle [0-9]+%, [0-9]+% "
               "\\| waiting [0-9]+%, [0-9]+% \\| slowest: stage [01] on cpu:[01], modules [02] to "
               "[13]$");
    check_line(run.out,
               "^\\| end of epoch   1 \\| time: +[0-9.]+s \\| valid loss +[0-9.]+ \\| valid "
               "ppl +[0-9.]+ \\| best so far$");
    check_line(run.out, "^\\| End of training \\| test loss +[0-9.]+ \\| test ppl +[0-9.]+$");
    check_line(run.out, "^The best weights are in /.*/model$");
    check_without(run.out, "\r");
    assert_int_equal(access(scratch_path(dir, "model/model.safetensors"), R_OK), 0);
    scratch_remove_tree(dir, "model");
}

/* Losses of all steps, from the run log; gives their number. */
static int read_losses(const char *path, double *losses, int most)
{
    int count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (char line[4096]; fgets(line, sizeof line, file);) {
        if (!strstr(line, "\"record\":\"step\""))
            continue;
        assert_true(count < most);
        losses[count++] = number_after(line, "\"loss\":");
    }
    fclose(file);
    return count;
}

/* Over the tokens since the line before; the last block is short. */
static void line_has_the_mean_since_the_one_before(void **state)
{
    enum { MOST = 100, BPTT = 8, COLUMN = 500, EACH = 5 };
    scratch *dir = *state;
    program_run run;
    double losses[MOST];
    program_succeed(&run, "train --data %s " TINY " --epochs 1 --log-interval 5 --log-json %s/log",
                    dir->directory, dir->directory);
    int count = read_losses(scratch_path(dir, "log"), losses, MOST), done = 0;
    assert_int_equal(remove(dir->path), 0);
    assert_int_equal(count, (COLUMN - 1 + BPTT - 1) / BPTT);
    for (const char *at = run.out; (at = strstr(at, "| epoch   1 |")); at++) {
        double sum = 0, tokens = 0;
        int until = done + EACH < count ? done + EACH : count;
        for (; done < until; done++) {
            int length = done + 1 < count ? BPTT : COLUMN - 1 - done * BPTT;
            sum += losses[done] * length;
            tokens += length;
        }
        assert_int_equal(number_after(at, "| epoch   1 |"), done);
        double loss = number_after(at, "| loss ");
        assert_float_equal(loss, sum / tokens, 0.00501);
        assert_float_equal(number_after(at, "| ppl "), exp(sum / tokens), 0.00501);
    }
    assert_int_equal(done, count);
}

/* A line a second of training at most, besides the last one; and validations within the epoch. */
static void lines_come_by_time_and_validations_by_steps(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT " --log-interval 1000s --eval-every 2",
                    dir->directory);
    const char *first = strstr(run.out, "batches | lr ");
    assert_non_null(first);
    assert_null(strstr(first + 1, "batches | lr "));
    check_line(run.out, "^\\| epoch +1 \\| step 2 \\| valid loss +[0-9.]+ \\| valid ppl +[0-9.]+ "
                        "\\| best so far$");
    program_succeed(&run, "train --data %s " TINY_SHORT " --log-interval 1e-9s", dir->directory);
    first = strstr(run.out, "batches | lr ");
    assert_non_null(first);
    assert_non_null(strstr(first + 1, "batches | lr "));
}

static void time_of_steps_is_shown_at_the_end(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT, dir->directory);
    check_line(run.out, "^Time of a step in ms, by what it went to:$");
    check_line(run.out,
               "^0 +0 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +0\\.00 +[0-9.]+ +[0-9.]+ +0\\.00$");
    program_succeed(&run, "train --quiet --data %s " TINY_SHORT, dir->directory);
    assert_null(strstr(run.out, "Time of a step"));
}

static void distance_to_the_best_possible_model_is_said(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT, dir->directory);
    check_line(run.out, "^The best possible perplexity on this text, seeing blocks of 8 tokens, "
                        "is [0-9.]+: the model is [0-9.]+% above it\\.$");
    double best = number_after(run.out, "blocks of 8 tokens, is ");
    double tested = number_after(run.out, "| test ppl ");
    double above = number_after(run.out, "the model is ");
    assert_float_equal(best, 6.6487, 1e-9);
    assert_float_equal(above, 100 * (tested / best - 1), 0.1);
}

static void seed_and_flags_decide_the_run(void **state)
{
    scratch *dir = *state;
    program_run before, after, other;
    program_succeed(&before, "train --quiet " TINY_SHORT " --preset transformer-tutorial --data %s",
                    dir->directory);
    program_succeed(&after, "train --quiet --preset transformer-tutorial " TINY_SHORT " --data %s",
                    dir->directory);
    program_succeed(&other, "train --quiet " TINY_SHORT " --seed 2 --data %s", dir->directory);
    assert_string_equal(before.out, after.out);
    assert_string_not_equal(before.out, other.out);
}

static void quiet_run_shows_the_result_only(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT " --quiet", dir->directory);
    check_text(run.out, "| End of training | test loss ");
    check_without(run.out, "batches");
    check_without(run.out, "Model:");
    check_without(run.out, "valid");
}

static void terminal_gets_a_live_line(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start_on_terminal(&run, "train --data %s " TINY_SHORT, dir->directory);
    assert_int_equal(run.status, 0);
    check_text(run.err, "\r\033[Kepoch 1 [########                ] 1/3 | loss ");
    check_text(run.err, " tokens/s | ");
    check_text(run.err, " left to train");
    size_t length = strlen(run.err);
    assert_true(length > 4);
    assert_string_equal(run.err + length - 4, "\r\033[K"); /* it does not stay */
    check_without(run.out, "left to train");
    program_start_on_terminal(&run, "train --data %s " TINY_SHORT " --quiet", dir->directory);
    assert_string_equal(run.err, "");
    program_start_on_terminal(&run, "train --data %s " TINY_SHORT " --lr 1e30 --clip 0",
                              dir->directory);
    check_text(run.err, "left to train\r\033[Ksluice: the loss is "); /* nor before an error */
}

static void devices_beyond_the_cores_are_warned_of(void **state)
{
    enum { STAGES = 64 };
    scratch *dir = *state;
    program_run run;
    if (sysconf(_SC_NPROCESSORS_ONLN) >= STAGES) {
        print_message("skipped: there are as many cores as stages can be\n");
        skip();
    }
    program_start(&run,
                  "train --data %s " TINY_SHORT
                  " --nlayers %d --pp %d --quiet --eval-max-batches 1",
                  dir->directory, STAGES, STAGES);
    assert_int_equal(run.status, 0);
    assert_string_equal(run.err, "sluice: warning: devices share cores\n");
}

/* Which of the two is faster is up to the machine; neither is warned of. */
static void ranks_without_devices_split_or_share_the_cores(void **state)
{
    scratch *dir = *state;
    program_run run;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        print_message("skipped: there is one core\n");
        skip();
    }
    program_start(&run, "train --data %s " TINY_SHORT " --pp 2 --eval-max-batches 1",
                  dir->directory);
    assert_int_equal(run.status, 0);
    bool shares = strstr(run.out, " cpu  ");
    check_line(run.out, shares ? "^0 .* cpu  .* 1 \\(modules" : "^0 .* cpu:1 .* 1 \\(modules");
    check_without(run.err, "devices share cores");
}

/* A loss of a hundred is a perplexity of 44 digits. */
static void exploding_loss_is_a_short_number(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT " --max-batches 1 --lr 200 --clip 0",
                    dir->directory);
    check_line(run.out, "valid ppl [0-9]\\.[0-9]+e\\+[0-9]+ \\| best so far$");
    check_line(run.out, "test ppl [0-9]\\.[0-9]+e\\+[0-9]+$");
    check_line(run.out, "the model is [0-9]\\.[0-9]+e\\+[0-9]+% above it\\.$");
    for (const char *at = run.out; (at = strpbrk(at, "0123456789")); at += strspn(at, "0123456789"))
        assert_in_range(strspn(at, "0123456789"), 1, 9);
}

/* ---- Refusals ----------------------------------------------------------------------------- */

typedef struct refusal {
    const char *options; /* after those of a run that works */
    int status;
    const char *text;
} refusal;

static const refusal refusals[] = {
    {"--nhead 3", 1, "emsize must be divisible by nhead, got emsize 16 and nhead 3\n"},
    {"--emsize 15 --nhead 1", 1, "emsize must be even"},
    {"--pp 3", 1, "there are more stages than layers: 3 stages, 2 layers\n"},
    {"--devices cpu:0,cpu:1,cpu:2", 1, "more stages than layers: 3 stages, 2 layers\n"},
    {"--bptt 4000", 1,
     "/train.txt: 4000 tokens in 8 columns are 500 a column, too few for bptt 4000"},
    {"--bptt 1048577", 2, "--bptt must be a whole number from 1 to 1048576, got \"1048577\"\n"},
    {"--bptt 5001", 1, "bptt (seq-len) must be at most 5000, the model's positions, got 5001\n"},
    {"--batch-size 1000000", 1, "too few for bptt 8"},
    {"--devices gpu:0", 1, "got \"gpu:0\"\n"},
    {"--devices cpu:0,cpu:0", 1, "\"cpu:0\" is named twice\n"},
    {"--devices ,", 1, "a name in the list of devices is empty\n"},
    {"--pp 2 --devices cpu:0", 1,
     "each pipeline rank of each replica needs a device of its own: 1 replica, 2 ranks"},
    {"--data ''", 2, "--data must not be empty\n"},
    {"--init ''", 2, "--init must not be empty\n"},
    {"--save ''", 2, "--save must not be empty\n"},
    {"--log-json=", 2, "--log-json must not be empty\n"},
    {"--data /nowhere", 1, "/nowhere: expected a directory of text files"},
    {"--data /dev/null", 1, "/dev/null: expected a directory of text files, or a file"},
    {"--save /nowhere/model", 1, "its directory does not exist\n"},
    {"--save /dev/full", 1, "/dev/full: "},
    {"--zero", 1, "sluice: --zero shards the optimizer's state over replicas"},
    {"--emsize 30000 --nhead 2 --nlayers 1000", 1, "or the batch smaller, or give --force\n"},
    {"--log-json /nowhere/log", 1, "/nowhere/log: the run log cannot be written"},
    {"--log-json /dev", 1, "/dev: the run log cannot be written: Is a directory"},
    {"--init /nowhere/model", 1, "/nowhere/model: cannot be opened"},
    {"--preset x", 2, "preset must be transformer-tutorial, pipeline-tutorial, ddp-pipeline or "},
    {"--chunks 0", 2, "--chunks must be a whole number from 1 to 4096, got \"0\"\n"},
    {"--seed -1", 2, "--seed must be a whole number from 0 to 2^64 - 1, got \"-1\"\n"},
    {"--dropout 1", 2, "--dropout must be at least 0 and below 1, got \"1\"\n"},
    {"--balance 1,2", 1, "balance must add up to the model's 4 modules (encoder, 2 layers, "},
    {"--balance 0,4", 1, "each number of balance must be at least 1, got 0\n"},
    {"--balance 2,,2", 2, "--balance must be layers, auto, or numbers of modules per stage"},
    {"--balance 2,2 --pp 1", 1, "balance must give one number for each of 1 stages"},
    {"--mask some", 2, "--mask must be causal or none, got \"some\"\n"},
    {"--betas 0.9", 2, "--betas must be two numbers above 0 and below 1, such as 0.9,0.999, got"},
    {"--betas 0.9,0.99,0.5", 2, "--betas must be two numbers above 0"},
    {"--optimizer adamw --betas 0,0.999", 2, "--betas must be two numbers above 0"},
    {"--optimizer adamw --betas 0.9,1", 2, "below 1, such as 0.9,0.999, got \"0.9,1\"\n"},
    {"--betas 0.9,x", 2, "--betas must be two numbers above 0"},
    {"--optimizer adamw --eps 0", 2, "--eps must be a number above 0, got \"0\"\n"},
    {"--optimizer adamw --eps 1e-60", 2, "--eps must be a number above 0, got \"1e-60\"\n"},
    {"--nesterov", 1, "Nesterov momentum requires a momentum"},
    {"--optimizer-precision bf16", 1, "averages in bf16 are for adamw, but the optimizer is sgd"},
    {"--log-interval 0", 2,
     "--log-interval must be a number of batches from 1, or of seconds as in 10s, got \"0\"\n"},
    {"--log-interval 1.5", 2, "--log-interval must be a number of batches"},
};

static void impossible_value_is_one_sentence_and_leaves_nothing(void **state)
{
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        program_run run;
        const refusal *each = &refusals[i];
        program_start(&run,
                      "train --data %s " TINY_SHORT " --save %s/model --log-json %s/log.jsonl %s",
                      dir->directory, dir->directory, dir->directory, each->options);
        check_refused(&run, each->status, each->text);
        assert_int_equal(scratch_entries(dir, 0), CORPUS_FILES);
    }
}

static void failure_names_the_option_as_it_is_typed(void **state)
{
    static const char *const cases[][2] = {
        {"--trace /nowhere/trace", "sluice: --trace: /nowhere/trace: cannot be written"},
        {"--tensorboard /dev/null/x", "sluice: --tensorboard: /dev/null/x: the directory"},
        {"--lr 1e30 --clip 0", "clipping may help; --allow-nan lets the run go on\n"},
    };
    scratch *dir = *state;
    program_run run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        program_start(&run, "train --data %s " TINY_SHORT " %s", dir->directory, cases[i][0]);
        assert_int_equal(run.status, 1);
        check_text(run.err, cases[i][1]);
        check_without(run.out, "| epoch");
    }
    scratch_write(dir, "head.csv", "0F0,0S0,0B0,0T0\n1F0,1S0,1B0,1T0\n");
    program_start(&run, "train --data %s " TINY_SHORT " --chunks 1 --schedule %s/head.csv",
                  dir->directory, dir->directory);
    check_refused(&run, 1, "over all ranks, and --split-vocabulary is not given\n");
    program_succeed(&run,
                    "train --data %s " TINY_SHORT " --pp 2 --split-vocabulary --log-json %s/log",
                    dir->directory, dir->directory);
    program_start(&run, "plan --from %s/log", dir->directory);
    check_refused(&run, 1, "/log: a run with --split-vocabulary cannot be planned by what it ");
}

static void save_trained(scratch *dir)
{
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT " --save %s/model", dir->directory,
                    dir->directory);
}

/* Starts a run whose options name files in the scratch directory, where they have a %s. */
static void check_kept(scratch *dir, const char *options, const char *text)
{
    char line[512];
    program_run run;
    int entries = scratch_entries(dir, 0);
    snprintf(line, sizeof line, options, dir->directory, dir->directory);
    program_start(&run, "train --data %s " TINY_SHORT " %s", dir->directory, line);
    check_refused(&run, 1, text);
    assert_int_equal(scratch_entries(dir, 0), entries);
}

static void file_that_is_read_is_never_overwritten(void **state)
{
    scratch *dir = *state;
    save_trained(dir);
    assert_int_equal(symlink("train.txt", scratch_path(dir, "linked.txt")), 0);
    check_kept(dir, "--save %s/train.txt", "a model is a directory, and a file has this name");
    check_kept(dir, "--save %s/linked.txt", "a model is a directory, and a file has this name");
    check_kept(dir, "--save %s/", "it exists and is not a model that sluice saved");
    check_kept(dir, "--log-json %s/valid.txt", "/valid.txt is an input");
    check_kept(dir, "--init %s/model --log-json %s/model/config.json", "--log-json: /");
    check_kept(dir, "--init %s/model --log-json %s/model/tokenizer.json",
               "/tokenizer.json is an input");
    check_kept(dir, "--save %s/model --log-json %s/model/log", "/model, which the run replaces\n");
    check_kept(dir, "--save %s/new --log-json %s/new", "/new, which the run replaces\n");
    check_kept(dir, "--save %s/new --save-dir %s/new", "would lie among the run's checkpoints");
    check_kept(dir, "--log-json %s/new --trace %s/./new", "--trace: /");
}

static void data_that_are_no_text_are_refused(void **state)
{
    static const char *const names[] = {"train.txt", "valid.txt", "test.txt"};
    scratch *dir = *state;
    program_run run;
    program_start(&run, "train");
    check_refused(&run, 2, "train needs --data, a text file, or a directory with wiki.");
    program_start(&run, "train --data %s", dir->directory);
    check_refused(&run, 1,
                  ": has neither wiki.{train,valid,test}.tokens nor {train,valid,test}.txt");
    for (int i = 0; i < 3; i++)
        write_file(scratch_path(dir, names[i]), "", 0);
    program_start(&run, "train --data %s", dir->directory);
    check_refused(&run, 1, "/train.txt: expected text, but the file is empty\n");
    assert_int_equal(remove(scratch_path(dir, "valid.txt")), 0);
    assert_int_equal(mkdir(scratch_path(dir, "valid.txt"), 0700), 0);
    write_file(scratch_path(dir, "train.txt"), "some text", 9);
    program_start(&run, "train --data %s", dir->directory);
    check_refused(&run, 1, "/valid.txt");
    if (geteuid() != 0) { /* who may read everything */
        assert_int_equal(chmod(scratch_path(dir, "train.txt"), 0), 0);
        program_start(&run, "train --data %s", dir->directory);
        check_refused(&run, 1, "/train.txt: ");
    }
}

static void weights_that_do_not_fit_are_refused(void **state)
{
    static const char *const others[] = {"--nlayers 3",      "--nhid 32",   "--emsize 32",
                                         "--nhead 1",        "--mask none", "--pre-norm",
                                         "--activation gelu"};
    static const char *const sentences[] = {
        ": the model has nlayers 2, but nlayers is set to 3: remove it\n",
        ": the model has nhid 16, but nhid is set to 32: remove it\n",
        ": the model has emsize 16, but emsize is set to 32: remove it\n",
        ": the model has nhead 2, but nhead is set to 1: remove it\n",
        ": the model has mask causal, but mask is set to none: remove it\n",
        ": the model has pre-norm false, but pre-norm is set to true: remove it\n",
        ": the model has activation relu, but activation is set to gelu: remove it\n"};
    scratch *dir = *state;
    program_run run;
    char whole[65536 * 2];
    save_trained(dir);
    for (int i = 0; i < 7; i++) {
        program_start(&run, "train --data %s " TINY_SHORT " --init %s/model %s", dir->directory,
                      dir->directory, others[i]);
        check_refused(&run, 1, sentences[i]);
    }
    const char *path = scratch_path(dir, "model/model.safetensors");
    size_t bytes = read_file(path, whole, sizeof whole);
    const size_t kept[] = {0, 7, 100, bytes / 2, bytes - 1};
    for (int i = 0; i < 5; i++) {
        write_file(path, whole, kept[i]);
        program_start(&run, "train --data %s " TINY_SHORT " --init %s", dir->directory, path);
        check_refused(&run, 1, "/model.safetensors: ");
    }
}

static void model_has_the_sizes_of_the_weights(void **state)
{
    static const char *const models[] = {
        "--emsize 16 --nhid 24 --nhead 4 --nlayers 1",
        "--emsize 24 --nhid 16 --nhead 2 --nlayers 3 --mask none --activation gelu --pre-norm"};
    scratch *dir = *state;
    program_run run, plain;
    const char *at = dir->directory;
    for (int i = 0; i < 2; i++) {
        program_succeed(&run,
                        "train --data %s --quiet " TINY_BATCH " --batch-size 8 --epochs 1 "
                        "--max-batches 3 %s --save %s/sized",
                        at, models[i], at);
        program_succeed(&run,
                        "train --data %s --quiet " TINY_BATCH " --batch-size 8 --epochs 1 "
                        "--max-batches 1 --preset pipeline-tutorial --pp 1 --chunks 1 "
                        "--init %s/sized --lr 0 --dropout 0.5",
                        at, at);
        program_succeed(&plain,
                        "eval --init %s/sized --data %s " TINY_BATCH " --eval-max-batches 50", at,
                        at);
        assert_float_equal(number_after(run.out, "| test ppl "),
                           number_after(plain.out, "| test ppl "), 1e-6);
    }
}

static void saved_weights_are_where_training_goes_on(void **state)
{
    scratch *dir = *state;
    program_run run, tested;
    save_trained(dir);
    program_succeed(&tested, "eval --init %s/model --data %s " TINY_BATCH, dir->directory,
                    dir->directory);
    program_succeed(&run, "train --data %s " TINY_SHORT " --lr 0 --init %s/model", dir->directory,
                    dir->directory);
    assert_float_equal(number_after(run.out, "| test ppl "), number_after(tested.out, "test ppl "),
                       1e-6);
}

static void loss_that_is_no_number_ends_the_run(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "train --data %s " TINY_SHORT " --quiet --lr 1e30 --clip 0",
                  dir->directory);
    check_refused(&run, 1,
                  "in epoch 1, batch 2 (step 2): a lower learning rate or clipping may help");
    check_without(run.err, "is -nan");
    program_start(&run, "train --data %s " TINY_SHORT " --quiet --lr 1e30 --clip 0 --allow-nan",
                  dir->directory);
    assert_int_equal(run.status, 0);
    check_text(run.out, "| test loss   nan | test ppl      nan\n");
    check_without(run.out, "best possible");
}

static void perplexity_beyond_a_million_has_an_exponent(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " TINY_SHORT " --lr 100 --clip 0.5", dir->directory);
    check_line(run.out, "^\\| End of training \\| test loss +[0-9]+\\.[0-9][0-9] \\| test ppl +"
                        "[0-9.]+e\\+[0-9]+$");
}

static void full_disk_is_said_and_leaves_nothing(void **state)
{
    scratch *dir = *state;
    program_run run;
    char disk[512];
    snprintf(disk, sizeof disk, "%s", scratch_path(dir, "disk"));
    assert_int_equal(mkdir(disk, 0700), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=16k") != 0) {
        print_message("skipped: a small file system cannot be mounted here\n");
        skip();
    }
    program_start(&run, "train --data %s " TINY_SHORT " --quiet --save %s/model", dir->directory,
                  disk);
    bool empty = rmdir(disk) != 0 && access(scratch_path(dir, "disk/model"), F_OK) != 0;
    assert_int_equal(umount(disk), 0);
    check_refused(&run, 1, "No space left on device");
    assert_true(empty);
}

/* Where its files may not grow the run loses lines of its log, says so, and has its results. */
static void run_without_room_for_its_log_ends_with_its_results(void **state)
{
    scratch *dir = *state;
    program_run run;
    struct rlimit limit, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 2000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    program_start(&run, "train --data %s " TINY_SHORT " --quiet --log-json %s/log", dir->directory,
                  dir->directory);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(run.status, 0);
    check_text(run.out, "| End of training | test loss");
    check_line(run.err, "^sluice: warning: .*/log: the run log cannot be written: File too large; "
                        "the run goes on without it$");
    assert_ptr_equal(strchr(run.err, '\n'), strrchr(run.err, '\n'));
    struct stat what;
    assert_int_equal(stat(scratch_path(dir, "log"), &what), 0);
    assert_true(what.st_size > 500 && what.st_size <= 2000);
}

/* The file says how many ranks and chunks there are. */
static void table_from_a_file_trains_to_the_same_bits(void **state)
{
    const scratch *dir = *state;
    program_run by_name, by_file, run;
    program_succeed(&run, "schedule --pp 2 --chunks 3 --schedule zb-v --recompute never --csv");
    char path[700];
    snprintf(path, sizeof path, "%s/table.csv", dir->directory);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(run.out, file) >= 0 && fclose(file) == 0);
    const char *more = "--nlayers 4 --quiet";
    program_succeed(&by_name, "train --data %s " TINY_SHORT " %s --pp 2 --chunks 3 --schedule zb-v",
                    dir->directory, more);
    program_succeed(&by_file, "train --data %s " TINY_SHORT " %s --schedule %s", dir->directory,
                    more, path);
    assert_string_equal(by_file.out, by_name.out);
    program_start(&run, "train --data %s " TINY_SHORT " --schedule %s --pp 3", dir->directory,
                  path);
    check_refused(&run, 1, "table.csv has 2 ranks, not 3\n");
    program_start(&run, "train --data %s " TINY_SHORT " --schedule %s --chunks 4", dir->directory,
                  path);
    check_refused(&run, 1, "table.csv has 3 micro-batches, not 4\n");
    program_start(&run, "train --data %s " TINY_SHORT " --schedule %s --virtual 1", dir->directory,
                  path);
    check_refused(&run, 1, "table.csv has 2 stages a rank, not 1\n");
    program_start(&run, "train --data %s " TINY_SHORT " %s --schedule %s --placement loop",
                  dir->directory, more, path);
    check_refused(&run, 1, "table.csv has stage 2 on rank 1, not 0\n");
}

int cmd_train_tests(void)
{
    if (!program_exists())
        return 77;
#define WITH_CORPUS(test)  cmocka_unit_test_setup_teardown(test, corpus_create, scratch_remove)
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(lines_have_the_tutorials_form),
        WITH_CORPUS(table_from_a_file_trains_to_the_same_bits),
        WITH_CORPUS(line_has_the_mean_since_the_one_before),
        WITH_CORPUS(time_of_steps_is_shown_at_the_end),
        WITH_CORPUS(lines_come_by_time_and_validations_by_steps),
        WITH_CORPUS(distance_to_the_best_possible_model_is_said),
        WITH_CORPUS(seed_and_flags_decide_the_run),
        WITH_CORPUS(quiet_run_shows_the_result_only),
        WITH_CORPUS(terminal_gets_a_live_line),
        WITH_CORPUS(devices_beyond_the_cores_are_warned_of),
        WITH_CORPUS(ranks_without_devices_split_or_share_the_cores),
        WITH_CORPUS(exploding_loss_is_a_short_number),
        WITH_CORPUS(impossible_value_is_one_sentence_and_leaves_nothing),
        WITH_CORPUS(failure_names_the_option_as_it_is_typed),
        WITH_CORPUS(file_that_is_read_is_never_overwritten),
        WITH_SCRATCH(data_that_are_no_text_are_refused),
        WITH_CORPUS(weights_that_do_not_fit_are_refused),
        WITH_CORPUS(model_has_the_sizes_of_the_weights),
        WITH_CORPUS(saved_weights_are_where_training_goes_on),
        WITH_CORPUS(loss_that_is_no_number_ends_the_run),
        WITH_CORPUS(perplexity_beyond_a_million_has_an_exponent),
        WITH_CORPUS(full_disk_is_said_and_leaves_nothing),
        WITH_CORPUS(run_without_room_for_its_log_ends_with_its_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
