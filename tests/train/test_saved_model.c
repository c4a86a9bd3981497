#include "io/scratch.h"
#include "models/config.h"
#include "sluice/app/inference.h"
#include "sluice/safetensors.h"
#include "support/modules.h"
#include "support/vocab.h"
#include "train/checkpoint/checkpoints.h"
#include "train/small_run.h"

#include <time.h>

/* ---- Saving and loading ------------------------------------------------------------------- */

static void save(const test_pipe *pipe, const sl_model_options *options, const sl_vocab *vocab,
                 const char *path)
{
    check_ok(sl_model_save(pipe->pipe, options, vocab, NULL, path));
}

static void save_small(const char *path)
{
    SCOPED(test_pipe) pipe = open_small_model(2, 1);
    save(&pipe, &small_model_options, NULL, path);
}

static sl_status load(const test_pipe *pipe, const char *path)
{
    sl_saved_model *model;
    SL_TRY(sl_saved_model_open(path, &model));
    sl_status status = sl_saved_model_load(model, pipe->pipe, NULL, NULL);
    sl_saved_model_close(&model);
    return status;
}

/* The same model in one file, in many with an index, and its tensors alone. */
static void saved_model_comes_back_in_any_cut(void **state)
{
    char one[512], many[512], file[512];
    scratch *dir = *state;
    snprintf(one, sizeof one, "%s/one", dir->directory);
    snprintf(many, sizeof many, "%s/many/", dir->directory);
    snprintf(file, sizeof file, "%s/one/model.safetensors", dir->directory);
    const char *const paths[] = {one, many, file};
    SCOPED(test_pipe) from = open_small_model(2, 1);
    save(&from, &small_model_options, NULL, one);
    check_ok(sl_model_save(from.pipe, &small_model_options, NULL,
                           &(sl_model_saving){.shard_bytes = 2048}, many));
    assert_int_equal(access(scratch_path(dir, "many/model.safetensors.index.json"), F_OK), 0);
    int64_t count;
    FREED float *expected = pipe_values(from.pipe, &count);
    for (int stages = 1; stages <= 3; stages++) {
        SCOPED(test_pipe) to = open_small_model(stages, 2);
        check_ok(load(&to, paths[stages - 1]));
        FREED float *values = pipe_values(to.pipe, &count);
        assert_memory_equal(values, expected, (size_t)count * sizeof *values);
    }
}

static test_pipe open_in(sl_precision precision, bool inference)
{
    sl_module *model;
    check_ok(sl_transformer_lm_create(&small_model_options, &model));
    return open_pipe(model, new_cross_entropy(),
                     (sl_pipe_options){.stages = 2,
                                       .precision = precision,
                                       .no_init = inference,
                                       .inference = inference},
                     1, 1);
}

static uint64_t parameter_bytes(const test_pipe *pipe)
{
    sl_memory_stats memory;
    sl_device_memory(sl_pipe_device(pipe->pipe, 0), &memory);
    return memory.current_bytes[SL_MEMORY_PARAMETERS];
}

static void check_same_logits(const test_pipe *a, const test_pipe *b)
{
    static const int32_t ids[] = {1, 2, 3, 5, 7, 10};
    int64_t ntokens;
    float *expected, *got;
    check_ok(sl_compute_logits(a->pipe, ids, 2, 3, &expected, &ntokens));
    check_ok(sl_compute_logits(b->pipe, ids, 2, 3, &got, &ntokens));
    assert_int_equal(ntokens, SMALL_TOKENS);
    assert_memory_equal(got, expected, 6 * SMALL_TOKENS * sizeof *got);
    free(expected);
    free(got);
}

/* f32 values stay in the file, also where it is removed; what is written to them does not reach
 * it. */
static void check_inference_uses_the_files_memory(scratch *dir, sl_precision precision)
{
    char path[512], file[600];
    int64_t count;
    snprintf(path, sizeof path, "%s", scratch_path(dir, sl_precision_names[precision]));
    snprintf(file, sizeof file, "%s/model.safetensors", path);
    save_small(path);
    SCOPED(test_pipe) copied = open_in(precision, false), mapped = open_in(precision, true);
    uint64_t before = parameter_bytes(&mapped);
    check_ok(load(&copied, path));
    FREED float *expected = pipe_values(copied.pipe, &count);
    for (int round = 0; round < 2; round++) {
        check_ok(load(&mapped, path));
        assert_in_range(parameter_bytes(&mapped), precision == SL_PRECISION_BF16 ? 1 : 0,
                        before - (uint64_t)count * sizeof(float));
        FREED float *values = pipe_values(mapped.pipe, &count);
        assert_memory_equal(values, expected, (size_t)count * sizeof *values);
        check_same_logits(&copied, &mapped);
        sl_tensor *value = sl_parameter_value(find_parameter(&mapped, "0.encoder.weight"));
        sl_tensor_f32(value)[0] += 1;
    }
    check_ok(load(&mapped, path));
    assert_int_equal(remove(file), 0);
    check_same_logits(&copied, &mapped);
}

static void inference_uses_the_files_memory(void **state)
{
    check_inference_uses_the_files_memory(*state, SL_PRECISION_F32);
    check_inference_uses_the_files_memory(*state, SL_PRECISION_BF16);
}

static float *a_value(const test_pipe *pipe)
{
    return sl_tensor_f32(sl_parameter_value(find_parameter(pipe, "0.encoder.weight")));
}

/* What is written to one pipe is not in another that the same open model was loaded into, and a
 * load brings the file's values back. */
static void pipes_of_one_open_model_share_no_values(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "model"));
    save_small(path);
    SCOPED(test_pipe) a = open_in(SL_PRECISION_BF16, true), b = open_in(SL_PRECISION_BF16, true);
    sl_saved_model *model;
    check_ok(sl_saved_model_open(path, &model));
    check_ok(sl_saved_model_load(model, a.pipe, NULL, NULL));
    check_ok(sl_saved_model_load(model, b.pipe, NULL, NULL));
    float value = *a_value(&a);
    *a_value(&a) += 1;
    assert_true(*a_value(&b) == value);
    check_ok(sl_saved_model_load(model, a.pipe, NULL, NULL));
    assert_true(*a_value(&a) == value);
    sl_saved_model_close(&model);
    check_same_logits(&a, &b);
}

static void check_state_is_the_values(const test_pipe *pipe)
{
    sl_checkpoint_part state;
    check_ok(sl_pipe_get_state(pipe->pipe, &state));
    assert_true(state.count > 0);
    for (size_t i = 0; i < state.count; i++)
        assert_ptr_equal(state.items[i].data, sl_tensor_data(sl_parameter_value(
                                                  find_parameter(pipe, state.items[i].name))));
}

static void state_of_a_pipe_follows_its_values_into_the_file(void **state)
{
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "model"));
    save_small(path);
    SCOPED(test_pipe) mapped = open_in(SL_PRECISION_BF16, true);
    check_state_is_the_values(&mapped);
    for (int round = 0; round < 2; round++) {
        check_ok(load(&mapped, path));
        check_state_is_the_values(&mapped);
    }
}

/* The names that PyTorch's state_dict of the tutorials' flat model has, in its order. */
static void names_are_pytorchs(void **state)
{
    sli_safetensors_reader *reader;
    save_small(scratch_path(*state, "model"));
    check_ok(sli_safetensors_open(scratch_path(*state, "model/model.safetensors"), &reader));
    assert_string_equal(sli_safetensors_metadata(reader, "format"), "pt");
    assert_int_equal(sli_safetensors_count(reader), 2 + 3 * LAYER_NAMES + 2);
    const sl_safetensors_info *pe = sli_safetensors_get(reader, 0);
    assert_string_equal(pe->name, "0.pos_encoder.pe");
    assert_string_equal(sli_safetensors_get(reader, 1)->name, "0.encoder.weight");
    assert_int_equal(pe->dims, 3);
    assert_int_equal(pe->size[0], 5000);
    assert_int_equal(pe->size[1], 1);
    for (int i = 1; i <= 3; i++)
        for (int k = 0; k < LAYER_NAMES; k++) {
            char name[64];
            snprintf(name, sizeof name, "%d.%s", i, layer_names[k]);
            assert_non_null(sli_safetensors_find(reader, name));
        }
    assert_non_null(sli_safetensors_find(reader, "4.decoder.weight"));
    assert_non_null(sli_safetensors_find(reader, "4.decoder.bias"));
    sli_safetensors_close(&reader);
}

static void config_gives_the_model_back(void **state)
{
    char *path = scratch_path(*state, "model");
    sl_model_options saved = small_model_options;
    SCOPED(test_pipe) pipe = open_small_model(1, 1);
    for (int variant = 0; variant < 2; variant++) {
        sl_saved_model *model;
        saved.mask = variant ? SL_MASK_NONE : SL_MASK_CAUSAL;
        saved.activation = variant ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU;
        saved.pre_norm = variant;
        saved.tie = variant;
        saved.context = variant ? 64 : 0;
        saved.dropout = variant ? 0.1f : 0;
        save(&pipe, &saved, NULL, path);
        check_ok(sl_saved_model_open(path, &model));
        const sl_model_options *read = sl_saved_model_options(model);
        assert_int_equal(read->ntokens, saved.ntokens);
        assert_int_equal(read->emsize, saved.emsize);
        assert_int_equal(read->nhid, saved.nhid);
        assert_int_equal(read->nlayers, saved.nlayers);
        assert_int_equal(read->nhead, saved.nhead);
        assert_int_equal(read->mask, saved.mask);
        assert_int_equal(read->activation, saved.activation);
        assert_int_equal(read->pre_norm, saved.pre_norm);
        assert_int_equal(read->tie, saved.tie);
        assert_int_equal(read->context, saved.context);
        assert_true(read->dropout == saved.dropout);
        assert_null(sl_saved_model_vocab(model));
        sl_saved_model_close(&model);
    }
}

/* A reader that was opened before the directory is replaced goes on with the old model. */
static void open_model_is_of_one_save(void **state)
{
    char *path = scratch_path(*state, "model");
    sl_saved_model *model;
    test_pipe first = open_small_model(1, 1), second = open_small_model(1, 2),
              to = open_small_model(2, 3);
    sl_model_options other = small_model_options;
    other.context = 99;
    save(&first, &small_model_options, NULL, path);
    check_ok(sl_saved_model_open(path, &model));
    save(&second, &other, NULL, path);
    assert_int_equal(sl_saved_model_options(model)->context, small_model_options.context);
    check_ok(sl_saved_model_load(model, to.pipe, NULL, NULL));
    sl_saved_model_close(&model);
    int64_t count;
    float *expected = pipe_values(first.pipe, &count), *values = pipe_values(to.pipe, &count);
    assert_memory_equal(values, expected, (size_t)count * sizeof *values);
    free(expected);
    free(values);
    test_pipe_destroy(&first);
    test_pipe_destroy(&second);
    test_pipe_destroy(&to);
}

/* ---- Tensors that do not fit -------------------------------------------------------------- */

/* Writes a file of tensors again, without the tensor `without`, and with `extra` (each may be
 * NULL).
 */
static void rewrite(const char *path, const char *without, const char *extra)
{
    enum { MOST = 64 };
    sl_safetensors_item items[MOST];
    sli_safetensors_reader *reader;
    size_t count = 0;
    float one = 1;
    check_ok(sli_safetensors_open(path, &reader));
    for (size_t i = 0; i < sli_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sli_safetensors_get(reader, i);
        if (without && strcmp(info->name, without) == 0)
            continue;
        sl_safetensors_item *item = &items[count++];
        *item = (sl_safetensors_item){.name = info->name, .dtype = info->dtype};
        item->shape.dims = info->dims;
        memcpy(item->shape.size, info->size, (size_t)info->dims * sizeof *info->size);
        item->data = malloc(info->bytes);
        check_ok(sli_safetensors_read(reader, info, item->data));
    }
    size_t read = count;
    if (extra)
        items[count++] = (sl_safetensors_item){extra, SL_F32, sl_shape_1d(1), &one};
    check_ok(sl_safetensors_save(path, items, count, NULL, 0));
    for (size_t i = 0; i < read; i++)
        free(items[i].data);
    sli_safetensors_close(&reader);
}

static void buffer_may_be_missing_and_nothing_else(void **state)
{
    scratch *dir = *state;
    char model[512], file[512];
    int64_t count;
    snprintf(model, sizeof model, "%s/model", dir->directory);
    snprintf(file, sizeof file, "%s/model/model.safetensors", dir->directory);
    SCOPED(test_pipe) pipe = open_small_model(2, 1);
    save(&pipe, &small_model_options, NULL, model);
    rewrite(file, "0.pos_encoder.pe", NULL);
    check_ok(load(&pipe, model));
    FREED float *before = pipe_values(pipe.pipe, &count);
    rewrite(file, "2.norm1.bias", NULL);
    check_error(load(&pipe, model), SL_ERR_INVALID, "2.norm1.bias");
    scratch_remove_tree(dir, "model");
    save(&pipe, &small_model_options, NULL, model);
    rewrite(file, NULL, "5.decoder.bias");
    check_error(load(&pipe, model), SL_ERR_INVALID, "5.decoder.bias");
    FREED float *after = pipe_values(pipe.pipe, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
}

typedef struct left_out_list {
    char text[512];
    sl_status answer;
} left_out_list;

static sl_status list_left_out(void *context, const char *tensor, const char *reason)
{
    left_out_list *list = context;
    size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s: %s\n", tensor, reason);
    return list->answer == SL_OK ? SL_OK : sl_error(list->answer, "enough");
}

/* A tied model with fewer types. */
static void partial_load_reads_what_fits_and_lists_the_rest(void **state)
{
    char *path = scratch_path(*state, "model");
    left_out_list list = {.text = ""};
    sl_model_options options = small_model_options;
    sl_saved_model *saved;
    SCOPED(test_pipe) from = open_small_model(2, 1);
    save(&from, &options, NULL, path);
    options.ntokens = 9;
    options.tie = true;
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    SCOPED(test_pipe) to = open_pipe(model, NULL, (sl_pipe_options){.stages = 2, .seed = 2}, 2, 1);
    float kept = sl_tensor_f32(sl_parameter_value(find_parameter(&to, "0.encoder.weight")))[0];
    check_ok(sl_saved_model_open(path, &saved));
    check_ok(sl_saved_model_load(saved, to.pipe, list_left_out, &list));
    assert_string_equal(list.text,
                        "0.encoder.weight: F32 [11, 8] in the file, F32 [9, 8] in the model\n"
                        "4.decoder.bias: F32 [11] in the file, F32 [9] in the model\n"
                        "4.decoder.weight: not in the model\n");
    assert_true(sl_tensor_f32(sl_parameter_value(find_parameter(&to, "0.encoder.weight")))[0] ==
                kept);
    const char *name = "2.linear1.weight";
    assert_memory_equal(sl_tensor_data(sl_parameter_value(find_parameter(&to, name))),
                        sl_tensor_data(sl_parameter_value(find_parameter(&from, name))),
                        12 * 8 * 4);
    list = (left_out_list){.answer = SL_ERR_CANCELLED};
    check_error(sl_saved_model_load(saved, to.pipe, list_left_out, &list), SL_ERR_CANCELLED,
                "enough");
    sl_saved_model_close(&saved);
}

static void partial_load_of_nothing_is_an_error(void **state)
{
    char *path = scratch_path(*state, "other.safetensors");
    left_out_list list = {.text = ""};
    float value = 1;
    bool has;
    sl_model_options options;
    sl_saved_model *saved;
    const sl_safetensors_item item = {"other", SL_F32, sl_shape_1d(1), &value};
    check_ok(sl_safetensors_save(path, &item, 1, NULL, 0));
    SCOPED(test_pipe) pipe = open_small_model(1, 1);
    check_ok(sl_saved_model_read_options(path, &options, &has));
    assert_false(has);
    check_ok(sl_saved_model_open(path, &saved));
    assert_null(sl_saved_model_options(saved));
    check_error(sl_saved_model_load(saved, pipe.pipe, list_left_out, &list), SL_ERR_INVALID,
                "none of its tensors is a parameter of the model");
    assert_non_null(strstr(list.text, "0.encoder.weight: not in the file\n"));
    sl_saved_model_close(&saved);
}

/* ---- config.json ----------------------------------------------------------------------------- */

static sl_status open_and_close(const char *path)
{
    sl_saved_model *model;
    sl_status status = sl_saved_model_open(path, &model);
    assert_true((model != NULL) == (status == SL_OK));
    sl_saved_model_close(&model);
    return status;
}

/* Changes a member of the config of `model`; "" removes it. */
static void set_member(scratch *dir, const char *key, const char *value)
{
    json_t *json = json_load_file(scratch_path(dir, "model/config.json"), 0, NULL);
    assert_non_null(json);
    if (*value)
        json_object_set_new(json, key, json_loads(value, JSON_DECODE_ANY, NULL));
    else
        json_object_del(json, key);
    assert_int_equal(json_dump_file(json, dir->path, 0), 0);
    json_decref(json);
}

static void config_that_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *key, *value, *sentence;
        sl_status status;
    } bad[] = {
        {"nhead", "0", "/config.json: its nhead must be a whole number from 1", SL_ERR_FORMAT},
        {"nhead", "\"2x\"", ", got \"2x\"", SL_ERR_FORMAT},
        {"nhead", "[2]", ", got \"[2]\"", SL_ERR_FORMAT},
        {"emsize", "9223372036854775807", "emsize", SL_ERR_INVALID},
        {"mask", "\"some\"", "its mask must be causal or none, got \"some\"", SL_ERR_FORMAT},
        {"pre_norm", "1", "its pre_norm must be true or false, got \"1\"", SL_ERR_FORMAT},
        {"dropout", "1", "its dropout must be at least 0 and below 1, got \"1\"", SL_ERR_FORMAT},
        {"emsize", "", "it has no \"emsize\", as that of a sluice_transformer has", SL_ERR_FORMAT},
        {"model_type", "", "it has no \"model_type\"", SL_ERR_FORMAT},
        {"model_type", "\"gemma2\"", "its model_type is \"gemma2\", and sluice has",
         SL_ERR_UNSUPPORTED},
    };
    scratch *dir = *state;
    char path[512];
    snprintf(path, sizeof path, "%s/model", dir->directory);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        save_small(path);
        check_ok(open_and_close(path));
        set_member(dir, bad[i].key, bad[i].value);
        check_error(open_and_close(path), bad[i].status, bad[i].sentence);
    }
    write_file(scratch_path(dir, "model/config.json"), "{", 1);
    check_error(open_and_close(path), SL_ERR_FORMAT, "/config.json: it is not valid JSON");
}

/* A few bytes that ask for a model of gigabytes. */
static void config_of_a_model_that_the_tensors_are_not_is_refused(void **state)
{
    static const char *const hostile[][2] = {
        {"nlayers", "65536"},     {"nlayers", "1000"},
        {"emsize", "1048576"},    {"emsize", "2147483646"},
        {"nhid", "1048576"},      {"ntokens", "2147483647"},
        {"nlayers", "100000000"}, {"ntokens", "9223372036854775807"},
    };
    scratch *dir = *state;
    char path[512];
    snprintf(path, sizeof path, "%s/model", dir->directory);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        save_small(path);
        set_member(dir, hostile[i][0], hostile[i][1]);
        clock_t begin = clock();
        sl_status status = open_and_close(path);
        assert_true(status == SL_ERR_FORMAT || status == SL_ERR_INVALID);
        assert_true(clock() - begin < CLOCKS_PER_SEC);
    }
}

/* ---- The vocabulary ----------------------------------------------------------------------- */

static void vocabulary_is_saved_and_read(void **state)
{
    scratch *dir = *state;
    char path[512];
    snprintf(path, sizeof path, "%s/model", dir->directory);
    sl_saved_model *model;
    sl_model_options options;
    bool has;
    sl_vocab *vocab = vocab_of("a b c d e f g h i j"), *small = vocab_of("a b");
    test_pipe pipe = open_small_model(1, 1);
    save(&pipe, &small_model_options, vocab, path);
    check_ok(sl_saved_model_open(path, &model));
    assert_int_equal(sl_vocab_size(sl_saved_model_vocab(model)), 11);
    assert_string_equal(sl_vocab_token(sl_saved_model_vocab(model), 10).text, "j");
    sl_saved_model_close(&model);
    check_ok(sl_vocab_save(small, scratch_path(dir, "model/tokenizer.json")));
    check_error(open_and_close(path), SL_ERR_FORMAT,
                "model: its tokenizer.json has 3 tokens, but its config.json says ntokens 11");
    write_file(scratch_path(dir, "model/tokenizer.json"), "one\n", 4);
    check_error(open_and_close(path), SL_ERR_FORMAT, "/tokenizer.json: it must be a JSON object");
    check_ok(sl_saved_model_read_options(path, &options, &has)); /* which are in another file */
    assert_true(has);
    assert_int_equal(options.ntokens, 11);
    sl_vocab_destroy(&vocab);
    sl_vocab_destroy(&small);
    test_pipe_destroy(&pipe);
}

/* ---- Where to write ----------------------------------------------------------------------- */

static void check_kept(const test_pipe *pipe, const char *path, const char *sentence)
{
    check_error(sli_model_check_save(pipe->pipe, NULL, SL_SAVED_F32, path), SL_ERR_INVALID,
                sentence);
    check_error(sl_model_save(pipe->pipe, &small_model_options, NULL, NULL, path), SL_ERR_INVALID,
                sentence);
}

static void only_a_model_that_sluice_has_saved_is_replaced(void **state)
{
    static const char foreign[] = "it exists and is not a model that sluice saved";
    scratch *dir = *state;
    char path[512], content[16];
    snprintf(path, sizeof path, "%s/model", dir->directory);
    SCOPED(test_pipe) pipe = open_small_model(1, 1);
    check_ok(sli_model_check_save(pipe.pipe, NULL, SL_SAVED_F32, path));
    assert_int_equal(scratch_entries(dir, 0), 0);
    write_file(path, "old", 3);
    check_kept(&pipe, path, "a model is a directory, and a file has this name");
    assert_int_equal(read_file(path, content, sizeof content), 3);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkdir(path, 0750), 0); /* an empty one */
    save_small(path);
    save_small(path);
    write_file(scratch_path(dir, "model/notes"), "mine", 4);
    check_kept(&pipe, path, foreign);
    assert_int_equal(remove(dir->path), 0);
    rewrite(scratch_path(dir, "model/model.safetensors"), NULL, NULL); /* by another program */
    check_kept(&pipe, path, foreign);
    scratch_remove_tree(dir, "model");
    const float value = 1;
    const sl_safetensors_item item = {"a", SL_F32, sl_shape_1d(1), (void *)&value};
    const sl_checkpoint_part part = {"model", &item, 1, NULL, 0};
    check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &part, .part_count = 1}));
    check_kept(&pipe, path, foreign);
    assert_int_equal(scratch_entries(dir, 0), 1);
    check_error(sli_model_check_save(pipe.pipe, NULL, SL_SAVED_F32, "/nowhere/x"), SL_ERR_NOT_FOUND,
                "/nowhere/x");
}

int saved_model_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(saved_model_comes_back_in_any_cut),
        WITH_SCRATCH(inference_uses_the_files_memory),
        WITH_SCRATCH(pipes_of_one_open_model_share_no_values),
        WITH_SCRATCH(state_of_a_pipe_follows_its_values_into_the_file),
        WITH_SCRATCH(names_are_pytorchs),
        WITH_SCRATCH(config_gives_the_model_back),
        WITH_SCRATCH(open_model_is_of_one_save),
        WITH_SCRATCH(buffer_may_be_missing_and_nothing_else),
        WITH_SCRATCH(partial_load_reads_what_fits_and_lists_the_rest),
        WITH_SCRATCH(partial_load_of_nothing_is_an_error),
        WITH_SCRATCH(config_that_makes_no_sense_is_refused),
        WITH_SCRATCH(config_of_a_model_that_the_tensors_are_not_is_refused),
        WITH_SCRATCH(vocabulary_is_saved_and_read),
        WITH_SCRATCH(only_a_model_that_sluice_has_saved_is_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
