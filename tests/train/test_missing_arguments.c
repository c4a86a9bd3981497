/* A required pointer that is NULL gives an error that names it, in every public function of
 * sluice/train.h that has a status. */
#include "sluice/train.h"

#include "support/check.h"
#include "support/replicas.h"

#include <stdlib.h>
#include <string.h>

#define check_null(call, text) check_error(call, SL_ERR_INVALID, text)

/* Pointers that are there, and not used. */
static sl_train_options options;
static sl_run_result result;
static int somewhere;

static void options_and_plan_name_what_is_missing(void **state)
{
    (void)state;
    sl_plan plan;
    sl_host_plan host;
    sl_module *model = (sl_module *)&somewhere;
    check_null(sl_train_options_preset(NULL, &options), "sl_train_options_preset: name is NULL");
    check_null(sl_train_options_preset("ddp-pipeline", NULL), "options is NULL");
    check_null(sl_train_options_check(NULL), "sl_train_options_check: options is NULL");
    check_null(sl_plan_create(NULL, model, 0, &plan), "sl_plan_create: options is NULL");
    check_null(sl_plan_create(&options, NULL, 0, &plan), "sl_plan_create: model is NULL");
    check_null(sl_plan_create(&options, model, 0, NULL), "sl_plan_create: out is NULL");
    check_null(sl_plan_host(NULL, model, 1, true, &host), "sl_plan_host: options is NULL");
    check_null(sl_plan_host(&options, NULL, 1, true, &host), "sl_plan_host: model is NULL");
    check_null(sl_plan_host(&options, model, 1, true, NULL), "sl_plan_host: out is NULL");
    check_null(sl_plan_check_memory(NULL, model, 1, true, 0), "sl_plan_check_memory: options is");
    check_null(sl_plan_check_memory(&options, NULL, 1, true, 0), "sl_plan_check_memory: model is");
}

/* One rank's options are missing: every rank gets the error. */
static sl_status run_without_options(sl_group *group, void *arg)
{
    (void)arg;
    sl_run_result own;
    sl_train_options of_one;
    sl_train_options_default(&of_one);
    bool lacks = sl_group_rank(group) == 1;
    sl_status status = sl_train_run_rank(lacks ? NULL : &of_one, group, 0, NULL, 0, &own);
    return expect(status != SL_OK, "an error on every rank");
}

static void runs_name_what_is_missing(void **state)
{
    (void)state;
    sl_group *group = (sl_group *)&somewhere;
    check_null(sl_train_run(NULL, NULL, 0, &result), "sl_train_run: options is NULL");
    check_null(sl_train_run(&options, NULL, 0, NULL), "sl_train_run: result is NULL");
    sl_train_options_default(&options);
    check_null(sl_train_run(&options, NULL, 0, &result), "no data directory was given");
    check_null(sl_train_run_rank(&options, NULL, 0, NULL, 0, &result), "group is NULL");
    check_ok(sl_group_create_local(1, NULL, &group));
    check_null(sl_train_run_rank(NULL, group, 0, NULL, 0, &result),
               "sl_train_run_rank: options is NULL");
    sl_group_destroy(&group);
    check_ok(sl_group_create_local(1, NULL, &group));
    check_null(sl_train_run_rank(&options, group, 0, NULL, 0, NULL),
               "sl_train_run_rank: result is NULL");
    sl_group_destroy(&group);
    check_ranks(run_without_options, NULL, 2);
}

static void log_and_weights_name_what_is_missing(void **state)
{
    (void)state;
    sl_run_log *log;
    sl_pipe *pipe = (sl_pipe *)&somewhere;
    sl_model_options model;
    sl_vocab *vocab;
    char *path;
    check_null(sl_run_log_create(NULL, NULL, NULL, &log), "sl_run_log_create: path is NULL");
    check_null(sl_run_log_create("log", NULL, NULL, NULL), "sl_run_log_create: out is NULL");
    check_null(sl_weights_save(NULL, &model, NULL, "w"), "sl_weights_save: pipe is NULL");
    check_null(sl_weights_save(pipe, NULL, NULL, "w"), "sl_weights_save: model is NULL");
    check_null(sl_weights_save(pipe, &model, NULL, NULL), "sl_weights_save: path is NULL");
    check_null(sl_weights_load(NULL, "w"), "sl_weights_load: pipe is NULL");
    check_null(sl_weights_load(pipe, NULL), "sl_weights_load: path is NULL");
    check_null(sl_weights_model(NULL, &model), "sl_weights_model: path is NULL");
    check_null(sl_weights_model("w", NULL), "sl_weights_model: out is NULL");
    check_null(sl_weights_vocab(NULL, &vocab), "sl_weights_vocab: path is NULL");
    check_null(sl_weights_vocab("w", NULL), "sl_weights_vocab: out is NULL");
    check_null(sl_weights_vocab_path(NULL, &path), "sl_weights_vocab_path: path is NULL");
    check_null(sl_weights_vocab_path("w", NULL), "sl_weights_vocab_path: out is NULL");
}

static void using_a_model_names_what_is_missing(void **state)
{
    (void)state;
    sl_pipe *pipe = (sl_pipe *)&somewhere;
    const sl_tokens *tokens = (sl_tokens *)&somewhere;
    const sl_evaluate_options how = {0};
    const sl_generate_options draws = {0};
    sl_evaluation out;
    int32_t ids[2] = {0};
    int64_t length = 1;
    check_null(sl_evaluate_tokens(NULL, tokens, &how, &out), "sl_evaluate_tokens: pipe is NULL");
    check_null(sl_evaluate_tokens(pipe, NULL, &how, &out), "sl_evaluate_tokens: tokens is NULL");
    check_null(sl_evaluate_tokens(pipe, tokens, NULL, &out), "options is NULL");
    check_null(sl_evaluate_tokens(pipe, tokens, &how, NULL), "sl_evaluate_tokens: out is NULL");
    check_null(sl_generate(NULL, &draws, ids, &length, 1), "sl_generate: pipe is NULL");
    check_null(sl_generate(pipe, NULL, ids, &length, 1), "sl_generate: options is NULL");
    check_null(sl_generate(pipe, &draws, NULL, &length, 1), "sl_generate: ids is NULL");
    check_null(sl_generate(pipe, &draws, ids, NULL, 1), "sl_generate: length is NULL");
}

int missing_arguments_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_and_plan_name_what_is_missing),
        cmocka_unit_test(runs_name_what_is_missing),
        cmocka_unit_test(log_and_weights_name_what_is_missing),
        cmocka_unit_test(using_a_model_names_what_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
