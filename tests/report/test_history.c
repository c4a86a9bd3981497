#include "io/scratch.h"
#include "report/history_sources.h"
#include "sluice/app/text.h"
#include "support/check.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char run_line[] = "{\"record\":\"run\",\"lr\":0.5,\"model\":{\"nhid\":8}}\n";

/* As of a log with this text. */
static sl_status read_text(const char *text, size_t bytes, sli_run_history **out)
{
    size_t used;
    SL_TRY(sli_run_history_create("log", out));
    sl_status status = sli_run_history_add(*out, text, bytes, &used);
    if (status == SL_OK)
        status = sli_run_history_check(*out);
    if (status != SL_OK)
        sli_run_history_destroy(out);
    return status;
}

static sli_run_history *parse(const char *text)
{
    sli_run_history *history;
    check_ok(read_text(text, strlen(text), &history));
    return history;
}

/* The newest; of steps that are there twice the later ones; none without a text. */
static void samples_become_a_history(void **state)
{
    char text[4096];
    int used = snprintf(text, sizeof text, "%s", run_line);
    for (int step = 1; step <= SLI_MOST_SAMPLES + 4; step++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "{\"record\":\"sample\",\"step\":%d,\"text\":\"said %d\"}\n", step, step);
    SCOPED(sli_run_history) *history = parse(text);
    assert_int_equal(history->sample_count, SLI_MOST_SAMPLES);
    for (int i = 0; i < SLI_MOST_SAMPLES; i++)
        assert_int_equal(history->samples[i].step, i + 5);
    assert_string_equal(history->samples[0].text, "said 5");
    snprintf(text + used, sizeof text - (size_t)used,
             "%s{\"record\":\"step\",\"epoch\":1,\"batch\":12,\"step\":12,\"loss\":2}\n"
             "{\"record\":\"sample\",\"step\":12,\"text\":\"again\"}\n"
             "{\"record\":\"sample\",\"step\":12,\"text\":\"once more\"}\n"
             "{\"record\":\"sample\",\"step\":13,\"text\":null,\"reason\":\"nan\"}\n",
             run_line);
    SCOPED(sli_run_history) *resumed = parse(text);
    assert_int_equal(resumed->sample_count, 8);
    assert_int_equal(resumed->samples[6].step, 11);
    assert_string_equal(resumed->samples[7].text, "once more");
}

/* The losses of the last 20 steps; steps that are there twice count once, as they were last. */
static void sources_become_a_history(void **state)
{
    static const char run[] = "{\"record\":\"run\",\"sources\":[\"a\",\"b\"],\"source_share\":"
                              "[0.25,0.75]}\n";
    char text[8192];
    int used = snprintf(text, sizeof text, "%s", run);
    for (int step = 1; step <= 30; step++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "{\"record\":\"step\",\"epoch\":1,\"batch\":%d,\"step\":%d,"
                         "\"source_epochs\":[%d,0.5],\"source_loss\":[%d,%s]}\n",
                         step, step, step, step, step % 2 ? "null" : "3");
    snprintf(text + used, sizeof text - (size_t)used,
             "{\"record\":\"eval\",\"split\":\"valid\",\"epoch\":1,\"step\":30,"
             "\"source_loss\":[7,null]}\n"
             "{\"record\":\"eval\",\"split\":\"test\",\"epoch\":1,\"step\":30,"
             "\"source_loss\":[8,8]}\n");
    SCOPED(sli_run_history) *history = parse(text);
    assert_int_equal(history->source_count, 2);
    assert_int_equal(SLI_MAX_SOURCES, SL_MAX_SOURCES);
    const sli_history_source *sources = history->sources;
    assert_string_equal(sources[1].name, "b");
    assert_true(sources[0].share == 0.25 && sources[0].epochs == 30 && sources[1].epochs == 0.5);
    assert_true(sli_history_source_loss(history, &sources[0]) == 20.5);
    assert_true(sli_history_source_loss(history, &sources[1]) == 3);
    assert_true(sources[0].valid_loss == 7 && isnan(sources[1].valid_loss));
    snprintf(text + used, sizeof text - (size_t)used,
             "%s{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,"
             "\"source_epochs\":[2,1],\"source_loss\":[4,4]}\n",
             run);
    SCOPED(sli_run_history) *resumed = parse(text);
    assert_true(sli_history_source_loss(resumed, &resumed->sources[1]) == 4);
    assert_true(sli_history_source_loss(resumed, &resumed->sources[0]) == 4);
}

static void lists_of_other_lengths_than_the_sources_are_refused(void **state)
{
    static const char *const wrong[] = {
        "{\"record\":\"run\",\"sources\":[\"a\"],\"source_share\":[1,2]}\n",
        "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"source_loss\":[1]}\n",
        "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"source_loss\":7}\n",
        "{\"record\":\"eval\",\"split\":\"test\",\"epoch\":1,\"step\":1,\"source_loss\":[\"a\"]}"
        "\n"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[512];
        sli_run_history *history;
        snprintf(text, sizeof text, "%s%s", run_line, wrong[i]);
        check_error(read_text(text, strlen(text), &history), SL_ERR_FORMAT,
                    "must be a list of a number or null for each of the run's");
    }
}

static void records_become_a_history(void **state)
{
    SCOPED(sli_run_history) *history = parse(
        "{\"record\":\"run\",\"lr\":0.5}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":2.5,\"ms\":4}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":null,\"ms\":6}\n"
        "{\"record\":\"news\",\"of\":\"a later version\"}\n"
        "{\"record\":\"eval\",\"step\":2,\"split\":\"valid\",\"epoch\":1,\"loss\":2,\"ppl\":7.4}\n"
        "{\"record\":\"memory\",\"rank\":0,\"stage\":1,\"device\":\"cpu:1\","
        "\"peak_bytes\":{\"parameters\":10},\"peak_total_bytes\":12}\n"
        "{\"record\":\"eval\",\"step\":2,\"split\":\"test\",\"epoch\":1,\"loss\":3}\n"
        "{\"record\":\"memory\",\"rank\":0,\"stage\":1,\"device\":\"cpu:1\","
        "\"peak_bytes\":{\"parameters\":20},\"peak_total_bytes\":22}\n"
        "{\"record\":\"gap\",\"records\":3}\n"
        "{\"record\":\"end\",\"steps\":2,\"seconds\":9,\"test_loss\":3}\n");
    assert_int_equal(history->step_count, 2);
    assert_true(history->steps[0].values[SLI_STEP_LOSS] == 2.5);
    assert_true(isnan(history->steps[1].values[SLI_STEP_LOSS]));
    assert_true(isnan(history->steps[0].values[SLI_STEP_LR]));
    assert_true(sli_history_median(history, SLI_STEP_MS) == 6);
    assert_int_equal(history->eval_count, 2);
    assert_true(history->evals[1].is_test && history->evals[1].step == 2);
    assert_true(sli_history_best_loss(history) == 2);
    assert_int_equal(history->memory_count, 1); /* the last one's */
    assert_true(sli_history_peak_bytes(history) == 22);
    assert_int_equal(history->missing, 3);
    assert_true(history->ended && history->seconds == 9);
}

static void resumed_run_repeats_steps(void **state)
{
    SCOPED(sli_run_history) *history =
        parse("{\"record\":\"run\",\"lr\":0.5}\n"
              "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":5}\n"
              "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":4}\n"
              "{\"record\":\"eval\",\"step\":2,\"split\":\"valid\",\"epoch\":1,\"loss\":4}\n"
              "{\"record\":\"st\n"
              "{\"record\":\"run\",\"lr\":0.25}\n"
              "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":3}\n"
              "{\"record\":\"step\",\"epoch\":2,\"batch\":1,\"step\":3,\"loss\":2}\n"
              "{\"record\":\"step\",\"epoch\":2,\"batch\":1,\"st");
    assert_int_equal(history->step_count, 3);
    assert_true(history->steps[1].values[SLI_STEP_LOSS] == 3);
    assert_int_equal(history->eval_count, 0);
    assert_int_equal(history->damaged, 1);
    assert_true(json_real_value(json_object_get(history->run, "lr")) == 0.25);
    assert_false(history->ended);
}

/* A run that resumes from a checkpoint at an epoch's end has no step before its evaluations. */
static void resumed_run_repeats_evaluations(void **state)
{
    SCOPED(sli_run_history) *history =
        parse("{\"record\":\"run\"}\n"
              "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":5}\n"
              "{\"record\":\"eval\",\"split\":\"valid\",\"epoch\":1,\"step\":1,\"loss\":7}\n"
              "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"loss\":4}\n"
              "{\"record\":\"eval\",\"split\":\"valid\",\"epoch\":1,\"step\":2,\"loss\":6}\n"
              "{\"record\":\"eval\",\"split\":\"test\",\"epoch\":1,\"step\":2,\"loss\":6}\n"
              "{\"record\":\"run\",\"resumed_step\":2}\n"
              "{\"record\":\"eval\",\"split\":\"valid\",\"epoch\":1,\"step\":2,\"loss\":3}\n"
              "{\"record\":\"eval\",\"split\":\"test\",\"epoch\":1,\"step\":2,\"loss\":2}\n");
    assert_int_equal(history->eval_count, 3);
    assert_true(history->evals[0].step == 1 && history->evals[0].loss == 7);
    assert_true(history->evals[1].loss == 3 && !history->evals[1].is_test);
    assert_true(history->evals[2].loss == 2 && history->evals[2].is_test);
}

static void evaluation_has_its_own_step(void **state)
{
    SCOPED(sli_run_history) *history =
        parse("{\"record\":\"run\",\"resumed_step\":7}\n"
              "{\"record\":\"eval\",\"split\":\"test\",\"epoch\":1,\"step\":7,\"loss\":3}\n");
    assert_int_equal(history->evals[0].step, 7);
}

static void timelines_are_read(void **state)
{
    SCOPED(sli_run_history) *history = parse(
        "{\"record\":\"run\"}\n"
        "{\"record\":\"pipeline\",\"replica\":0,\"epoch\":2,\"step\":8,\"bubble_measured\":0.5,"
        "\"placement\":[0,1,0,1],\"measured\":[[\"2F7\",0,1500]],"
        "\"predicted\":[[\"2F7\",10,20]],\"link_ms\":[0,2.5,1],\"cores\":[-7,-7]}\n");
    const sli_history_pipeline *pipeline = sli_history_first_pipeline(history);
    assert_float_equal(pipeline->links[0], 0, 0);
    assert_float_equal(pipeline->links[1], 2.5e-3, 1e-12);
    assert_int_equal(pipeline->cores[1], -7);
    assert_int_equal(pipeline->ranks, 2);
    assert_int_equal(pipeline->stages, 4);
    assert_int_equal(pipeline->action_count, 1);
    assert_int_equal(pipeline->measured[0].action.stage, 2);
    assert_int_equal(pipeline->measured[0].action.micro, 7);
    assert_float_equal(pipeline->measured[0].end, 1.5e-3, 1e-12);
    assert_float_equal(pipeline->predicted[0].start, 1e-5, 1e-12);
}

static void each_replica_has_its_last_pipeline(void **state)
{
    SCOPED(sli_run_history) *history =
        parse("{\"record\":\"run\"}\n"
              "{\"record\":\"pipeline\",\"step\":1,\"epoch\":1,\"replica\":2}\n"
              "{\"record\":\"pipeline\",\"step\":1,\"epoch\":1,\"replica\":1}\n");
    size_t used;
    assert_null(sli_history_first_pipeline(history));
    static const char more[] =
        "{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":2}\n"
        "{\"record\":\"pipeline\",\"step\":1,\"epoch\":2,\"replica\":2}\n{\"re";
    check_ok(sli_run_history_add(history, more, strlen(more), &used));
    assert_int_equal(used, strlen(more) - strlen("{\"re"));
    assert_int_equal(history->pipeline_count, 3);
    for (int replica = 0; replica < 3; replica++) {
        assert_int_equal(history->pipelines[replica].replica, replica);
        assert_int_equal(history->pipelines[replica].epoch, replica == 1 ? 1 : 2);
    }
}

/* Of the run that resumes alone, also where it begins before the last step. */
static void resumed_run_has_a_median_of_its_own(void **state)
{
    static const char first[] =
        "{\"record\":\"run\"}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"ms\":9}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":2,\"step\":2,\"ms\":9}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":3,\"step\":3,\"ms\":9}\n";
    static const char second[] = "{\"record\":\"run\"}\n";
    static const char more[] =
        "{\"record\":\"step\",\"epoch\":1,\"batch\":3,\"step\":3,\"ms\":2}\n"
        "{\"record\":\"step\",\"epoch\":1,\"batch\":4,\"step\":4,\"ms\":2}\n";
    size_t used;
    SCOPED(sli_run_history) *history = parse(first);
    assert_true(sli_history_run_median(history, SLI_STEP_MS) == 9);
    check_ok(sli_run_history_add(history, second, strlen(second), &used));
    assert_true(isnan(sli_history_run_median(history, SLI_STEP_MS)));
    assert_true(sli_history_median(history, SLI_STEP_MS) == 9);
    check_ok(sli_run_history_add(history, more, strlen(more), &used));
    assert_true(sli_history_run_median(history, SLI_STEP_MS) == 2);
    assert_true(sli_history_median(history, SLI_STEP_MS) == 9);
}

/* Times of other stages, or of other devices, are not the run's. */
static void resumed_run_has_no_timeline_of_another_layout(void **state)
{
    static const char first[] = "{\"record\":\"run\",\"replicas\":1,\"partition\":[1,2],"
                                "\"devices\":[\"cpu:0\",\"cpu:1\"]}\n"
                                "{\"record\":\"pipeline\",\"step\":1,\"epoch\":1,\"replica\":0}\n";
    static const char same[] = "{\"record\":\"run\",\"replicas\":1,\"partition\":[1,2],"
                               "\"devices\":[\"cpu:0\",\"cpu:1\"]}\n";
    static const char *const others[] = {"{\"record\":\"run\",\"replicas\":1,\"partition\":[2,1],"
                                         "\"devices\":[\"cpu:0\",\"cpu:1\"]}\n",
                                         "{\"record\":\"run\",\"replicas\":1,\"partition\":[1,2],"
                                         "\"devices\":[\"cpu\",\"cpu\"]}\n"};
    size_t used;
    for (int i = 0; i < 2; i++) {
        SCOPED(sli_run_history) *history = parse(first);
        check_ok(sli_run_history_add(history, same, strlen(same), &used));
        assert_int_equal(history->pipeline_count, 1);
        check_ok(sli_run_history_add(history, others[i], strlen(others[i]), &used));
        assert_int_equal(history->pipeline_count, 0);
    }
}

/* What the run after it has not measured itself stays, where it has that replica. */
static void resumed_run_has_no_ranks_that_were_lost(void **state)
{
    static const char first[] =
        "{\"record\":\"run\",\"replicas\":3}\n"
        "{\"record\":\"pipeline\",\"step\":1,\"epoch\":1,\"replica\":0}\n"
        "{\"record\":\"pipeline\",\"step\":1,\"epoch\":1,\"replica\":1}\n"
        "{\"record\":\"pipeline\",\"step\":1,\"epoch\":1,\"replica\":2,\"placement\":[0],"
        "\"measured\":[[\"0F0\",0,1]],\"predicted\":[[\"0F0\",0,1]]}\n"
        "{\"record\":\"eval\",\"split\":\"valid\",\"epoch\":1,\"step\":1,\"loss\":2}\n"
        "{\"record\":\"memory\",\"rank\":2,\"stage\":0,\"peak_total_bytes\":12}\n";
    static const char second[] = "{\"record\":\"run\",\"replicas\":2,\"resumed_step\":1}\n";
    static const char more[] = "{\"record\":\"pipeline\",\"step\":1,\"epoch\":2,\"replica\":1}\n";
    size_t used;
    SCOPED(sli_run_history) *history = parse(first);
    assert_int_equal(history->pipeline_count, 3);
    assert_int_equal(history->memory_count, 1);
    check_ok(sli_run_history_add(history, second, strlen(second), &used));
    assert_int_equal(history->pipeline_count, 2);
    assert_int_equal(history->pipelines[1].replica, 1);
    assert_int_equal(history->memory_count, 0);
    assert_int_equal(history->eval_count, 1);
    check_ok(sli_run_history_add(history, more, strlen(more), &used));
    assert_int_equal(history->pipeline_count, 2);
    assert_int_equal(history->pipelines[1].epoch, 2);
}

/* A file with a hole of 1.2 GB, which is a line of zeros, between two whole lines. */
static void logs_of_any_size_are_read(void **state)
{
    static const char step[] =
        "\n{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":2}\n";
    const off_t hole = 1200000000;
    SCOPED(sli_run_history) *history = NULL;
    const char *path = scratch_path(*state, "log");
    write_file(path, run_line, sizeof run_line - 1);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, step, sizeof step - 1, hole), sizeof step - 1);
    close(fd);
    check_ok(sli_run_history_read(path, &history));
    assert_int_equal(history->step_count, 1);
    assert_int_equal(history->damaged, 1);
    assert_int_equal(history->lines, 3);
}

/* Also where a part of it comes after the other. */
static void line_that_is_too_long_is_left_out(void **state)
{
    enum { LONG = 3 << 20 };
    static const char rest[] = "\n{\"record\":\"end\",\"seconds\":9}\n";
    size_t used;
    FREED char *text = malloc(LONG + sizeof rest);
    assert_non_null(text);
    memset(text, ' ', LONG);
    memcpy(text + LONG, rest, sizeof rest);
    for (size_t first = LONG; first >= 1 << 20; first -= 1 << 19) {
        SCOPED(sli_run_history) *history = parse(run_line);
        check_ok(sli_run_history_add(history, text, first, &used));
        check_ok(sli_run_history_add(history, text + used, strlen(text) - used, &used));
        assert_int_equal(history->damaged, 1);
        assert_true(history->ended);
    }
}

static void old_records_are_thinned(void **state)
{
    enum { MOST = 64, STEPS = 10000 };
    char line[256];
    size_t used, most = 0;
    SCOPED(sli_run_history) *history = parse(run_line);
    history->most_records = MOST;
    for (int step = 1; step <= STEPS; step++) {
        int bytes =
            snprintf(line, sizeof line,
                     "{\"record\":\"step\",\"epoch\":1,\"batch\":%d,\"step\":%d,\"loss\":%d}\n"
                     "{\"record\":\"eval\",\"split\":\"valid\",\"epoch\":1,\"step\":%d,"
                     "\"loss\":%d}\n",
                     step, step, step, step, step);
        check_ok(sli_run_history_add(history, line, (size_t)bytes, &used));
        most = history->step_count > most ? history->step_count : most;
    }
    assert_int_equal(most, MOST);
    assert_in_range(history->eval_count, MOST / 2, MOST);
    assert_int_equal(history->steps[0].step, 1);
    for (size_t i = 1; i < history->step_count; i++) {
        const sli_history_step *step = &history->steps[i];
        assert_true(step->step > step[-1].step &&
                    step->values[SLI_STEP_LOSS] == (double)step->step);
        assert_true(i < history->step_count / 2 || step->step == step[-1].step + 1 ||
                    i < 3 * history->step_count / 4);
    }
    assert_int_equal(history->steps[history->step_count - 1].step, STEPS);
}

static void what_is_no_record_is_refused(void **state)
{
    static const struct {
        const char *line, *error;
    } cases[] = {
        {"[1]", "log: line 2: must be an object whose \"record\" is a string"},
        {"{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":0}",
         "line 2: step must be a whole"},
        {"{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"ms\":-1}",
         "ms must be a number of 0 or more or null"},
        {"{\"record\":\"step\",\"epoch\":1,\"batch\":1,\"step\":1,\"loss\":\"x\"}",
         "loss must be a number or null"},
        {"{\"record\":\"eval\",\"step\":1,\"split\":\"rest\"}", "split must be valid or test"},
        {"{\"record\":\"gap\",\"records\":1e9}", "records must be a whole number"},
        {"{\"record\":\"sample\",\"step\":0,\"text\":\"a\"}", "step must be a whole number"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0,9],"
         "\"measured\":[[\"0F0\",0,1]],"
         "\"predicted\":[[\"0F0\",0,1]]}",
         "placement must have ranks from 0 to 1"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0],"
         "\"measured\":[[\"0F0\",0,1]],"
         "\"predicted\":[]}",
         "as many actions"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0],"
         "\"measured\":[[\"1F0\",0,1]],"
         "\"predicted\":[[\"0F0\",0,1]]}",
         "a timeline's entry must be"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0],"
         "\"measured\":[[\"0F0\",2,1]],"
         "\"predicted\":[[\"0F0\",0,1]]}",
         "a timeline's entry must be"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0,1],"
         "\"link_ms\":[],\"measured\":[[\"0F0\",0,1]],\"predicted\":[[\"0F0\",0,1]]}",
         "link_ms must have 1 numbers, got 0"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0,1],"
         "\"link_ms\":[-1],\"measured\":[[\"0F0\",0,1]],\"predicted\":[[\"0F0\",0,1]]}",
         "link_ms must have numbers from 0 to 1e+09"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0,1],"
         "\"cores\":[0],\"measured\":[[\"0F0\",0,1]],\"predicted\":[[\"0F0\",0,1]]}",
         "cores must have 2 numbers, got 1"},
        {"{\"record\":\"pipeline\",\"step\":1,\"replica\":0,\"epoch\":1,\"placement\":[0,1],"
         "\"cores\":[0,1e10],\"measured\":[[\"0F0\",0,1]],\"predicted\":[[\"0F0\",0,1]]}",
         "cores must have whole numbers of 32 bits"},
    };
    char text[1024];
    sli_run_history *history;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "%s%s\n", run_line, cases[i].line);
        check_error(read_text(text, strlen(text), &history), SL_ERR_FORMAT, cases[i].error);
        assert_null(history);
    }
    check_error(read_text("", 0, &history), SL_ERR_FORMAT,
                "log: is no run log: it has no record \"run\"");
    check_error(sli_run_history_read("/nowhere/log", &history), SL_ERR_NOT_FOUND, "/nowhere/log");
}

int history_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_become_a_history),
        cmocka_unit_test(samples_become_a_history),
        cmocka_unit_test(sources_become_a_history),
        cmocka_unit_test(lists_of_other_lengths_than_the_sources_are_refused),
        cmocka_unit_test(resumed_run_repeats_steps),
        cmocka_unit_test(resumed_run_repeats_evaluations),
        cmocka_unit_test(evaluation_has_its_own_step),
        cmocka_unit_test(timelines_are_read),
        cmocka_unit_test(each_replica_has_its_last_pipeline),
        cmocka_unit_test(resumed_run_has_a_median_of_its_own),
        cmocka_unit_test(resumed_run_has_no_timeline_of_another_layout),
        cmocka_unit_test(resumed_run_has_no_ranks_that_were_lost),
        cmocka_unit_test_setup_teardown(logs_of_any_size_are_read, scratch_create, scratch_remove),
        cmocka_unit_test(line_that_is_too_long_is_left_out),
        cmocka_unit_test(old_records_are_thinned),
        cmocka_unit_test(what_is_no_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
