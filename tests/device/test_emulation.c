/* The emulation of CUDA finds what it is for: missing and wrong barriers. */
#include "support/check.h"

#ifdef SLUICE_TEST_EMULATION
#include "device/cuda/emulated.h"
#include "device/device.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Any single order of threads finds the race, whichever it is. */
static void check_races(bool (*race)(bool with_barrier))
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        emulation_seed(seed);
        assert_false(race(true));
        assert_true(race(false));
    }
}

static void a_missing_barrier_before_reading_is_found_in_every_order(void **state)
{
    check_races(race_before_reading);
}

static void a_missing_barrier_before_writing_is_found_in_every_order(void **state)
{
    check_races(race_before_writing);
}

static void record_of_seed(uint64_t seed, unsigned *out)
{
    emulation_seed(seed);
    record_threads(out);
}

/* No step from a thread to the next one says what the next step is. */
static void a_seed_gives_blocks_warps_and_lanes_any_order(void **state)
{
    unsigned order[RECORDED_THREADS], again[RECORDED_THREADS], other[RECORDED_THREADS];
    int runs[RECORDED_THREADS] = {0}, equal_steps = 0;
    record_of_seed(1, order);
    record_of_seed(1, again);
    record_of_seed(2, other);
    assert_memory_equal(again, order, sizeof order);
    assert_memory_not_equal(other, order, sizeof order);
    for (int i = 0; i < RECORDED_THREADS; i++) {
        assert_in_range(order[i], 0, RECORDED_THREADS - 1);
        runs[order[i]]++;
        equal_steps += i > 1 && (order[i] - order[i - 1] - order[i - 1] + order[i - 2]) % 32 == 0;
    }
    for (int i = 0; i < RECORDED_THREADS; i++)
        assert_int_equal(runs[i], 1);
    assert_true(equal_steps < RECORDED_THREADS / 8);
}

static void what_a_block_leaves_in_shared_memory_is_nan_to_the_next(void **state)
{
    assert_true(shared_memory_begins_as_nan());
}

/* Tensor cores take rounded elements: the result is near that in f32, and another one. */
static void attention_rounds_to_its_precision(void **state)
{
    enum { POSITIONS = 5, HEAD = 8 };
    float qkv[POSITIONS * 3 * HEAD], out[3][POSITIONS * HEAD];
    SCOPED(sl_device) *device = NULL;
    for (int i = 0; i < POSITIONS * 3 * HEAD; i++)
        qkv[i] = sinf((float)i);
    check_ok(emulated_device_create(&device));
    for (int precision = 0; precision < 3; precision++)
        check_ok(sli_device_attention(device, &(sli_attention){.samples = 1,
                                                               .positions = POSITIONS,
                                                               .heads = 1,
                                                               .head_width = HEAD,
                                                               .qkv = qkv,
                                                               .tf32 = precision == 1,
                                                               .bf16 = precision == 2,
                                                               .out = out[precision]}));
    float tf32_error = 0, bf16_error = 0;
    for (int i = 0; i < POSITIONS * HEAD; i++) {
        tf32_error = fmaxf(tf32_error, fabsf(out[1][i] - out[0][i]));
        bf16_error = fmaxf(bf16_error, fabsf(out[2][i] - out[0][i]));
    }
    assert_true(tf32_error > 1e-5f && tf32_error < 2e-3f);
    assert_true(bf16_error > 2 * tf32_error && bf16_error < 2e-2f);
}

static void threads_that_wait_for_others_in_vain_end_the_process(void **state)
{
    for (int by_warp = 0; by_warp < 2; by_warp++) {
        pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            deadlock(by_warp);
            _exit(0);
        }
        int status = 0;
        assert_true(child > 0 && waitpid(child, &status, 0) == child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

int emulation_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_barrier_before_reading_is_found_in_every_order),
        cmocka_unit_test(a_missing_barrier_before_writing_is_found_in_every_order),
        cmocka_unit_test(a_seed_gives_blocks_warps_and_lanes_any_order),
        cmocka_unit_test(what_a_block_leaves_in_shared_memory_is_nan_to_the_next),
        cmocka_unit_test(attention_rounds_to_its_precision),
        cmocka_unit_test(threads_that_wait_for_others_in_vain_end_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int emulation_tests(void)
{
    print_message("skipped: the build lacks a C++ compiler for emulated kernels\n");
    return 77;
}
#endif
