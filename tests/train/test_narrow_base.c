/* A base of bf16 under adapters: in memory once, with the same bits in what is trained. */
#include "io/scratch.h"

#include "nn/module.h"
#include "sluice/app/inference.h"
#include "sluice/app/train.h"
#include "support/modules.h"
#include "support/pipes.h"
#include "train/checkpoint/checkpoints.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 4, TIME = 24, CLASSES = 97 };

static void source_path(char path[4096], const char *name)
{
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, 4096, "%s/tests/models/%s", source ? source : ".", name);
}

/* The small model of a family, saved in bf16. */
static char *save_narrow(scratch *dir, const char *family)
{
    char path[4096];
    sl_saved_model *saved;
    sl_module *model;
    sl_pipe *pipe;
    sl_device *device = new_device(1);
    source_path(path, family);
    check_ok(sl_saved_model_open(path, &saved));
    assert_false(sl_saved_model_options(saved)->base_is_bf16);
    check_ok(sl_transformer_lm_create(sl_saved_model_options(saved), &model));
    check_ok(sl_pipe_create(
        &(sl_pipe_options){.model = model, .stages = 1, .devices = &device, .no_init = true},
        &pipe));
    check_ok(sl_saved_model_load(saved, pipe, NULL, NULL));
    char *to = strdup(scratch_path(dir, family));
    check_ok(sl_model_save(pipe, sl_saved_model_options(saved), NULL,
                           &(sl_model_saving){.type = SL_SAVED_BF16}, to));
    sl_pipe_destroy(&pipe);
    sl_module_destroy(&model);
    sl_saved_model_close(&saved);
    sl_device_destroy(&device);
    return to;
}

static test_pipe open_adapted(const sl_saved_model *saved, sl_model_options options, int stages)
{
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    test_pipe made = open_pipe(model, new_cross_entropy(),
                               (sl_pipe_options){.stages = stages,
                                                 .chunks = 2,
                                                 .precision = SL_PRECISION_BF16,
                                                 .no_init = true,
                                                 .seed = 3},
                               stages, 1);
    check_ok(sl_saved_model_load(saved, made.pipe, NULL, NULL));
    return made;
}

static size_t parameter_bytes(const test_pipe *pipe)
{
    sl_memory_stats stats;
    size_t bytes = 0;
    for (int i = 0; i < pipe->device_count; i++) {
        sl_device_memory(pipe->devices[i], &stats);
        bytes += stats.current_bytes[SL_MEMORY_PARAMETERS];
    }
    return bytes;
}

static int64_t value_bytes(const sl_module *model)
{
    return sli_module_value_bytes(model, SL_PRECISION_BF16);
}

/* Losses, adapters and the base's checksum of two ways to hold the same base; the bytes of the
 * first one's parameters are a third of the second one's, but for norms, biases and adapters. */
static void check_same(const sl_saved_model *saved, const sl_model_options *once,
                       const sl_model_options *twice, int stages)
{
    SCOPED(test_pipe) a = open_adapted(saved, *once, stages);
    SCOPED(test_pipe) b = open_adapted(saved, *twice, stages);
    char sums[2][SLI_BASE_CHECKSUM_BYTES];
    int32_t ids[ROWS * TIME];
    int64_t counts[2];
    sl_device *device = new_device(1);
    sl_shape shape = sl_shape_2d(ROWS, TIME);
    for (int i = 0; i < ROWS * TIME; i++)
        ids[i] = (7 * i * i + 3) % CLASSES;
    sl_tensor *input = integer_tensor(device, &shape, ids);
    check_ok(sli_base_checksum(a.pipe, sums[0]));
    check_ok(sli_base_checksum(b.pipe, sums[1]));
    assert_string_equal(sums[0], sums[1]);
    for (uint64_t step = 0; step < 3; step++) {
        double first = pipe_train(&a, input, input, step);
        double second = pipe_train(&b, input, input, step);
        assert_true(first == second);
        pipe_sgd_step(&a, 0.5f);
        pipe_sgd_step(&b, 0.5f);
    }
    FREED float *found = pipe_values(a.pipe, &counts[0]);
    FREED float *expected = pipe_values(b.pipe, &counts[1]);
    assert_int_equal(counts[0], counts[1]);
    assert_memory_equal(found, expected, (size_t)counts[0] * sizeof *found);
    assert_int_equal(value_bytes(a.model), parameter_bytes(&a));
    assert_int_equal(value_bytes(b.model), parameter_bytes(&b));
    size_t small = (size_t)counts[0] * 6 + 8192;
    assert_true(3 * (parameter_bytes(&a) - small) < parameter_bytes(&b));
    sl_tensor_destroy(&input);
    sl_device_destroy(&device);
}

static void base_of_bf16_is_in_memory_once_and_gives_the_same_bits(void **state)
{
    static const char *const families[] = {"gpt2", "llama3", "qwen2", "qwen3"};
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) {
        FREED char *path = save_narrow(*state, families[f]);
        sl_saved_model *saved;
        check_ok(sl_saved_model_open(path, &saved));
        sl_model_options once = *sl_saved_model_options(saved), twice;
        assert_true(once.base_is_bf16);
        once.lora.adapts = true;
        twice = once;
        twice.base_is_bf16 = false;
        for (int stages = 1; stages <= 2; stages++)
            check_same(saved, &once, &twice, stages);
        sl_saved_model_close(&saved);
    }
}

/* Their writers read f32. */
static void base_of_bf16_has_no_file_of_f32(void **state)
{
    FREED char *path = save_narrow(*state, "gpt2");
    char to[600];
    sl_saved_model *saved;
    check_ok(sl_saved_model_open(path, &saved));
    sl_model_options options = *sl_saved_model_options(saved);
    options.lora.adapts = true;
    SCOPED(test_pipe) pipe = open_adapted(saved, options, 1);
    snprintf(to, sizeof to, "%s", scratch_path(*state, "file"));
    check_error(sl_model_export_llmc(pipe.pipe, &options, SL_SAVED_F32, to), SL_ERR_UNSUPPORTED,
                "is needed in f32, but the pipe has it in bf16 alone");
    check_error(sl_model_export_gguf(pipe.pipe, &options, NULL, SL_GGUF_F32, to),
                SL_ERR_UNSUPPORTED, "is needed in f32, but the pipe has it in bf16 alone");
    assert_int_equal(access(to, F_OK), -1);
    sl_saved_model_close(&saved);
}

/* Without adapters, or with products of f32, there is nothing to save memory by. */
static void other_bases_keep_their_numbers_of_f32(void **state)
{
    FREED char *path = save_narrow(*state, "llama3");
    sl_saved_model *saved;
    check_ok(sl_saved_model_open(path, &saved));
    sl_model_options options = *sl_saved_model_options(saved);
    SCOPED(sl_module) *whole = NULL, *adapted = NULL;
    check_ok(sl_transformer_lm_create(&options, &whole));
    options.lora.adapts = true;
    check_ok(sl_transformer_lm_create(&options, &adapted));
    int64_t elements = sl_module_parameter_elements(whole);
    assert_true(value_bytes(whole) > 5 * elements);
    assert_true(sli_module_value_bytes(adapted, SL_PRECISION_F32) >= 4 * elements);
    assert_true(value_bytes(adapted) < 3 * elements);
    sl_saved_model_close(&saved);
}

/* An adapter is not added to weights that would be rounded once more. */
static void merging_into_bf16_is_refused(void **state)
{
    FREED char *path = save_narrow(*state, "llama3");
    sl_saved_model *saved;
    check_ok(sl_saved_model_open(path, &saved));
    sl_model_options options = *sl_saved_model_options(saved);
    options.lora.adapts = true;
    {
        SCOPED(test_pipe) pipe = open_adapted(saved, options, 1);
        check_error(sl_adapter_merge(pipe.pipe), SL_ERR_UNSUPPORTED,
                    "is in bf16 alone, which an adapter cannot be added to");
    }
    sl_saved_model_close(&saved);
}

int narrow_base_tests(void)
{
#define IN_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        IN_SCRATCH(base_of_bf16_is_in_memory_once_and_gives_the_same_bits),
        IN_SCRATCH(base_of_bf16_has_no_file_of_f32),
        IN_SCRATCH(other_bases_keep_their_numbers_of_f32),
        IN_SCRATCH(merging_into_bf16_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
