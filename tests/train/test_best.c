#include "train/checkpoint/checkpoints.h"

#include "train/small_run.h"

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
    (void)state;
    for (int stages = 1; stages <= 3; stages++) {
        sli_best *best;
        int64_t count;
        test_pipe pipe = open_small_model(stages, 2);
        check_ok(sli_best_create(pipe.devices[0], stages, false, &best));
        check_ok(sli_best_keep(best, pipe.pipe));
        change_all(&pipe, 1);
        check_ok(sli_best_keep(best, pipe.pipe));
        float *kept = pipe_values(&pipe, &count);
        change_all(&pipe, 1); /* a second name for the same values would change with them */
        check_ok(sli_best_restore(best, pipe.pipe));
        float *restored = pipe_values(&pipe, &count);
        assert_memory_equal(kept, restored, (size_t)count * sizeof *kept);
        free(kept);
        free(restored);
        sli_best_destroy(&best);
        close_pipe(&pipe);
    }
}

static void memory_is_taken_with_the_first_copy_only(void **state)
{
    (void)state;
    sli_best *best;
    test_pipe pipe = open_small_model(2, 2);
    check_ok(sli_best_create(pipe.devices[0], 2, false, &best));
    uint64_t without = parameter_bytes(&pipe);
    check_ok(sli_best_keep(best, pipe.pipe));
    uint64_t with = parameter_bytes(&pipe);
    assert_true(with > without);
    check_ok(sli_best_keep(best, pipe.pipe));
    assert_int_equal(parameter_bytes(&pipe), with);
    sli_best_destroy(&best);
    assert_int_equal(parameter_bytes(&pipe), without);
    close_pipe(&pipe);
}

/* As replicas that are threads of one process do. */
static void replicas_share_the_firsts_copy(void **state)
{
    (void)state;
    sli_best *best;
    int64_t count;
    test_pipe first = open_small_model(2, 2), second = open_small_model(2, 2);
    check_ok(sli_best_create(first.devices[0], 2, true, &best));
    uint64_t without = parameter_bytes(&second);
    float *kept = pipe_values(&first, &count);
    check_ok(sli_best_keep(best, second.pipe));
    check_ok(sli_best_keep(best, first.pipe));
    assert_int_equal(parameter_bytes(&second), without);
    change_all(&first, 1);
    change_all(&second, 2);
    check_ok(sli_best_keep(best, second.pipe)); /* not the values to be kept */
    check_ok(sli_best_restore(best, first.pipe));
    check_ok(sli_best_restore(best, second.pipe));
    test_pipe *const both[] = {&first, &second};
    for (int i = 0; i < 2; i++) {
        float *restored = pipe_values(both[i], &count);
        assert_memory_equal(kept, restored, (size_t)count * sizeof *kept);
        free(restored);
    }
    free(kept);
    sli_best_destroy(&best);
    close_pipe(&first);
    close_pipe(&second);
}

static void restoring_without_a_copy_changes_nothing(void **state)
{
    (void)state;
    sli_best *best;
    int64_t count;
    test_pipe pipe = open_small_model(2, 2);
    check_ok(sli_best_create(pipe.devices[0], 2, false, &best));
    float *before = pipe_values(&pipe, &count);
    check_ok(sli_best_restore(best, pipe.pipe));
    float *after = pipe_values(&pipe, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    free(before);
    free(after);
    sli_best_destroy(&best);
    close_pipe(&pipe);
}

int best_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_values_are_those_kept_last),
        cmocka_unit_test(memory_is_taken_with_the_first_copy_only),
        cmocka_unit_test(replicas_share_the_firsts_copy),
        cmocka_unit_test(restoring_without_a_copy_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
