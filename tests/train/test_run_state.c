/* What a run keeps beside its model: state.json, the best parameters, and the optimizer's state,
 * which a pipe's optimizer reads as well. */
#include "small_run.h"

#include "train/checkpoint/checkpoints.h"

#include <time.h>

/* What a run says of itself at least: {SHARDS, CHUNKS}. */
static const char run_json[] =
    "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,\"seconds\":1.5,"
    "\"options\":{\"shards\":%s,\"lr\":5.0},\"layout\":{\"chunks\":%s}}";

static void shards_of_a_state_are_checked(void **state)
{
    static const char *const wrong[] = {"0", "-1", "2.5", "\"8\"", "1025"};
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, run_json, "4", "1");
    check_ok(sli_run_state_read(text, &recorded));
    assert_int_equal(recorded.shards, 4);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, run_json, wrong[i], "1");
        check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                    "\"shards\" of the run's options must be a whole number from 1 to 1024");
    }
}

static void chunks_of_a_state_are_checked(void **state)
{
    static const char *const wrong[] = {"0", "-1", "2.5", "\"8\"", "4097"};
    char text[256];
    sli_recorded recorded;
    snprintf(text, sizeof text, run_json, "1", "8");
    check_ok(sli_run_state_read(text, &recorded));
    assert_int_equal(recorded.chunks, 8);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(text, sizeof text, run_json, "1", wrong[i]);
        check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                    "\"chunks\" of the run's layout must be a whole number from 1 to 4096");
    }
}

/* ---- Runs and pipes of one's own ------------------------------------------------------------ */

/* Loads a run's checkpoint into a pipe of one's own, and saves what that pipe has. */
static void save_again(const char *from, const char *to, sl_optimizer_options optimizer)
{
    sl_checkpoint_reader *reader;
    sl_checkpoint_part parts[2];
    sl_saved_model *saved;
    sl_module *model;
    check_ok(sl_saved_model_open(from, &saved));
    check_ok(sl_transformer_lm_create(sl_saved_model_options(saved), &model));
    sl_saved_model_close(&saved);
    SCOPED(test_pipe) at =
        open_pipe(model, new_cross_entropy(), (sl_pipe_options){.stages = 2}, 2, 1);
    SCOPED(sl_pipe_optimizer) *state = NULL;
    check_ok(sl_pipe_optimizer_create(&(sl_pipe_optimizer_options){.pipe = at.pipe,
                                                                   .optimizer = optimizer},
                                      &state));
    check_ok(sl_checkpoint_open(from, &reader));
    check_ok(sl_pipe_get_state(at.pipe, &parts[0]));
    check_ok(sl_checkpoint_read(reader, "model", parts[0].items, parts[0].count));
    check_ok(sl_pipe_optimizer_load(state, reader));
    check_ok(sl_pipe_optimizer_get_state(state, &parts[1]));
    const sl_safetensors_item *last = &parts[1].items[parts[1].count - 1];
    assert_non_null(strstr(last->name, ".step"));
    assert_int_equal(*(const int64_t *)last->data, 2);
    check_ok(
        sl_checkpoint_save(to, &(sl_checkpoint_contents){.parts = parts,
                                                         .part_count = 2,
                                                         .state = sl_checkpoint_state(reader)}));
    sl_checkpoint_close(&reader);
}

/* A run saves after two steps, a pipe of one's own reads that and saves it, and a run resumes. */
static void check_exchange(scratch *dir, int replicas, bool zero)
{
    static small_record whole, first, second;
    char run[512], saved[512], newest[512];
    sl_train_options options = small_options(dir);
    options.optimizer = (sl_optimizer_options){.kind = SL_OPTIMIZER_ADAMW};
    options.lr.lr = 0.01;
    options.replicas = replicas;
    options.zero = zero;
    check_ok(small_run(&options, &whole));
    snprintf(run, sizeof run, "%s", scratch_path(dir, "run"));
    snprintf(saved, sizeof saved, "%s", scratch_path(dir, "saved"));
    snprintf(newest, sizeof newest, "%s", scratch_path(dir, "run/step-00000002"));
    options.checkpoints = (sl_save_options){.directory = run, .every_steps = 2};
    check_ok(small_run(&options, &first));
    save_again(newest, saved, options.optimizer);
    options.checkpoints = (sl_save_options){.resume = saved};
    check_ok(small_run(&options, &second));
    first.step_count = 2;
    first.eval_count = 0;
    check_continued(&first, &second, &whole);
    scratch_remove_tree(dir, "run");
    scratch_remove_tree(dir, "saved");
}

static void runs_and_pipes_read_each_others_optimizer_state(void **state)
{
    check_exchange(*state, 1, false);
    check_exchange(*state, 2, false);
    check_exchange(*state, 2, true);
}

/* ---- The best parameters ----------------------------------------------------------------- */

static void change_all(test_pipe *pipe, float by)
{
    for (int s = 0; s < sl_pipe_stages(pipe->pipe); s++) {
        const sl_parameter_set *set = sl_pipe_parameters(pipe->pipe, s);
        for (int i = 0; i < sl_parameter_set_count(set); i++) {
            sl_parameter *parameter = sl_parameter_set_get(set, i);
            if (sl_parameter_get_kind(parameter) != SL_PARAMETER_TRAINED)
                continue;
            float *values = sl_tensor_f32(sl_parameter_value(parameter));
            for (int64_t k = 0; k < sl_tensor_count(sl_parameter_value(parameter)); k++)
                values[k] += by;
        }
    }
}

static uint64_t parameter_bytes(const test_pipe *pipe)
{
    uint64_t bytes = 0;
    for (int i = 0; i < pipe->device_count; i++) {
        sl_memory_stats stats;
        sl_device_memory(pipe->devices[i], &stats);
        bytes += stats.current_bytes[SL_MEMORY_PARAMETERS];
    }
    return bytes;
}

static void restored_values_are_those_kept_last(void **state)
{
    for (int stages = 1; stages <= 3; stages++) {
        int64_t count;
        SCOPED(test_pipe) pipe = open_small_model(stages, 2);
        SCOPED(sli_best) *best = NULL;
        check_ok(sli_best_create(stages, false, &best));
        check_ok(sli_best_keep(best, &(sli_replica){.pipe = pipe.pipe}));
        change_all(&pipe, 1);
        check_ok(sli_best_keep(best, &(sli_replica){.pipe = pipe.pipe}));
        FREED float *kept = pipe_values(pipe.pipe, &count);
        change_all(&pipe, 1); /* a second name for the same values would change with them */
        check_ok(sli_best_restore(best, pipe.pipe));
        FREED float *restored = pipe_values(pipe.pipe, &count);
        assert_memory_equal(kept, restored, (size_t)count * sizeof *kept);
    }
}

static void memory_is_taken_with_the_first_copy_only(void **state)
{
    sli_best *best;
    SCOPED(test_pipe) pipe = open_small_model(2, 2);
    check_ok(sli_best_create(2, false, &best));
    uint64_t without = parameter_bytes(&pipe);
    check_ok(sli_best_keep(best, &(sli_replica){.pipe = pipe.pipe}));
    uint64_t with = parameter_bytes(&pipe);
    assert_true(with > without);
    check_ok(sli_best_keep(best, &(sli_replica){.pipe = pipe.pipe}));
    assert_int_equal(parameter_bytes(&pipe), with);
    sli_best_destroy(&best);
    assert_int_equal(parameter_bytes(&pipe), without);
}

/* As replicas that are threads of one process do. */
static void replicas_share_the_firsts_copy(void **state)
{
    int64_t count;
    SCOPED(test_pipe) first = open_small_model(2, 2), second = open_small_model(2, 2);
    SCOPED(sli_best) *best = NULL;
    check_ok(sli_best_create(2, true, &best));
    uint64_t without = parameter_bytes(&second);
    FREED float *kept = pipe_values(first.pipe, &count);
    check_ok(sli_best_keep(best, &(sli_replica){.pipe = second.pipe, .index = 1}));
    check_ok(sli_best_keep(best, &(sli_replica){.pipe = first.pipe, .index = 0}));
    assert_int_equal(parameter_bytes(&second), without);
    change_all(&first, 1);
    change_all(&second, 2);
    check_ok(sli_best_keep(best, &(sli_replica){.pipe = second.pipe,
                                                .index = 1})); /* not the values to be kept */
    check_ok(sli_best_restore(best, first.pipe));
    check_ok(sli_best_restore(best, second.pipe));
    test_pipe *const both[] = {&first, &second};
    for (int i = 0; i < 2; i++) {
        FREED float *restored = pipe_values(both[i]->pipe, &count);
        assert_memory_equal(kept, restored, (size_t)count * sizeof *kept);
    }
}

static void restoring_without_a_copy_changes_nothing(void **state)
{
    int64_t count;
    SCOPED(test_pipe) pipe = open_small_model(2, 2);
    SCOPED(sli_best) *best = NULL;
    check_ok(sli_best_create(2, false, &best));
    FREED float *before = pipe_values(pipe.pipe, &count);
    check_ok(sli_best_restore(best, pipe.pipe));
    FREED float *after = pipe_values(pipe.pipe, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
}

/* ---- Time ----------------------------------------------------------------------------------- */

static unsigned sleep_and_stop(void *context)
{
    const struct timespec half = {.tv_nsec = 500000000};
    nanosleep(&half, NULL);
    return SL_TRAIN_STOP;
}

/* The first process takes half a second more than its step. */
static void seconds_of_a_run_include_earlier_processes(void **state)
{
    static small_record record;
    sl_train_options options = small_options(*state);
    char directory[512];
    double steps = 0;
    snprintf(directory, sizeof directory, "%s", scratch_path(*state, "checkpoints"));
    options.checkpoints = (sl_save_options){.directory = directory, .request = sleep_and_stop};
    check_ok(small_run(&options, &record));
    assert_int_equal(record.step_count, 1);
    options.checkpoints = (sl_save_options){.resume = directory};
    check_ok(small_run(&options, &record));
    for (int i = 0; i < record.step_count; i++)
        steps += record.steps[i].seconds;
    assert_int_equal(record.step_count, 3);
    assert_true(record.result.seconds >= 0.5 + steps);
    scratch_remove_tree(*state, "checkpoints");
}

static void seconds_of_a_state_are_checked(void **state)
{
    static const char json[] =
        "{\"step\":1,\"epoch\":0,\"block\":1,\"best_step\":0,\"best_loss\":null,%s"
        "\"options\":{\"shards\":1,\"lr\":5.0},\"layout\":{\"chunks\":1}}";
    static const char *const wrong[] = {"-1.0", "\"1\"", "null"};
    char text[256], value[32];
    sli_recorded recorded;
    snprintf(text, sizeof text, json, "");
    check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                "\"seconds\" of the run must be");
    snprintf(text, sizeof text, json, "\"seconds\":2.5,");
    check_ok(sli_run_state_read(text, &recorded));
    assert_true(recorded.position.seconds == 2.5);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(value, sizeof value, "\"seconds\":%s,", wrong[i]);
        snprintf(text, sizeof text, json, value);
        check_error(sli_run_state_read(text, &recorded), SL_ERR_FORMAT,
                    "\"seconds\" of the run must be a number from 0");
    }
}

int run_state_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_of_a_state_are_checked),
        cmocka_unit_test(chunks_of_a_state_are_checked),
        cmocka_unit_test(seconds_of_a_run_include_earlier_processes),
        cmocka_unit_test(seconds_of_a_state_are_checked),
        cmocka_unit_test(runs_and_pipes_read_each_others_optimizer_state),
        cmocka_unit_test(restored_values_are_those_kept_last),
        cmocka_unit_test(memory_is_taken_with_the_first_copy_only),
        cmocka_unit_test(replicas_share_the_firsts_copy),
        cmocka_unit_test(restoring_without_a_copy_changes_nothing),
    };
    return cmocka_run_group_tests(tests, small_corpus_create, scratch_remove);
}
