/* Adapters on disk: PEFT's two files, what they are refused for, and merging. */
#include "io/scratch.h"

#include "models/lora.h"
#include "sluice/app/inference.h"
#include "sluice/app/train.h"
#include "sluice/checkpoint.h"
#include "support/modules.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, TIME = 24, CLASSES = 97 };

static void source_path(char path[4096], const char *name)
{
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, 4096, "%s/tests/models/%s", source ? source : ".", name);
}

/* ---- A model with an adapter ---------------------------------------------------------------- */

typedef struct adapted {
    sl_device *device;
    sl_saved_model *saved;
    sl_model_options options;
    sl_module *model;
    sl_loss *loss;
    sl_pipe *pipe;
} adapted;

static adapted open_base(const char *family, const sl_lora_options *lora)
{
    char path[4096];
    adapted all = {.device = new_device(1), .loss = new_cross_entropy()};
    source_path(path, family);
    check_ok(sl_saved_model_open(path, &all.saved));
    all.options = *sl_saved_model_options(all.saved);
    if (lora)
        all.options.lora = *lora;
    check_ok(sl_transformer_lm_create(&all.options, &all.model));
    check_ok(sl_pipe_create(&(sl_pipe_options){.model = all.model,
                                               .loss = all.loss,
                                               .stages = 1,
                                               .devices = &all.device,
                                               .inference = true},
                            &all.pipe));
    check_ok(sl_saved_model_load(all.saved, all.pipe, NULL, NULL));
    return all;
}

static adapted open_adapted(const char *family, const char *adapter)
{
    sl_lora_options lora;
    check_ok(sl_adapter_options(adapter, &lora));
    adapted all = open_base(family, &lora);
    check_ok(sl_adapter_load(adapter, all.pipe));
    return all;
}

static void close_all(adapted *all)
{
    sl_pipe_destroy(&all->pipe);
    sl_loss_destroy(&all->loss);
    sl_module_destroy(&all->model);
    sl_saved_model_close(&all->saved);
    sl_device_destroy(&all->device);
}

static float *logits_of(const adapted *all)
{
    int32_t ids[ROWS * TIME];
    float *logits;
    int64_t classes;
    for (int i = 0; i < ROWS * TIME; i++)
        ids[i] = (7 * i * i + 3) % CLASSES;
    check_ok(sl_compute_logits(all->pipe, ids, ROWS, TIME, &logits, &classes));
    assert_int_equal(classes, CLASSES);
    return logits;
}

/* ---- Files ---------------------------------------------------------------------------------- */

static void adapters_are_saved_as_they_came(void **state)
{
    static const char *const families[] = {"gpt2", "llama3"};
    for (int f = 0; f < 2; f++) {
        scratch *dir = *state;
        char name[64], from[4096], first[4096], second[4096];
        snprintf(name, sizeof name, "%s/lora", families[f]);
        source_path(from, name);
        char *saved = strdup(scratch_path(dir, families[f]));
        adapted all = open_adapted(families[f], from);
        all.options.lora.base = "base";
        check_ok(sl_model_save(all.pipe, &all.options, NULL, NULL, saved));
        check_ok(sl_model_save(all.pipe, &all.options, NULL, NULL, saved)); /* replaces its own */
        adapted again = open_adapted(families[f], saved);
        assert_memory_equal(&again.options.lora.rank, &all.options.lora.rank, sizeof(int64_t));
        assert_string_equal(again.options.lora.targets, all.options.lora.targets);
        float *was = logits_of(&all), *is = logits_of(&again);
        assert_memory_equal(is, was, ROWS * TIME * CLASSES * sizeof *is);
        snprintf(first, sizeof first, "%s/model.safetensors", saved);
        assert_int_not_equal(access(first, F_OK), 0);
        char config[4096];
        snprintf(second, sizeof second, "%s/adapter_config.json", saved);
        config[read_file(second, config, sizeof config - 1)] = '\0';
        assert_non_null(strstr(config, "\"base_model_name_or_path\": \"base\""));
        assert_non_null(
            strstr(config, f == 0 ? "\"fan_in_fan_out\": true" : "\"fan_in_fan_out\": false"));
        assert_non_null(strstr(config, "\"lora_alpha\": 8,"));
        free(is);
        free(was);
        close_all(&again);
        close_all(&all);
        free(saved);
    }
}

static sl_device *device_of_all(void *context, const char *name)
{
    (void)name;
    return context;
}

/* All tensors of DIR/adapter_model.safetensors. */
typedef struct tensors {
    sl_checkpoint_reader *reader; /* has their names */
    sl_checkpoint_tensor *list;
    size_t count;
} tensors;

static tensors load_tensors(sl_device *device, const char *directory)
{
    tensors all;
    char path[4096];
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", directory);
    check_ok(sl_checkpoint_open(path, &all.reader));
    check_ok(sl_checkpoint_load(all.reader, "model", device_of_all, device, &all.list, &all.count));
    return all;
}

static void unload_tensors(tensors *all)
{
    sl_checkpoint_tensors_destroy(&all->list, all->count);
    sl_checkpoint_close(&all->reader);
}

/* Each number is that of f32, rounded to the nearest, and is read again. */
static void adapters_are_saved_in_bf16(void **state)
{
    static const char *const families[] = {"gpt2", "llama3"};
    for (int f = 0; f < 2; f++) {
        scratch *dir = *state;
        char name[64], from[4096], wide[512], narrow[512];
        snprintf(name, sizeof name, "%s/lora", families[f]);
        source_path(from, name);
        snprintf(wide, sizeof wide, "%s/wide%d", dir->directory, f);
        snprintf(narrow, sizeof narrow, "%s/narrow%d", dir->directory, f);
        adapted all = open_adapted(families[f], from);
        const sl_model_saving saving = {.type = SL_SAVED_BF16};
        check_ok(sl_model_save(all.pipe, &all.options, NULL, NULL, wide));
        check_ok(sl_model_save(all.pipe, &all.options, NULL, &saving, narrow));
        tensors numbers = load_tensors(all.device, wide);
        tensors rounded = load_tensors(all.device, narrow);
        assert_int_equal(rounded.count, numbers.count);
        assert_true(numbers.count > 0);
        for (size_t i = 0; i < numbers.count; i++) {
            const sl_tensor *was = numbers.list[i].tensor, *narrowed = rounded.list[i].tensor;
            const uint16_t *is = sl_tensor_data(narrowed);
            assert_string_equal(rounded.list[i].name, numbers.list[i].name);
            assert_int_equal(sl_tensor_dtype(narrowed), SL_BF16);
            for (int64_t k = 0; k < sl_tensor_count(was); k++) {
                uint32_t bits;
                memcpy(&bits, &sl_tensor_f32(was)[k], sizeof bits);
                assert_int_equal(is[k], (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
            }
        }
        unload_tensors(&numbers);
        unload_tensors(&rounded);
        adapted again = open_adapted(families[f], narrow);
        assert_string_equal(again.options.lora.targets, all.options.lora.targets);
        close_all(&again);
        close_all(&all);
    }
}

/* W + scale B A computes what both do, and is a model without adapters on disk. */
static void a_merged_model_computes_what_both_do(void **state)
{
    static const char *const families[] = {"gpt2", "llama3"};
    for (int f = 0; f < 2; f++) {
        scratch *dir = *state;
        char name[64], from[4096];
        double largest = 0, change = 0;
        snprintf(name, sizeof name, "%s/lora", families[f]);
        source_path(from, name);
        snprintf(name, sizeof name, "merged-%s", families[f]);
        char *saved = strdup(scratch_path(dir, name));
        adapted base = open_base(families[f], NULL), all = open_adapted(families[f], from);
        float *expected = logits_of(&all), *without = logits_of(&base);
        check_ok(sl_adapter_merge(all.pipe));
        check_ok(sl_model_save(all.pipe, sl_saved_model_options(all.saved), NULL, NULL, saved));
        sl_saved_model_close(&base.saved);
        check_ok(sl_saved_model_open(saved, &base.saved));
        check_ok(sl_saved_model_load(base.saved, base.pipe, NULL, NULL));
        float *merged = logits_of(&base), *after = logits_of(&all);
        for (int i = 0; i < ROWS * TIME * CLASSES; i++) {
            largest = fmax(largest, fabs((double)expected[i]));
            change = fmax(change, fabs((double)expected[i] - without[i]));
        }
        assert_true(change > 0.01 * largest);
        for (int i = 0; i < ROWS * TIME * CLASSES; i++) {
            assert_true(fabs((double)merged[i] - expected[i]) <= 1e-5 * largest);
            assert_true(fabs((double)after[i] - expected[i]) <= 1e-5 * largest);
        }
        free(after);
        free(merged);
        free(without);
        free(expected);
        close_all(&all);
        close_all(&base);
        free(saved);
    }
}

static void an_adapter_of_another_base_is_refused(void **state)
{
    char from[4096];
    sl_lora_options lora;
    source_path(from, "llama3/lora");
    check_ok(sl_adapter_options(from, &lora));
    lora.rank = 2;
    adapted all = open_base("llama3", &lora);
    check_error(sl_adapter_load(from, all.pipe), SL_ERR_INVALID,
                "lora_A.weight\" should be F32 [2, 56], but is F32 [4, 56]");
    close_all(&all);
    sl_module *model;
    sl_saved_model *gpt2;
    source_path(from, "gpt2");
    check_ok(sl_saved_model_open(from, &gpt2));
    sl_model_options options = *sl_saved_model_options(gpt2);
    options.lora = lora;
    check_error(sl_transformer_lm_create(&options, &model), SL_ERR_INVALID,
                "lora: no layer of the model is called \"q_proj\": there are c_attn,c_proj,c_fc");
    sl_saved_model_close(&gpt2);
}

/* ---- adapter_config.json ------------------------------------------------------------------ */

#define CONFIG(more)                                                                               \
    "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"bias\": \"none\", "                  \
    "\"target_modules\": [\"q_proj\", \"v_proj\"]" more "}"

static void configs_are_read(void **state)
{
    static const char text[] =
        CONFIG(", \"use_rslora\": true, \"lora_dropout\": 0.25, \"use_dora\": false, "
               "\"layers_to_transform\": [2, 3, 4], \"rank_pattern\": {}, \"modules_to_save\": "
               "null, \"new_one\": null");
    sl_lora_options lora;
    check_ok(sli_adapter_config_parse(text, strlen(text), &lora));
    assert_true(lora.adapts && lora.rslora && lora.rank == 4);
    assert_true(lora.alpha == 8 && lora.dropout == 0.25f);
    assert_string_equal(lora.targets, "q_proj,v_proj");
    assert_true(lora.first_layer == 2 && lora.layer_end == 5);
}

static void what_is_not_served_is_refused_by_name(void **state)
{
    static const struct {
        const char *text;
        sl_status status;
        const char *sentence;
    } cases[] = {
        {CONFIG(", \"use_dora\": true"), SL_ERR_UNSUPPORTED, "it has use_dora true, which sluice"},
        {CONFIG(", \"rank_pattern\": {\"q_proj\": 2}"), SL_ERR_UNSUPPORTED,
         "it has rank_pattern {\"q_proj\":2}"},
        {CONFIG(", \"alpha_pattern\": {\"q_proj\": 2}"), SL_ERR_UNSUPPORTED, "alpha_pattern"},
        {CONFIG(", \"modules_to_save\": [\"lm_head\"]"), SL_ERR_UNSUPPORTED, "modules_to_save"},
        {CONFIG(", \"layers_to_transform\": [1, 3]"), SL_ERR_UNSUPPORTED, "layers_to_transform"},
        {CONFIG(", \"layers_to_transform\": [-1]"), SL_ERR_UNSUPPORTED, "layers_to_transform [-1]"},
        {CONFIG(", \"init_lora_weights\": \"pissa\""), SL_ERR_UNSUPPORTED, "init_lora_weights"},
        {CONFIG(", \"lora_dropout\": 1.5"), SL_ERR_FORMAT, "lora_dropout"},
        {"{\"peft_type\": \"IA3\"}", SL_ERR_UNSUPPORTED, "it has peft_type \"IA3\""},
        {"{\"peft_type\": \"LORA\", \"bias\": \"all\"}", SL_ERR_UNSUPPORTED, "bias \"all\""},
        {"{\"peft_type\": \"LORA\", \"bias\": \"none\"}", SL_ERR_FORMAT, "it has no \"r\""},
        {"{\"peft_type\": \"LORA\", \"bias\": \"none\", \"r\": 4, \"lora_alpha\": 1}",
         SL_ERR_FORMAT, "it has no \"target_modules\""},
        {"{\"peft_type\": \"LORA\", \"bias\": \"none\", \"r\": 4, \"lora_alpha\": 1, "
         "\"target_modules\": \".*proj\"}",
         SL_ERR_UNSUPPORTED, "target_modules \".*proj\""},
        {"[]", SL_ERR_FORMAT, "it must be an object"},
        {"{", SL_ERR_FORMAT, "it is not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_lora_options lora;
        check_error(sli_adapter_config_parse(cases[i].text, strlen(cases[i].text), &lora),
                    cases[i].status, cases[i].sentence);
    }
}

int adapters_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_are_saved_as_they_came),
        cmocka_unit_test(adapters_are_saved_in_bf16),
        cmocka_unit_test(a_merged_model_computes_what_both_do),
        cmocka_unit_test(an_adapter_of_another_base_is_refused),
        cmocka_unit_test(configs_are_read),
        cmocka_unit_test(what_is_not_served_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
