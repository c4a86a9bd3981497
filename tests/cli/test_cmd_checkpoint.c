/* The program `sluice checkpoint`, run as a user does, on the checkpoints of a small run; and the
 * options of `sluice train` that are about checkpoints. */
#include "support/program.h"

#include "io/safetensors/format.h"
#include "sluice/checkpoint.h"

#include <fcntl.h>
#include <sys/resource.h>

#define RUN_SHOWN TINY_MODEL " " TINY_BATCH " --batch-size 8 --epochs 2 --max-batches 4"
#define RUN       RUN_SHOWN " --quiet"

static int set_up(void **state)
{
    program_run run;
    corpus_create(state);
    scratch *dir = *state;
    program_succeed(&run, "train --data %s " RUN " --save-dir %s/saved --save-every 4",
                    dir->directory, dir->directory);
    return 0;
}

static int tear_down(void **state)
{
    static const char *const names[] = {"saved", "cut", "back", "mean", "whole", "short"};
    for (int i = 0; i < 6; i++)
        scratch_remove_tree(*state, names[i]);
    return scratch_remove(state);
}

static void show_tells_files_and_parts(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "checkpoint show %s/saved/step-00000008", dir->directory);
    check_line(run.out, "^  model\\.safetensors +[0-9.]+ KiB  [0-9a-f]{32}$");
    check_line(run.out, "^  part model +[0-9]+ tensors of [0-9,]+ elements$");
    check_line(run.out, "^  state \\{\"step\":8,");
}

/* A checkpoint whose file's name and state would move a terminal's cursor. */
static void show_escapes_control_characters(void **state)
{
    scratch *dir = *state;
    program_run run;
    const sl_checkpoint_file file = {.name = "a\x1b[2J\xc2\x9bnote", .data = "x", .bytes = 1};
    const sl_safetensors_item none = {0};
    const sl_checkpoint_part part = {.name = "model", .items = &none};
    check_ok(sl_checkpoint_save(scratch_path(dir, "cut"),
                                &(sl_checkpoint_contents){.parts = &part,
                                                          .part_count = 1,
                                                          .files = &file,
                                                          .file_count = 1,
                                                          .state = "{\"k\": \"\x7f\xc2\x9b\"}"}));
    assert_int_equal(symlink("cut", scratch_path(dir, "\x1b[31mred")), 0);
    program_succeed(&run, "checkpoint verify %s/\x1b[31mred", dir->directory);
    check_text(run.out, "/\\x1b[31mred is whole\n");
    program_succeed(&run, "checkpoint show %s/\x1b[31mred", dir->directory);
    assert_int_equal(remove(scratch_path(dir, "\x1b[31mred")), 0);
    check_text(run.out, "/\\x1b[31mred, by sluice ");
    check_text(run.out, "\n  a\\x1b[2J\\xc2\\x9bnote ");
    check_text(run.out, "\n  state {\"k\":\"\\x7f\\xc2\\x9b\"}\n");
    check_without(run.out, "\x1b");
}

static void verify_finds_the_damaged_one(void **state)
{
    scratch *dir = *state;
    program_run run;
    char line[300];
    program_succeed(&run, "checkpoint verify %s/saved/step-00000008 %s/saved/best", dir->directory,
                    dir->directory);
    check_line(run.out, "^/.*/saved/best is whole$");
    snprintf(line, sizeof line,
             "printf x | dd of='%s/saved/step-00000004/model.safetensors' bs=1 seek=3000 "
             "conv=notrunc 2>/dev/null",
             dir->directory);
    assert_int_equal(system(line), 0);
    program_start(&run, "checkpoint verify %s/saved/step-00000004 %s/saved/step-00000008",
                  dir->directory, dir->directory);
    assert_int_equal(run.status, 1);
    check_line(run.out, "^/.*/step-00000008 is whole$");
    check_text(run.err, "model.safetensors: it is damaged: its checksum is ");
    check_text(run.err, "sluice: 1 of 2 checkpoints could not be verified");
    program_start(&run, "checkpoint verify %s/missing", dir->directory);
    check_text(run.err, "/missing: cannot be opened");
    check_text(run.err, "sluice: 1 of 1 checkpoints could not be verified");
}

static size_t read_model(scratch *dir, const char *name, float *values, size_t room)
{
    sli_safetensors_reader *reader;
    check_ok(sli_safetensors_open(scratch_path(dir, name), &reader));
    /* The last one is trained; the first is the positional encoding. */
    const sl_safetensors_info *info =
        sli_safetensors_get(reader, sli_safetensors_count(reader) - 1);
    assert_true(info->bytes <= room);
    check_ok(sli_safetensors_read(reader, info, values));
    size_t count = info->bytes / sizeof(float);
    sli_safetensors_close(&reader);
    return count;
}

static void convert_cuts_and_joins(void **state)
{
    scratch *dir = *state;
    program_run run;
    static char one[1 << 20], back[1 << 20];
    program_succeed(&run, "checkpoint convert %s/saved/step-00000008 %s/cut --shard-size 8K",
                    dir->directory, dir->directory);
    assert_int_equal(access(scratch_path(dir, "cut/model.safetensors.index.json"), F_OK), 0);
    program_succeed(&run, "checkpoint verify %s/cut", dir->directory);
    program_succeed(&run, "checkpoint convert %s/cut %s/back", dir->directory, dir->directory);
    size_t bytes =
        read_file(scratch_path(dir, "saved/step-00000008/model.safetensors"), one, sizeof one);
    assert_int_equal(read_file(scratch_path(dir, "back/model.safetensors"), back, sizeof back),
                     bytes);
    size_t id = 0; /* the only difference: 16 digits in the header */
    for (size_t i = 0; i < bytes; i++)
        id += one[i] != back[i];
    assert_in_range(id, 1, 16);
    program_start(&run, "checkpoint convert %s/cut %s/back", dir->directory, dir->directory);
    check_refused(&run, 1, "there is something of that name already");
    /* A run goes on from any of them. */
    program_succeed(&run, "train --data %s " RUN " --resume %s/cut", dir->directory,
                    dir->directory);
    check_text(run.out, "| End of training | test loss ");
}

/* The model of a checkpoint, and the file, the index and the directory that it is in. */
static void weights_are_taken_from_any_of_its_forms(void **state)
{
    scratch *dir = *state;
    const char *at = dir->directory;
    program_run file, other, text;
    static const char *const forms[] = {"cut", "cut/model.safetensors.index.json",
                                        "saved/step-00000008"};
    program_succeed(&file, "checkpoint convert %s/saved/step-00000008 %s/cut --shard-size 8K", at,
                    at);
    program_succeed(&file,
                    "eval --init %s/saved/step-00000008/model.safetensors --data %s " TINY_BATCH,
                    at, at);
    program_succeed(&text, "generate --init %s/saved/step-00000008/model.safetensors --tokens 9",
                    at);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        program_succeed(&other, "eval --init %s/%s --data %s " TINY_BATCH, at, forms[i], at);
        assert_string_equal(other.out, file.out);
        program_succeed(&other, "generate --init %s/%s --tokens 9", at, forms[i]);
        assert_string_equal(other.out, text.out);
        program_succeed(&other, "train --data %s " RUN " --init %s/%s --epochs 1 --quiet", at, at,
                        forms[i]);
    }
    program_start(&other,
                  "train --data %s " RUN " --init %s/saved/step-00000008 --log-json "
                  "%s/saved/step-00000008/model.safetensors",
                  at, at, at);
    check_refused(&other, 1, "saved/step-00000008\n");
    char line[200];
    snprintf(line, sizeof line, "mkdir '%s/mean'", at);
    assert_int_equal(system(line), 0);
    program_start(&other, "eval --init %s/mean --data %s", at, at);
    check_refused(&other, 1,
                  "/mean: the directory is no checkpoint, and has neither "
                  "model.safetensors nor model.safetensors.index.json");
}

static void directory_of_a_run_is_told_from_a_checkpoint(void **state)
{
    static const char *const lines[] = {"eval --data %s --init %s/saved",
                                        "generate --tokens 3 --init %s/saved",
                                        "train --data %s --init %s/saved",
                                        "checkpoint show %s/saved",
                                        "checkpoint verify %s/saved",
                                        "checkpoint convert %s/saved %s/cut",
                                        "checkpoint average %s/saved/best %s/saved %s/mean"};
    scratch *dir = *state;
    program_run run;
    char line[500], expected[400];
    snprintf(expected, sizeof expected,
             "%s/saved: this is a run's directory; give one of its checkpoints: %s/saved/best, its "
             "best model, or the newest, %s/saved/step-00000008\n",
             dir->directory, dir->directory, dir->directory);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(line, sizeof line, lines[i], dir->directory, dir->directory, dir->directory);
        program_start(&run, "%s", line);
        assert_int_equal(run.status, 1);
        check_text(run.err, expected);
    }
    snprintf(line, sizeof line, "rm -r '%s/saved/best'", dir->directory);
    assert_int_equal(system(line), 0);
    program_start(&run, "checkpoint show %s/saved", dir->directory);
    check_refused(&run, 1, "one of its checkpoints: /");
    check_text(run.err, "/saved/step-00000008\n");
}

/* Two tokens change their first letters, so that the file's size is the same. */
static void changed_vocabulary_is_refused(void **state)
{
    static const char *const lines[] = {"eval --init %s/saved/best --data %s",
                                        "generate --init %s/saved/best",
                                        "train --init %s/saved/best --data %s " RUN};
    scratch *dir = *state;
    program_run run;
    char line[300];
    snprintf(line, sizeof line, "sed -i 's/\"the\"/\"The\"/' '%s/saved/best/tokenizer.json'",
             dir->directory);
    assert_int_equal(system(line), 0);
    for (int i = 0; i < 3; i++) {
        program_start(&run, lines[i], dir->directory, dir->directory);
        check_refused(&run, 1, "/saved/best/tokenizer.json: it is damaged: its checksum is ");
    }
}

static void average_is_the_mean(void **state)
{
    enum { ROOM = 1 << 16 };
    static float one[ROOM], other[ROOM], mean[ROOM];
    scratch *dir = *state;
    program_run run;
    program_succeed(&run,
                    "checkpoint average %s/saved/step-00000004 %s/saved/step-00000008 %s/mean",
                    dir->directory, dir->directory, dir->directory);
    size_t count = read_model(dir, "saved/step-00000004/model.safetensors", one, sizeof one);
    assert_int_equal(read_model(dir, "saved/step-00000008/model.safetensors", other, sizeof other),
                     count);
    assert_int_equal(read_model(dir, "mean/model.safetensors", mean, sizeof mean), count);
    int different = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(mean[i] == (float)(((double)one[i] + (double)other[i]) / 2));
        different += one[i] != other[i];
    }
    assert_true(different > 0);
    program_succeed(&run, "eval --init %s/mean/model.safetensors --data %s " TINY_BATCH,
                    dir->directory, dir->directory);
    program_start(&run, "train --data %s " RUN " --resume %s/mean", dir->directory, dir->directory);
    check_refused(&run, 1,
                  "/mean: it has no training state: use it with --init instead of --resume\n");
}

/* Runs it where no file may have more bytes. */
static void start_limited(program_run *run, rlim_t bytes, const char *line)
{
    struct rlimit before, lower;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    lower = before;
    lower.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &lower), 0);
    program_start(run, "%s", line);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
}

static void run_resumes_though_its_log_cannot_be_written(void **state)
{
    scratch *dir = *state;
    program_run run;
    char line[512];
    snprintf(line, sizeof line,
             "train --data %s " RUN " --resume %s/saved/step-00000004 --log-json %s/log",
             dir->directory, dir->directory, dir->directory);
    program_succeed(&run, "%s", line);
    struct stat what;
    assert_int_equal(stat(scratch_path(dir, "log"), &what), 0);
    start_limited(&run, (rlim_t)what.st_size, line); /* room for what it shows */
    assert_int_equal(run.status, 0);
    check_text(run.out, "| End of training | test loss");
    check_line(run.err, "^sluice: warning: .*/log: the run log cannot be written: File too large; "
                        "the run goes on without it$");
    assert_ptr_equal(strchr(run.err, '\n'), strrchr(run.err, '\n'));
}

static void resuming_continues_the_log(void **state)
{
    scratch *dir = *state;
    program_run run;
    static char text[1 << 16];
    program_succeed(&run,
                    "train --data %s " RUN " --resume %s/saved/step-00000004 --log-json %s/cut",
                    dir->directory, dir->directory, dir->directory);
    program_succeed(&run,
                    "train --data %s " RUN " --resume %s/saved/step-00000004 --log-json %s/cut",
                    dir->directory, dir->directory, dir->directory);
    text[read_file(scratch_path(dir, "cut"), text, sizeof text - 1)] = '\0';
    int runs = 0;
    for (const char *at = text; (at = strstr(at, "\"resumed_step\":4")); at++)
        runs++;
    assert_int_equal(runs, 2);
    check_without(text, "\"batch\":4,\"step\":4,");
    check_text(text, "\"batch\":1,\"step\":5,");
}

static void so_many_checkpoints_stay_as_are_kept(void **state)
{
    static const int kept[] = {0, 0, 0, 0, 0, 0, 1, 1};
    scratch *dir = *state;
    program_run run;
    program_succeed(&run, "train --data %s " RUN " --save-dir %s/cut --save-every 1 --keep 2",
                    dir->directory, dir->directory);
    for (int step = 1; step <= 8; step++) {
        char name[32];
        snprintf(name, sizeof name, "cut/step-%08d", step);
        assert_int_equal(access(scratch_path(dir, name), F_OK) == 0, kept[step - 1]);
    }
}

/* The last column of the table of times: the mean of what the log says of each save. */
static void time_of_copies_is_shown_at_the_end(void **state)
{
    enum { STEPS = 8, COLUMN = 11 };
    static char log[1 << 16];
    scratch *dir = *state;
    program_run run;
    double sum = 0;
    int saves = 0;
    program_succeed(&run,
                    "train --data %s " RUN_SHOWN " --save-dir %s/saved --save-every 1 "
                    "--log-json %s/log",
                    dir->directory, dir->directory, dir->directory);
    log[read_file(scratch_path(dir, "log"), log, sizeof log - 1)] = '\0';
    for (const char *at = log; (at = strstr(at, "\"copy_ms\":")); at++, saves++)
        sum += number_after(at, "\"copy_ms\":");
    assert_true(saves >= STEPS && sum > 0);
    const char *row = strstr(run.out, "  checkpoint\n0     0 ");
    assert_non_null(row);
    const char *end = strchr(strchr(row, '\n') + 1, '\n');
    assert_float_equal(strtod(end - COLUMN, NULL), sum / STEPS, 0.00501);
}

static void resumed_run_keeps_its_rate_where_none_is_given(void **state)
{
    scratch *dir = *state;
    program_run run;
    char log[1 << 14];
    const char *at = dir->directory;
    program_succeed(&run,
                    "train --data %s " RUN " --optimizer adamw --lr 0.25 --save-dir %s/back "
                    "--save-every 4",
                    at, at);
    program_succeed(&run,
                    "train --data %s " RUN " --optimizer adamw --resume %s/back/step-00000004 "
                    "--log-json %s/log",
                    at, at, at);
    log[read_file(scratch_path(dir, "log"), log, sizeof log - 1)] = '\0';
    check_text(log, "\"lr\":0.25,");
    program_start(&run,
                  "train --data %s " RUN " --optimizer adamw --lr 0.5 --resume "
                  "%s/back/step-00000004",
                  at, at);
    check_refused(&run, 1, "the checkpoint was made with lr 0.25, this run has lr 0.5\n");
}

/* With paths that were relative to another directory; what is given besides replaces or is
 * compared.
 */
static void run_resumes_by_its_directory_alone(void **state)
{
    scratch *dir = *state;
    program_run run;
    static char whole[1 << 19], resumed[1 << 19], log[1 << 16];
    const char *at = dir->directory;
    int before = open(".", O_RDONLY | O_DIRECTORY);
    program_succeed(&run, "train --data %s " RUN " --dropout 0.1 --save-dir %s/whole --keep 1", at,
                    at);
    assert_int_equal(chdir(at), 0);
    program_succeed(&run, "train --data . " RUN " --dropout 0.1 --epochs 1 --save-dir short "
                          "--log-json log");
    assert_int_equal(fchdir(before), 0);
    close(before);
    program_start(&run, "train --resume %s/short --dropout 0.2", at);
    check_refused(&run, 1, "the checkpoint was made with dropout 0.1, this run has dropout 0.2");
    program_succeed(&run, "train --resume %s/short --epochs 2", at);
    log[read_file(scratch_path(dir, "log"), log, sizeof log - 1)] = '\0';
    check_text(log, "\"resumed_step\":4,");
    size_t bytes =
        read_file(scratch_path(dir, "whole/step-00000008/model.safetensors"), whole, sizeof whole);
    assert_int_equal(read_file(scratch_path(dir, "short/step-00000008/model.safetensors"), resumed,
                               sizeof resumed),
                     bytes);
    uint64_t header; /* has the checkpoint's own id */
    memcpy(&header, whole, sizeof header);
    header += sizeof header;
    assert_memory_equal(whole + header, resumed + header, bytes - header);
    program_start(&run, "train --resume %s/short --epochs 1", at);
    check_refused(&run, 1, "the checkpoint is in epoch 3, but --epochs is 1: raise it");
    program_succeed(&run, "train --save-dir %s/short --resume auto --epochs 3", at);
    assert_int_equal(access(scratch_path(dir, "short/step-00000012"), F_OK), 0);
    program_succeed(&run, "train --resume %s/short/step-00000008 --epochs 4", at);
    assert_int_not_equal(access(scratch_path(dir, "short/step-00000016"), F_OK), 0);
}

static void directory_without_options_cannot_be_resumed_alone(void **state)
{
    scratch *dir = *state;
    program_run run;
    program_start(&run, "train --resume %s/nothing", dir->directory);
    check_refused(&run, 1, "/nothing: there is no checkpoint to resume from; a run from the ");
    program_start(&run, "train --save-dir %s/nothing --resume auto", dir->directory);
    check_refused(&run, 1, "/nothing: there is no checkpoint to resume from; a run from the ");
    program_succeed(&run,
                    "checkpoint average %s/saved/step-00000004 %s/saved/step-00000008 %s/mean",
                    dir->directory, dir->directory, dir->directory);
    program_start(&run, "train --resume %s/mean", dir->directory);
    check_refused(&run, 1, "/mean: does not have the run's options");
}

static void checkpoints_of_another_run_are_left_alone(void **state)
{
    scratch *dir = *state;
    program_run run;
    static char before[1 << 16], after[1 << 16];
    const char *path = scratch_path(dir, "saved/step-00000004/state.json");
    size_t bytes = read_file(path, before, sizeof before);
    program_start(&run, "train --data %s " RUN " --save-dir %s/saved --quiet", dir->directory,
                  dir->directory);
    check_refused(&run, 78,
                  "/saved: has checkpoints of another run: resume from one of them, or save");
    path = scratch_path(dir, "saved/step-00000004/state.json");
    assert_int_equal(read_file(path, after, sizeof after), bytes);
    assert_memory_equal(after, before, bytes);
}

static void options_without_sense_are_refused(void **state)
{
    scratch *dir = *state;
    program_run run;
    static const struct {
        const char *line, *sentence;
    } lines[] = {
        {"train --data %s --resume auto", "--resume auto needs --save-dir DIR"},
        {"train --data %s --shard-size 1M", "--shard-size needs --save DIR or --save-dir DIR"},
        {"train --data %s --save-dtype bf16", "--save-dtype needs --save DIR"},
        {"train --data %s --save m --save-dtype f16", "save-dtype must be f32 or bf16"},
        {"train --data %s --keep 2", "--keep needs --save-dir DIR"},
        {"train --data %s --save-every 2", "--save-every needs --save-dir DIR"},
        {"train --data %s --shard-size 0", "--shard-size must be a number of bytes such as 500M"},
        {"train --data %s --shard-size 17179869184G", "--shard-size must be a number of bytes"},
        {"checkpoint %s", "expected show, verify, convert or average"},
        {"checkpoint convert %s", "expected two directories"},
        {"checkpoint average %s", "expected directories"},
        {"checkpoint show %s --shard-size 5", "belongs to convert and average"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[300];
        snprintf(line, sizeof line, "%.*s%s%s", (int)(strstr(lines[i].line, "%s") - lines[i].line),
                 lines[i].line, dir->directory, strstr(lines[i].line, "%s") + 2);
        program_start(&run, "%s", line);
        check_refused(&run, 2, lines[i].sentence);
    }
    program_start(&run, "checkpoint show %s", dir->directory);
    check_refused(&run, 1,
                  "the directory is no checkpoint, and has neither model.safetensors nor ");
}

#define on_run(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int cmd_checkpoint_tests(void)
{
    const struct CMUnitTest tests[] = {
        on_run(show_tells_files_and_parts),
        on_run(show_escapes_control_characters),
        on_run(verify_finds_the_damaged_one),
        on_run(convert_cuts_and_joins),
        on_run(weights_are_taken_from_any_of_its_forms),
        on_run(directory_of_a_run_is_told_from_a_checkpoint),
        on_run(changed_vocabulary_is_refused),
        on_run(average_is_the_mean),
        on_run(run_resumes_though_its_log_cannot_be_written),
        on_run(so_many_checkpoints_stay_as_are_kept),
        on_run(resuming_continues_the_log),
        cmocka_unit_test_setup_teardown(time_of_copies_is_shown_at_the_end, corpus_create,
                                        tear_down),
        on_run(resumed_run_keeps_its_rate_where_none_is_given),
        on_run(run_resumes_by_its_directory_alone),
        on_run(directory_without_options_cannot_be_resumed_alone),
        on_run(checkpoints_of_another_run_are_left_alone),
        on_run(options_without_sense_are_refused),
    };
    if (!program_exists())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
