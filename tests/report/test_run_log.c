#include "report/history.h"
#include "report/zscore.h"
#include "train/small_run.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

enum { MOST_RECORDS = 64 };

typedef struct log_file {
    json_t *records[MOST_RECORDS];
    int count;
} log_file;

/* ---- Documentation -------------------------------------------------------------------------- */

/* Whether a row "| `record` | `field`, … | unit | …" of docs/usage.md has the field and a unit. One
 * of the record `record` is of every record. */
static bool is_documented(const char *usage, const char *kind, const char *field)
{
    char start[64], name[128];
    snprintf(start, sizeof start, "\n| `%s` | ", kind);
    snprintf(name, sizeof name, "`%s`", field);
    for (const char *row = usage; (row = strstr(row, start)); row++) {
        const char *fields = row + strlen(start), *found = strstr(fields, name);
        const char *unit = strstr(fields, " | "), *end = strchr(fields, '\n');
        if (found && unit && found < unit && unit < end)
            return unit[3] != '|' && unit[3] != ' ';
    }
    return false;
}

/* Every key, and those of objects: "model.nhid". */
static void check_fields(const char *usage, const char *kind, const char *prefix, json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        char field[96];
        snprintf(field, sizeof field, "%s%s", prefix, key);
        if (json_is_object(value)) {
            strcat(field, ".");
            check_fields(usage, kind, field, value);
        } else if (strcmp(field, "record") != 0 && !is_documented(usage, kind, field) &&
                   !is_documented(usage, "record", field)) {
            fail_msg("docs/usage.md does not list %s of \"%s\" with a unit", field, kind);
        }
    }
}

static void check_documented(json_t *record)
{
    static char usage[1 << 16];
    char path[512];
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, sizeof path, "%s/docs/usage.md", source ? source : ".");
    assert_in_range(read_file(path, usage, sizeof usage - 1), 1, sizeof usage - 2);
    check_fields(usage, json_string_value(json_object_get(record, "record")), "", record);
}

/* ---- Logs ----------------------------------------------------------------------------------- */

/* Every field of every record must be in docs/usage.md. */
static log_file read_log(const char *path)
{
    log_file read = {.count = 0};
    char line[65536];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        assert_true(read.count < MOST_RECORDS);
        json_t *record = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_is_object(record));
        check_documented(record);
        read.records[read.count++] = record;
    }
    fclose(file);
    return read;
}

static void log_file_destroy(log_file *log)
{
    for (int i = 0; i < log->count; i++)
        json_decref(log->records[i]);
}

static bool is_kind(const json_t *record, const char *kind)
{
    return strcmp(json_string_value(json_object_get(record, "record")), kind) == 0;
}

static double real_of(const json_t *record, const char *key)
{
    const json_t *value = json_object_get(record, key);
    if (!json_is_number(value))
        fail_msg("\"%s\" is missing or no number", key);
    return json_number_value(value);
}

/* Runs, and reads the log; what the run reported is in *record. */
static log_file run_and_read_log(scratch *dir, const sl_train_options *options,
                                 small_record *record)
{
    sl_run_log *log;
    sl_run_result result;
    char path[512];
    snprintf(path, sizeof path, "%s/log.jsonl", dir->directory);
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    const sl_reporter reporters[] = {sl_run_log_reporter(log), small_reporter(record)};
    check_ok(sl_train_run(options, reporters, 2, &result));
    sl_run_log_destroy(&log);
    return read_log(path);
}

static void run_is_logged_with_all_that_decided_it(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    options.devices = "cpu:0,cpu:1";
    options.seed = 77;
    options.measure_peak = true;
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW, .beta1 = 0.8f};
    SCOPED(log_file) read = run_and_read_log(*state, &options, &record);
    /* run, 4 steps, the pipeline, 2 evaluations with 2 devices' memory each, end */
    assert_int_equal(read.count, 1 + 4 + 1 + 2 * (1 + 2) + 1);
    const json_t *run = read.records[0];
    assert_true(is_kind(run, "run"));
    assert_non_null(json_string_value(json_object_get(run, "version")));
    assert_true(real_of(run, "seed") == 77);
    assert_true(real_of(run, "parameters") > 1000);
    assert_true(real_of(run, "ntokens") > 10);
    double peak = real_of(run, "peak_flops_per_s");
    assert_true(peak > 1e6);
    assert_true(real_of(json_object_get(run, "model"), "nlayers") == 3);
    assert_true(real_of(run, "clip") == 0.5);
    assert_true(real_of(run, "lr") == 1e-3 && real_of(run, "gamma") == options.lr.gamma);
    assert_true(real_of(run, "max_batches") == (double)options.max_batches);
    assert_string_equal(json_string_value(json_object_get(run, "lr_schedule")), "step");
    assert_null(json_object_get(run, "init"));
    assert_string_equal(json_string_value(json_object_get(run, "optimizer")), "adamw");
    assert_true(real_of(run, "beta1") == 0.8 && real_of(run, "beta2") == 0.999);
    assert_string_equal(json_string_value(json_object_get(run, "schedule")), "gpipe");
    assert_string_equal(json_string_value(json_array_get(json_object_get(run, "devices"), 1)),
                        "cpu:1");
    assert_true(json_integer_value(json_array_get(json_object_get(run, "partition"), 0)) == 3);
    for (int i = 0; i < 4; i++) {
        const json_t *step = read.records[1 + i];
        assert_true(is_kind(step, "step"));
        assert_true(real_of(step, "step") == i + 1);
        assert_true(real_of(step, "epoch") == 1);
        assert_true(real_of(step, "batch") == i + 1);
        assert_true(real_of(step, "loss") == record.steps[i].loss); /* to the last bit */
        assert_true(real_of(step, "grad_norm") == record.steps[i].grad_norm);
        assert_true(real_of(step, "lr") == 1e-3);
        assert_true(real_of(step, "ms") > 0 && real_of(step, "tokens_per_s") > 0);
        double seconds = real_of(step, "ms") / 1e3, flops = real_of(step, "flops_per_s") * seconds;
        assert_float_equal(flops, record.steps[i].flops, 1e-6 * flops);
        assert_float_equal(real_of(step, "mfu") * peak * seconds, flops, 1e-6 * flops);
        assert_true(real_of(step, "data_ms") > 0 && real_of(step, "optimizer_ms") > 0);
        assert_true(real_of(step, "reduce_ms") == 0);
        assert_true(real_of(step, "waiting_ms") > 0);
        assert_true(real_of(step, "data_ms") + real_of(step, "optimizer_ms") +
                        real_of(step, "waiting_ms") <
                    real_of(step, "ms"));
    }
}

/* [action, start, end] of every action, measured and predicted in one order. */
static void check_timelines(const json_t *pipeline)
{
    const json_t *measured = json_object_get(pipeline, "measured");
    const json_t *predicted = json_object_get(pipeline, "predicted");
    assert_int_equal(json_array_size(measured), 2 * 3 * 2 + 2 * 2); /* F and B, and R but for one */
    assert_int_equal(json_array_size(predicted), json_array_size(measured));
    for (size_t i = 0; i < json_array_size(measured); i++) {
        const char *action, *same;
        json_int_t start, end;
        json_t *entry = json_array_get(measured, i);
        assert_int_equal(json_unpack(entry, "[sII!]", &action, &start, &end), 0);
        assert_true(start >= 0 && start <= end);
        entry = json_array_get(predicted, i);
        assert_int_equal(json_unpack(entry, "[sII!]", &same, &start, &end), 0);
        assert_true(start >= 0 && start <= end);
        assert_string_equal(action, same);
    }
    assert_string_equal(json_string_value(json_array_get(json_array_get(measured, 0), 0)), "0F2");
    assert_true(json_integer_value(json_array_get(json_object_get(pipeline, "placement"), 1)) == 1);
}

static void pipeline_is_logged_after_each_epoch(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    options.pipeline_ranks = 2;
    options.epochs = 2;
    SCOPED(log_file) read = run_and_read_log(*state, &options, &record);
    int found = 0;
    for (int i = 0; i < read.count; i++) {
        const json_t *pipeline = read.records[i];
        if (!is_kind(pipeline, "pipeline"))
            continue;
        assert_true(is_kind(read.records[i - 1], "step") && is_kind(read.records[i + 1], "eval"));
        assert_true(real_of(pipeline, "epoch") == ++found);
        assert_true(real_of(pipeline, "step") == 4 * found);
        check_timelines(pipeline);
        double idle = 0, measured = real_of(pipeline, "bubble_measured");
        double predicted = real_of(pipeline, "bubble_predicted"), stage_ms[2];
        assert_true(measured > 0 && measured < 1 && predicted >= 0 && predicted < 1);
        for (size_t rank = 0; rank < 2; rank++) {
            double of_rank =
                json_real_value(json_array_get(json_object_get(pipeline, "idle"), rank));
            double waiting =
                json_real_value(json_array_get(json_object_get(pipeline, "waiting"), rank));
            stage_ms[rank] =
                json_real_value(json_array_get(json_object_get(pipeline, "stage_ms"), rank));
            assert_true(waiting >= 0 && waiting <= of_rank + 1e-9 && stage_ms[rank] > 0);
            idle += of_rank;
        }
        assert_float_equal(idle / 2, measured, 1e-9);
        assert_true(real_of(pipeline, "slowest_stage") == (stage_ms[1] > stage_ms[0]));
    }
    assert_int_equal(found, 2);
}

/* They come after as many steps as there are ranks, and one for 16 actions: after steps 1 and 4. */
static void timelines_within_an_epoch_are_logged_with_memory(void **state)
{
    static small_record record;
    static const char *const kinds[] = {"step", "pipeline", "memory", "memory", "step", "step",
                                        "step", "pipeline", "memory", "memory", "step"};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    sl_train_options options = small_options(*state);
    options.pipeline_ranks = 2;
    options.max_batches = 5;
    options.report_timelines = true;
    SCOPED(log_file) read = run_and_read_log(*state, &options, &record);
    for (int i = 0; i < KINDS; i++)
        assert_true(is_kind(read.records[1 + i], kinds[i]));
    for (int i = 2; i < 1 + KINDS; i += 6) {
        check_timelines(read.records[i]);
        assert_true(json_is_false(json_object_get(read.records[i], "ends_epoch")));
        assert_true(real_of(read.records[i], "step") == (i == 2 ? 1 : 4));
        assert_true(real_of(read.records[i + 2], "stage") == 1);
    }
    assert_true(json_is_true(json_object_get(read.records[1 + KINDS], "ends_epoch")));
}

static void evaluations_and_memory_are_logged(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    SCOPED(log_file) read = run_and_read_log(*state, &options, &record);
    assert_int_equal(read.count, 1 + 4 + 2 * (1 + 1) + 1);
    static const char *const splits[] = {"valid", "test"};
    for (int i = 0; i < 2; i++) {
        const json_t *eval = read.records[5 + 2 * i], *memory = read.records[6 + 2 * i];
        assert_true(is_kind(eval, "eval"));
        assert_string_equal(json_string_value(json_object_get(eval, "split")), splits[i]);
        assert_true(real_of(eval, "loss") == record.evals[i].loss);
        assert_true(real_of(eval, "ppl") == record.evals[i].perplexity);
        assert_true(is_kind(memory, "memory"));
        assert_string_equal(json_string_value(json_object_get(memory, "device")), "cpu:0");
        const json_t *peak = json_object_get(memory, "peak_bytes");
        assert_true(real_of(peak, "parameters") > 0 && real_of(peak, "gradients") > 0);
        assert_true(real_of(peak, "activations") > 0 && real_of(peak, "optimizer") == 0);
        double total = real_of(memory, "peak_total_bytes");
        assert_true(total > real_of(peak, "parameters"));
        assert_true(real_of(memory, "peak_reserved_bytes") >= total);
    }
    const json_t *end = read.records[read.count - 1];
    assert_true(is_kind(end, "end"));
    assert_true(real_of(end, "steps") == 4);
    assert_true(real_of(end, "seconds") == record.result.seconds);
    assert_true(real_of(end, "test_loss") == record.result.test_loss);
}

/* Two stages with one name are told apart, as are replicas. */
static void timelines_and_memory_of_every_replica_are_logged(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    options.devices = "cpu,cpu;cpu,cpu";
    SCOPED(log_file) read = run_and_read_log(*state, &options, &record);
    assert_int_equal(read.count, 1 + 4 + 2 + 2 * (1 + 4) + 1);
    double parameters[2][2];
    for (int replica = 0; replica < 2; replica++) {
        const json_t *pipeline = read.records[1 + 4 + replica];
        assert_true(is_kind(pipeline, "pipeline") && real_of(pipeline, "replica") == replica);
        check_timelines(pipeline);
    }
    assert_false(json_equal(json_object_get(read.records[5], "measured"),
                            json_object_get(read.records[6], "measured")));
    for (int i = 0; i < 4; i++) {
        const json_t *memory = read.records[1 + 4 + 2 + 1 + i];
        assert_true(json_string_length(json_object_get(memory, "host")) > 0);
        assert_true(is_kind(memory, "memory"));
        assert_true(real_of(memory, "rank") == i / 2 && real_of(memory, "stage") == i % 2);
        assert_string_equal(json_string_value(json_object_get(memory, "device")), "cpu");
        parameters[i / 2][i % 2] = real_of(json_object_get(memory, "current_bytes"), "parameters");
        assert_true(parameters[i / 2][i % 2] > 0);
    }
    assert_true(parameters[0][0] == parameters[1][0] && parameters[0][1] == parameters[1][1]);
    assert_true(parameters[0][0] != parameters[0][1]);
}

static void numbers_that_are_none_are_null(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_run_log) *log = NULL;
    const char *path = scratch_path(dir, "log.jsonl");
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    const sl_step_info step = {.step = 1, .loss = NAN, .grad_norm = INFINITY, .seconds = 1};
    check_ok(reporter.step(reporter.context, &step));
    SCOPED(log_file) read = read_log(path); /* is there at once: every record is flushed */
    assert_int_equal(read.count, 1);
    assert_true(json_is_null(json_object_get(read.records[0], "loss")));
    assert_true(json_is_null(json_object_get(read.records[0], "grad_norm")));
    assert_true(real_of(read.records[0], "lr") == 0);
}

/* An outlier counts until 128 values have come after it. */
static void z_scores_look_back_128_values(void **state)
{
    sli_zscore before = {.count = 0};
    sli_zscore_add(&before, 1e6);
    for (int i = 0; i < 127; i++)
        sli_zscore_add(&before, i % 2 ? 1 : 3);
    assert_true(fabs(sli_zscore_add(&before, 1)) < 0.1);
    assert_float_equal(sli_zscore_add(&before, 4), 2 / sqrt(128.0 / 127), 1e-9);
}

/* Beside 1, 2, 3 with mean 2 and deviation 1; a value that is not finite is not counted. */
static void steps_have_z_scores(void **state)
{
    static const double losses[] = {1, 2, NAN, 3, 5};
    SCOPED(sl_run_log) *log = NULL;
    const char *path = scratch_path(*state, "log.jsonl");
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    for (int i = 0; i < 5; i++) {
        const sl_step_info step = {
            .step = i + 1, .targets = 1, .loss = losses[i], .grad_norm = 1, .seconds = 1};
        check_ok(reporter.step(reporter.context, &step));
    }
    check_ok(reporter.finished(reporter.context, NULL, &(sl_run_result){.steps = 5}));
    SCOPED(log_file) read = read_log(path);
    for (int i = 0; i < 3; i++)
        assert_true(json_is_null(json_object_get(read.records[i], "loss_z")));
    assert_float_equal(real_of(read.records[4], "loss_z"), 3, 1e-9);
    assert_true(json_is_null(json_object_get(read.records[4], "grad_norm_z")));
    assert_true(real_of(read.records[5], "nonfinite_steps") == 1);
}

static void weights_that_were_not_saved_are_logged(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_run_log) *log = NULL;
    const char *path = scratch_path(dir, "log.jsonl");
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    const sl_checkpoint_event event = {.kind = SL_WEIGHTS_FAILED,
                                       .path = "m.safetensors",
                                       .step = 4,
                                       .reason = "no room"};
    check_ok(reporter.checkpoint(reporter.context, &event));
    SCOPED(log_file) read = read_log(path);
    assert_int_equal(read.count, 1);
    assert_true(is_kind(read.records[0], "weights"));
    assert_true(json_is_false(json_object_get(read.records[0], "saved")));
    assert_true(real_of(read.records[0], "step") == 4);
    assert_string_equal(json_string_value(json_object_get(read.records[0], "path")),
                        "m.safetensors");
    assert_string_equal(json_string_value(json_object_get(read.records[0], "reason")), "no room");
}

static void checkpoints_and_what_a_run_resumes_from_are_logged(void **state)
{
    SCOPED(sl_run_log) *log = NULL;
    const char *path = scratch_path(*state, "log.jsonl");
    sl_train_options options;
    sl_train_options_default(&options);
    options.data = "text";
    options.init = "m.safetensors";
    const sl_run_info info = {.options = &options,
                              .option_rows = {sl_plan_option_rows, sl_train_option_rows}};
    const sl_checkpoint_event events[] = {
        {.kind = SL_WEIGHTS_LEFT_OUT, .path = "m.safetensors", .tensor = "6.decoder.bias"},
        {.kind = SL_CHECKPOINT_RESUMED, .path = "run", .step = 5, .lost_steps = 2},
        {.kind = SL_CHECKPOINT_SAVED,
         .path = "6",
         .step = 6,
         .copy_seconds = 1,
         .write_seconds = 2},
        {.kind = SL_CHECKPOINT_FAILED, .path = "7", .step = 7, .reason = "no room"}};
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    check_ok(reporter.checkpoint(reporter.context, &events[0]));
    check_ok(reporter.checkpoint(reporter.context, &events[1]));
    check_ok(reporter.started(reporter.context, &info));
    check_ok(reporter.checkpoint(reporter.context, &events[2]));
    check_ok(reporter.checkpoint(reporter.context, &events[3]));
    SCOPED(log_file) read = read_log(path);
    assert_int_equal(read.count, 3);
    const json_t *run = read.records[0], *saved = read.records[1], *failed = read.records[2];
    assert_true(real_of(run, "resumed_step") == 5 && real_of(run, "lost_steps") == 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(run, "left_out"), 0)),
                        "6.decoder.bias");
    assert_string_equal(json_string_value(json_object_get(run, "init")), "m.safetensors");
    assert_true(is_kind(saved, "checkpoint") && json_is_true(json_object_get(saved, "saved")));
    assert_true(real_of(saved, "copy_ms") == 1e3 && real_of(saved, "write_ms") == 2e3);
    assert_null(json_object_get(saved, "reason"));
    assert_true(is_kind(failed, "checkpoint") && json_is_false(json_object_get(failed, "saved")));
    assert_string_equal(json_string_value(json_object_get(failed, "reason")), "no room");
}

/* With more names than a record of 1 MiB has room for. */
static void names_that_were_left_out_keep_the_log_readable(void **state)
{
    enum { TENSORS = 50000 };
    const char *path = scratch_path(*state, "log.jsonl");
    SCOPED(sli_run_history) *history = NULL;
    sl_run_log *log;
    char name[80];
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "transformer.layers.%d.self_attention.weight\x1b", i);
        const sl_checkpoint_event event = {.kind = SL_WEIGHTS_LEFT_OUT, .tensor = name};
        check_ok(reporter.checkpoint(reporter.context, &event));
    }
    sl_train_options options;
    sl_train_options_default(&options);
    const sl_run_info info = {.options = &options,
                              .option_rows = {sl_plan_option_rows, sl_train_option_rows}};
    check_ok(reporter.started(reporter.context, &info));
    sl_run_log_destroy(&log);
    check_ok(sli_run_history_read(path, &history));
    assert_int_equal(history->damaged, 0);
    const json_t *names = json_object_get(history->run, "left_out");
    assert_in_range(json_array_size(names), 1000, TENSORS - 1);
    assert_int_equal(json_integer_value(json_object_get(history->run, "left_out_count")), TENSORS);
}

static void log_that_cannot_be_written_is_an_error(void **state)
{
    SCOPED(sl_run_log) *log = NULL;
    check_error(sl_run_log_create("/nowhere/log", NULL, NULL, NULL, &log), SL_ERR_IO,
                "/nowhere/log: the run log cannot be written: No such file or directory");
    assert_null(log);
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: there is no /dev/full\n");
        skip();
    }
    check_ok(sl_run_log_create("/dev/full", NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    const sl_step_info step = {.step = 1, .seconds = 1};
    check_error(reporter.step(reporter.context, &step), SL_ERR_IO,
                "/dev/full: the run log cannot be written: No space left on device");
}

/* ---- A disk without room ------------------------------------------------------------------- */

typedef struct complaints {
    int count;
    char last[512];
} complaints;

static void complain(void *context, const char *reason)
{
    complaints *c = context;
    c->count++;
    snprintf(c->last, sizeof c->last, "%s", reason);
}

/* Files of this process may grow to `bytes`, as on a disk that is full then; the limit before. */
static rlim_t limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    return before;
}

static void log_step_number(const sl_reporter *reporter, int64_t number)
{
    check_ok(reporter->step(reporter->context, &(sl_step_info){.step = number, .seconds = 1}));
}

static void run_goes_on_without_records_there_is_no_room_for(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_run_log) *log = NULL;
    complaints said = {0};
    struct stat what;
    const char *path = scratch_path(dir, "log.jsonl");
    signal(SIGXFSZ, SIG_IGN);
    check_ok(sl_run_log_create(path, NULL, complain, &said, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    log_step_number(&reporter, 1);
    assert_int_equal(stat(path, &what), 0);
    rlim_t unlimited =
        limit_files((rlim_t)what.st_size + 20); /* less than a record: what came is taken back */
    log_step_number(&reporter, 2);
    log_step_number(&reporter, 3);
    limit_files(unlimited);
    log_step_number(&reporter, 4);
    limit_files(1);
    log_step_number(&reporter, 5);
    limit_files(unlimited);
    log_step_number(&reporter, 6);
    assert_int_equal(said.count, 1);
    assert_non_null(strstr(said.last, "/log.jsonl: the run log cannot be written: File too large"));

    static const struct {
        const char *kind, *key;
        double value;
    } expected[] = {
        {"step", "step", 1},   {"gap", "records", 2}, {"step", "step", 4},
        {"gap", "records", 1}, {"step", "step", 6},
    };
    SCOPED(log_file) read = read_log(path);
    assert_int_equal(read.count, sizeof expected / sizeof *expected);
    for (int i = 0; i < read.count; i++) {
        assert_true(is_kind(read.records[i], expected[i].kind));
        assert_true(real_of(read.records[i], expected[i].key) == expected[i].value);
    }
}

/* ---- Files --------------------------------------------------------------------------------- */

static void record_comes_after_a_line_that_was_cut_off(void **state)
{
    static const char cut[] = "{\"record\": \"step\"}\n{\"rec";
    sl_run_log *log;
    char *path = scratch_path(*state, "log.jsonl"), content[512] = "";
    write_file(path, cut, sizeof cut - 1);
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    assert_int_equal(read_file(path, content, sizeof content - 1), sizeof cut - 1);
    sl_reporter reporter = sl_run_log_reporter(log);
    log_step_number(&reporter, 1);
    log_step_number(&reporter, 2);
    sl_run_log_destroy(&log);
    assert_true(read_file(path, content, sizeof content - 1) > sizeof cut);
    assert_memory_equal(content, cut, sizeof cut - 1);
    const char *added = content + sizeof cut - 1;
    assert_int_equal(strncmp(added, "\n{\"record\":\"step\"", 17), 0);
    assert_non_null(strstr(added, "}\n{\"record\":\"step\""));
}

static void pipe_takes_records(void **state)
{
    sl_run_log *log;
    char *path = scratch_path(*state, "pipe"), got[512] = "";
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    check_ok(sl_run_log_create(path, NULL, NULL, NULL, &log));
    sl_reporter reporter = sl_run_log_reporter(log);
    log_step_number(&reporter, 1);
    sl_run_log_destroy(&log);
    assert_true(read(reader, got, sizeof got - 1) > 0);
    assert_int_equal(strncmp(got, "{\"record\":\"step\"", 16), 0);
    close(reader);
}

int run_log_tests(void)
{
#define WITH_CORPUS(test)  cmocka_unit_test_setup_teardown(test, small_corpus_create, scratch_remove)
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_CORPUS(run_is_logged_with_all_that_decided_it),
        WITH_CORPUS(pipeline_is_logged_after_each_epoch),
        WITH_CORPUS(evaluations_and_memory_are_logged),
        WITH_CORPUS(timelines_and_memory_of_every_replica_are_logged),
        WITH_CORPUS(timelines_within_an_epoch_are_logged_with_memory),
        WITH_SCRATCH(numbers_that_are_none_are_null),
        cmocka_unit_test(z_scores_look_back_128_values),
        WITH_SCRATCH(steps_have_z_scores),
        WITH_SCRATCH(weights_that_were_not_saved_are_logged),
        WITH_SCRATCH(checkpoints_and_what_a_run_resumes_from_are_logged),
        WITH_SCRATCH(names_that_were_left_out_keep_the_log_readable),
        cmocka_unit_test(log_that_cannot_be_written_is_an_error),
        WITH_SCRATCH(run_goes_on_without_records_there_is_no_room_for),
        WITH_SCRATCH(record_comes_after_a_line_that_was_cut_off),
        WITH_SCRATCH(pipe_takes_records),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
