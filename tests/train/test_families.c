/* Directories of published families, in the forms that they come in. */
#include "io/scratch.h"

#include "sluice/app/inference.h"
#include "sluice/app/train.h"
#include "sluice/checkpoint.h"
#include "sluice/model.h"
#include "support/modules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 2, TIME = 24, CLASSES = 97, MOST = 64 };

static sl_device *device_of_all(void *context, const char *name)
{
    (void)name;
    return context;
}

/* All tensors of a file or directory. */
typedef struct tensors {
    sl_checkpoint_reader *reader;
    sl_checkpoint_tensor *list;
    size_t count;
} tensors;

static tensors load(sl_device *device, const char *path)
{
    tensors all = {0};
    check_ok(sl_checkpoint_open(path, &all.reader));
    check_ok(sl_checkpoint_load(all.reader, "model", device_of_all, device, &all.list, &all.count));
    return all;
}

static void unload(tensors *all)
{
    sl_checkpoint_tensors_destroy(&all->list, all->count);
    sl_checkpoint_close(&all->reader);
}

static const sl_tensor *find(const tensors *all, const char *name)
{
    for (size_t i = 0; i < all->count; i++)
        if (strcmp(all->list[i].name, name) == 0)
            return all->list[i].tensor;
    fail_msg("there is no %s", name);
    return NULL;
}

static char *golden_path(const char *family, const char *name, char path[4096])
{
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, 4096, "%s/tests/models/%s%s", source ? source : ".", family, name);
    return path;
}

static uint16_t bf16_of(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    return (uint16_t)((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
}

/* Of a value below 65504. */
static uint16_t f16_of(float value)
{
    int exponent; /* of the last bit */
    frexpf(value, &exponent);
    exponent = exponent < -13 ? -24 : exponent - 11;
    long fraction =
        lrintf(ldexpf(fabsf(value), -exponent)); /* at most 2^11, with the leading bit */
    long bits = ((long)(exponent + 24) << 10) + fraction;
    return (uint16_t)(bits | (signbit(value) ? 0x8000 : 0));
}

static uint16_t *narrow(const sl_tensor *tensor, sl_dtype dtype)
{
    int64_t count = sl_tensor_count(tensor);
    uint16_t *bits = malloc((size_t)count * sizeof *bits);
    for (int64_t i = 0; i < count; i++) {
        float value = sl_tensor_f32(tensor)[i];
        bits[i] = dtype == SL_F16 ? f16_of(value) : bf16_of(value);
    }
    return bits;
}

/* ---- The model of a directory ----------------------------------------------------------- */

typedef struct opened {
    sl_device *device;
    sl_saved_model *saved;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
} opened;

static opened open_model(const char *path)
{
    opened all = {.device = new_device(1), .loss = new_cross_entropy()};
    check_ok(sl_saved_model_open(path, &all.saved));
    check_ok(sl_transformer_lm_create(sl_saved_model_options(all.saved), &all.model));
    check_ok(sl_pipe_create(&(sl_pipe_options){.model = all.model,
                                               .loss = all.loss,
                                               .stages = 1,
                                               .devices = &all.device,
                                               .no_init = true,
                                               .inference = true},
                            &all.pipe));
    return all;
}

static void close_model(opened *all)
{
    sl_pipe_destroy(&all->pipe);
    sl_loss_destroy(&all->loss);
    sl_module_destroy(&all->model);
    sl_saved_model_close(&all->saved);
    sl_device_destroy(&all->device);
}

/* The directory's model has the golden logits, within `bound` of the largest. */
static void check_logits(const char *path, const char *family, double bound)
{
    char golden[4096];
    int32_t ids[SAMPLES * TIME];
    float *logits;
    int64_t classes;
    double largest = 0;
    opened all = open_model(path);
    check_ok(sl_saved_model_load(all.saved, all.pipe, NULL, NULL));
    tensors expected = load(all.device, golden_path(family, "/golden.safetensors", golden));
    const int64_t *golden_ids = sl_tensor_data(find(&expected, "input_ids"));
    const float *golden_logits = sl_tensor_f32(find(&expected, "logits"));
    for (int i = 0; i < SAMPLES * TIME; i++)
        ids[i] = (int32_t)golden_ids[i];
    check_ok(sl_compute_logits(all.pipe, ids, SAMPLES, TIME, &logits, &classes));
    assert_int_equal(classes, CLASSES);
    for (int i = 0; i < SAMPLES * TIME * CLASSES; i++)
        largest = fmax(largest, fabs((double)golden_logits[i]));
    for (int i = 0; i < SAMPLES * TIME * CLASSES; i++)
        if (!(fabs((double)logits[i] - golden_logits[i]) <= bound * largest))
            fail_msg("%s: logit %d is %g, expected %g", path, i, (double)logits[i],
                     (double)golden_logits[i]);
    free(logits);
    unload(&expected);
    close_model(&all);
}

static void published_directories_compute_as_transformers(void **state)
{
    static const char *const families[] = {"gpt2", "llama3", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char path[4096];
        check_logits(golden_path(families[i], "", path), families[i], 1e-5);
    }
}

/* What is saved has the names, shapes and bytes that were loaded. */
static void models_are_saved_as_they_came(void **state)
{
    scratch *dir = *state;
    char path[4096], saved[512];
    snprintf(saved, sizeof saved, "%s/saved", dir->directory);
    opened all = open_model(golden_path("llama3", "", path));
    check_ok(sl_saved_model_load(all.saved, all.pipe, NULL, NULL));
    check_ok(sl_model_save(all.pipe, sl_saved_model_options(all.saved), NULL, NULL, saved));
    tensors before = load(all.device, path), after = load(all.device, saved);
    assert_int_equal(before.count, after.count);
    for (size_t i = 0; i < before.count; i++) {
        const sl_tensor *is = find(&after, before.list[i].name), *was = before.list[i].tensor;
        assert_true(sl_shape_equal(sl_tensor_shape(is), sl_tensor_shape(was)));
        assert_memory_equal(sl_tensor_f32(is), sl_tensor_f32(was),
                            (size_t)sl_tensor_count(is) * sizeof(float));
    }
    unload(&before);
    unload(&after);
    close_model(&all);
    check_logits(saved, "llama3", 1e-5);
}

/* The same in bf16: each number is rounded, and the label is bf16's. */
static void models_are_saved_in_bf16(void **state)
{
    scratch *dir = *state;
    char path[4096], saved[512], config[8192] = "";
    snprintf(saved, sizeof saved, "%s/narrow", dir->directory);
    opened all = open_model(golden_path("qwen2", "", path));
    check_ok(sl_saved_model_load(all.saved, all.pipe, NULL, NULL));
    const sl_model_saving saving = {.type = SL_SAVED_BF16, .shard_bytes = 8192};
    check_ok(sl_model_save(all.pipe, sl_saved_model_options(all.saved), NULL, &saving, saved));
    tensors before = load(all.device, path), after = load(all.device, saved);
    assert_int_equal(before.count, after.count);
    for (size_t i = 0; i < before.count; i++) {
        const sl_tensor *is = find(&after, before.list[i].name), *was = before.list[i].tensor;
        uint16_t *expected = narrow(was, SL_BF16);
        assert_int_equal(sl_tensor_dtype(is), SL_BF16);
        assert_true(sl_shape_equal(sl_tensor_shape(is), sl_tensor_shape(was)));
        assert_memory_equal(sl_tensor_data(is), expected,
                            (size_t)sl_tensor_count(is) * sizeof *expected);
        free(expected);
    }
    unload(&before);
    unload(&after);
    close_model(&all);
    read_file(scratch_path(dir, "narrow/config.json"), config, sizeof config - 1);
    assert_non_null(strstr(config, "\"torch_dtype\": \"bfloat16\""));
}

/* ---- Other forms ------------------------------------------------------------------------- */

/* A copy of the family's directory as DIR/<family>: names without the prefix, tensors of `dtype`,
 * or `extra` beside them. */
static void write_form(scratch *dir, const char *family, const char *prefix, sl_dtype dtype,
                       const sl_safetensors_item *extra, char path[512])
{
    char from[4096], to[600], text[8192];
    sl_safetensors_item items[MOST];
    sl_device *device = new_device(1);
    tensors all = load(device, golden_path(family, "", from));
    size_t count = 0;
    assert_true(all.count < MOST);
    for (; count < all.count; count++) {
        const sl_checkpoint_tensor *tensor = &all.list[count];
        bool has = strncmp(tensor->name, prefix, strlen(prefix)) == 0;
        items[count] =
            (sl_safetensors_item){.name = tensor->name + (has ? strlen(prefix) : 0),
                                  .dtype = dtype,
                                  .shape = *sl_tensor_shape(tensor->tensor),
                                  .data = dtype == SL_F32 ? (void *)sl_tensor_f32(tensor->tensor)
                                                          : narrow(tensor->tensor, dtype)};
    }
    if (extra)
        items[count++] = *extra;
    snprintf(path, 512, "%s", scratch_path(dir, family));
    mkdir(path, 0777);
    snprintf(to, sizeof to, "%s/model.safetensors", path);
    check_ok(sl_safetensors_save(to, items, count, NULL, 0));
    size_t bytes = read_file(golden_path(family, "/config.json", from), text, sizeof text);
    snprintf(to, sizeof to, "%s/config.json", path);
    write_file(to, text, bytes);
    for (size_t i = 0; i < all.count && dtype != SL_F32; i++)
        free(items[i].data);
    unload(&all);
    sl_device_destroy(&device);
}

static void names_may_lack_the_prefix(void **state)
{
    char path[512];
    write_form(*state, "gpt2", "transformer.", SL_F32, NULL, path);
    check_logits(path, "gpt2", 1e-5);
    write_form(*state, "llama3", "model.", SL_F32, NULL, path);
    check_logits(path, "llama3", 1e-5);
}

static void weights_may_be_bf16_or_f16(void **state)
{
    char path[512];
    write_form(*state, "llama3", "", SL_BF16, NULL, path);
    check_logits(path, "llama3", 2e-2);
    write_form(*state, "llama3", "", SL_F16, NULL, path);
    check_logits(path, "llama3", 2e-3);
}

/* Makes the file's first I32 U32, which no tensor of sluice is. */
static void make_unreadable(const char *directory)
{
    static char bytes[1 << 20];
    char path[600];
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    size_t count = read_file(path, bytes, sizeof bytes);
    char *type = strstr(bytes + 8, "\"I32\"");
    assert_non_null(type);
    type[1] = 'U';
    write_file(path, bytes, count);
}

/* GPT-2's causal mask and a tied head; anything else is an error. */
static void only_known_extras_are_ignored(void **state)
{
    char path[512];
    float values[97 * 32] = {0};
    sl_safetensors_item extra = {"h.0.attn.masked_bias", SL_F32, sl_shape_1d(1), values};
    write_form(*state, "gpt2", "", SL_F32, &extra, path);
    check_logits(path, "gpt2", 1e-5);
    extra = (sl_safetensors_item){"model.layers.0.self_attn.rotary_emb.inv_freq", SL_F32,
                                  sl_shape_1d(4), values};
    write_form(*state, "llama3", "", SL_F32, &extra, path);
    check_logits(path, "llama3", 1e-5);
    extra = (sl_safetensors_item){"h.0.attn.bias", SL_F32, sl_shape_2d(48, 48), values};
    write_form(*state, "gpt2", "", SL_F32, &extra, path);
    check_logits(path, "gpt2", 1e-5);
    extra.dtype = SL_I32;
    write_form(*state, "gpt2", "", SL_F32, &extra, path);
    make_unreadable(path);
    check_logits(path, "gpt2", 1e-5);
    extra = (sl_safetensors_item){"lm_head.weight", SL_F32, sl_shape_2d(97, 32), values};
    write_form(*state, "gpt2", "", SL_F32, &extra, path);
    check_logits(path, "gpt2", 1e-5);
    extra.name = "transformer.h.2.ln_1.weight";
    write_form(*state, "gpt2", "", SL_F32, &extra, path);
    opened all = open_model(path);
    check_error(sl_saved_model_load(all.saved, all.pipe, NULL, NULL), SL_ERR_INVALID,
                "it has 1 unexpected tensors (\"transformer.h.2.ln_1.weight\")");
    close_model(&all);
}

int families_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_directories_compute_as_transformers),
        cmocka_unit_test(models_are_saved_as_they_came),
        cmocka_unit_test(models_are_saved_in_bf16),
        cmocka_unit_test(names_may_lack_the_prefix),
        cmocka_unit_test(weights_may_be_bf16_or_f16),
        cmocka_unit_test(only_known_extras_are_ignored),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
