#include "io/scratch.h"
#include "sluice/safetensors.h"
#include "support/modules.h"
#include "train/checkpoint/checkpoints.h"
#include "train/small_run.h"

#include <time.h>

/* ---- Writing and reading ------------------------------------------------------------------ */

static void saved_weights_come_back_in_any_cut(void **state)
{
    char *path = scratch_path(*state, "model.safetensors");
    test_pipe from = open_small_model(2, 1);
    check_ok(sl_weights_save(from.pipe, &small_model_options, NULL, path));
    int64_t count;
    float *expected = pipe_values(&from, &count);
    for (int stages = 1; stages <= 3; stages++) {
        test_pipe to = open_small_model(stages, 2);
        check_ok(sl_weights_load(to.pipe, path));
        float *values = pipe_values(&to, &count);
        assert_memory_equal(values, expected, (size_t)count * sizeof *values);
        free(values);
        test_pipe_destroy(&to);
    }
    free(expected);
    test_pipe_destroy(&from);
}

/* The names that PyTorch's state_dict of the tutorials' flat model has, in its order. */
static void names_are_pytorchs(void **state)
{
    char *path = scratch_path(*state, "model.safetensors");
    sl_safetensors_reader *reader;
    test_pipe pipe = open_small_model(1, 1);
    check_ok(sl_weights_save(pipe.pipe, &small_model_options, NULL, path));
    test_pipe_destroy(&pipe);
    check_ok(sl_safetensors_open(path, &reader));
    assert_int_equal(sl_safetensors_count(reader), 2 + 3 * LAYER_NAMES + 2);
    const sl_safetensors_info *pe = sl_safetensors_get(reader, 0);
    assert_string_equal(pe->name, "0.pos_encoder.pe");
    assert_string_equal(sl_safetensors_get(reader, 1)->name, "0.encoder.weight");
    assert_int_equal(pe->dims, 3);
    assert_int_equal(pe->size[0], 5000);
    assert_int_equal(pe->size[1], 1);
    for (int i = 1; i <= 3; i++)
        for (int k = 0; k < LAYER_NAMES; k++) {
            char name[64];
            snprintf(name, sizeof name, "%d.%s", i, layer_names[k]);
            assert_non_null(sl_safetensors_find(reader, name));
        }
    assert_non_null(sl_safetensors_find(reader, "4.decoder.weight"));
    assert_non_null(sl_safetensors_find(reader, "4.decoder.bias"));
    sl_safetensors_close(&reader);
}

static void metadata_give_the_model_back(void **state)
{
    char *path = scratch_path(*state, "model.safetensors");
    sl_model_options saved = small_model_options, read;
    test_pipe pipe = open_small_model(1, 1);
    for (int variant = 0; variant < 2; variant++) {
        saved.mask = variant ? SL_MASK_NONE : SL_MASK_CAUSAL;
        saved.activation = variant ? SL_ACTIVATION_GELU : SL_ACTIVATION_RELU;
        saved.pre_norm = variant;
        saved.tie = variant;
        saved.context = variant ? 64 : 0;
        check_ok(sl_weights_save(pipe.pipe, &saved, NULL, path));
        check_ok(sl_weights_model(path, &read));
        assert_int_equal(read.ntokens, saved.ntokens);
        assert_int_equal(read.emsize, saved.emsize);
        assert_int_equal(read.nhid, saved.nhid);
        assert_int_equal(read.nlayers, saved.nlayers);
        assert_int_equal(read.nhead, saved.nhead);
        assert_int_equal(read.mask, saved.mask);
        assert_int_equal(read.activation, saved.activation);
        assert_int_equal(read.pre_norm, saved.pre_norm);
        assert_int_equal(read.tie, saved.tie);
        assert_int_equal(read.context, saved.context);
    }
    test_pipe_destroy(&pipe);
}

/* ---- Files that do not fit ---------------------------------------------------------------- */

/* Writes the file of a pipe again, without the tensor `without`, with `extra` (each may be NULL),
 * and with these metadata. */
static void rewrite(const char *path, const char *without, const char *extra,
                    const sl_metadata *metadata, size_t metadata_count)
{
    enum { MOST = 64 };
    sl_safetensors_item items[MOST];
    sl_safetensors_reader *reader;
    size_t count = 0;
    float one = 1;
    check_ok(sl_safetensors_open(path, &reader));
    for (size_t i = 0; i < sl_safetensors_count(reader); i++) {
        const sl_safetensors_info *info = sl_safetensors_get(reader, i);
        if (without && strcmp(info->name, without) == 0)
            continue;
        sl_safetensors_item *item = &items[count++];
        *item = (sl_safetensors_item){.name = info->name, .dtype = info->dtype};
        item->shape.dims = info->dims;
        memcpy(item->shape.size, info->size, (size_t)info->dims * sizeof *info->size);
        item->data = malloc(info->bytes);
        check_ok(sl_safetensors_read(reader, info, item->data));
    }
    size_t read = count;
    if (extra)
        items[count++] = (sl_safetensors_item){extra, SL_F32, sl_shape_1d(1), &one};
    check_ok(sl_safetensors_save(path, items, count, metadata, metadata_count));
    for (size_t i = 0; i < read; i++)
        free(items[i].data);
    sl_safetensors_close(&reader);
}

static void buffer_may_be_missing_and_nothing_else(void **state)
{
    char *path = scratch_path(*state, "model.safetensors");
    int64_t count;
    test_pipe pipe = open_small_model(2, 1);
    check_ok(sl_weights_save(pipe.pipe, &small_model_options, NULL, path));
    rewrite(path, "0.pos_encoder.pe", NULL, NULL, 0);
    check_ok(sl_weights_load(pipe.pipe, path));
    float *before = pipe_values(&pipe, &count);
    rewrite(path, "2.norm1.bias", NULL, NULL, 0);
    check_error(sl_weights_load(pipe.pipe, path), SL_ERR_INVALID, "2.norm1.bias");
    check_ok(sl_weights_save(pipe.pipe, &small_model_options, NULL, path));
    rewrite(path, NULL, "5.decoder.bias", NULL, 0);
    check_error(sl_weights_load(pipe.pipe, path), SL_ERR_INVALID, "5.decoder.bias");
    float *after = pipe_values(&pipe, &count);
    assert_memory_equal(before, after, (size_t)count * sizeof *before);
    free(before);
    free(after);
    test_pipe_destroy(&pipe);
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
    char *path = scratch_path(*state, "model.safetensors");
    left_out_list list = {.text = ""};
    sl_model_options options = small_model_options;
    test_pipe from = open_small_model(2, 1);
    check_ok(sl_weights_save(from.pipe, &options, NULL, path));
    options.ntokens = 9;
    options.tie = true;
    sl_module *model;
    check_ok(sl_transformer_lm_create(&options, &model));
    test_pipe to = open_pipe(model, NULL, (sl_pipe_options){.stages = 2, .seed = 2}, 2, 1);
    float kept = sl_tensor_f32(sl_parameter_value(find_parameter(&to, "0.encoder.weight")))[0];
    check_ok(sl_weights_load_partial(to.pipe, path, list_left_out, &list));
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
    check_error(sl_weights_load_partial(to.pipe, path, list_left_out, &list), SL_ERR_CANCELLED,
                "enough");
    test_pipe_destroy(&from);
    test_pipe_destroy(&to);
}

static void partial_load_of_nothing_is_an_error(void **state)
{
    char *path = scratch_path(*state, "other.safetensors");
    left_out_list list = {.text = ""};
    float value = 1;
    const sl_safetensors_item item = {"other", SL_F32, sl_shape_1d(1), &value};
    check_ok(sl_safetensors_save(path, &item, 1, NULL, 0));
    test_pipe pipe = open_small_model(1, 1);
    check_error(sl_weights_load_partial(pipe.pipe, path, list_left_out, &list), SL_ERR_INVALID,
                "none of its tensors is a parameter of the model");
    assert_non_null(strstr(list.text, "0.encoder.weight: not in the file\n"));
    test_pipe_destroy(&pipe);
}

static void metadata_that_make_no_sense_are_refused(void **state)
{
    static const char *const bad[][3] = {
        {"sluice.nhead", "0", "sluice.nhead must be a whole number from 1"},
        {"sluice.nhead", "2x", ", got \"2x\""},
        {"sluice.nhead", "99999999999999999999", "sluice.nhead must be at most "},
        {"sluice.mask", "some", "sluice.mask must be causal or none, got \"some\""},
        {"sluice.pre_norm", "1", "sluice.pre_norm must be true or false, got \"1\""},
    };
    char *path = scratch_path(*state, "model.safetensors");
    sl_model_options read;
    test_pipe pipe = open_small_model(1, 1);
    check_ok(sl_weights_save(pipe.pipe, &small_model_options, NULL, path));
    test_pipe_destroy(&pipe);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_metadata metadata[] = {{"sluice.ntokens", "11"},    {"sluice.emsize", "8"},
                                  {"sluice.nhid", "12"},       {"sluice.nlayers", "3"},
                                  {"sluice.nhead", "2"},       {"sluice.mask", "none"},
                                  {"sluice.pre_norm", "true"}, {"sluice.activation", "gelu"}};
        enum { ENTRIES = sizeof metadata / sizeof *metadata };
        for (int k = 0; k < ENTRIES; k++)
            if (strcmp(metadata[k].key, bad[i][0]) == 0)
                metadata[k].value = bad[i][1];
        rewrite(path, NULL, NULL, metadata, ENTRIES);
        check_error(sl_weights_model(path, &read), SL_ERR_FORMAT, bad[i][2]);
    }
    rewrite(path, NULL, NULL, NULL, 0);
    check_error(
        sl_weights_model(path, &read), SL_ERR_FORMAT,
        "its metadata do not say \"sluice.ntokens\", as those of sluice's language models do");
    check_ok(sli_weights_check_model(path, &small_model_options)); /* nothing contradicts it */
}

/* A few bytes that ask for a model of gigabytes. */
static void metadata_of_a_model_that_the_tensors_are_not_are_refused(void **state)
{
    static const char *const hostile[][2] = {
        {"sluice.nlayers", "65536"},     {"sluice.nlayers", "1000"},
        {"sluice.emsize", "1048576"},    {"sluice.emsize", "2147483646"},
        {"sluice.nhid", "1048576"},      {"sluice.ntokens", "2147483647"},
        {"sluice.nlayers", "100000000"}, {"sluice.ntokens", "9223372036854775807"},
    };
    char *path = scratch_path(*state, "model.safetensors");
    sl_model_options read;
    test_pipe pipe = open_small_model(1, 1);
    check_ok(sl_weights_save(pipe.pipe, &small_model_options, NULL, path));
    test_pipe_destroy(&pipe);
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        sl_metadata metadata[] = {{"sluice.ntokens", "11"},    {"sluice.emsize", "8"},
                                  {"sluice.nhid", "12"},       {"sluice.nlayers", "3"},
                                  {"sluice.nhead", "2"},       {"sluice.mask", "none"},
                                  {"sluice.pre_norm", "true"}, {"sluice.activation", "gelu"}};
        enum { ENTRIES = sizeof metadata / sizeof *metadata };
        rewrite(path, NULL, NULL, metadata, ENTRIES);
        check_ok(sl_weights_model(path, &read));
        for (int k = 0; k < ENTRIES; k++)
            if (strcmp(metadata[k].key, hostile[i][0]) == 0)
                metadata[k].value = hostile[i][1];
        rewrite(path, NULL, NULL, metadata, ENTRIES);
        clock_t begin = clock();
        sl_status status = sl_weights_model(path, &read);
        assert_true(status == SL_ERR_FORMAT || status == SL_ERR_INVALID);
        assert_true(clock() - begin < CLOCKS_PER_SEC);
    }
}

/* ---- The vocabulary ----------------------------------------------------------------------- */

static void check_vocab_path(const char *weights, const char *expected)
{
    char *path;
    check_ok(sl_weights_vocab_path(weights, &path));
    assert_string_equal(path, expected);
    free(path);
}

static void vocabulary_lies_beside_the_weights(void **state)
{
    (void)state;
    check_vocab_path("dir/model.safetensors", "dir/model.vocab.txt");
    check_vocab_path("dir/model", "dir/model.vocab"); /* not that of dir/model.safetensors */
    check_vocab_path("a.b/model.bin", "a.b/model.bin.vocab");
    check_vocab_path(".safetensors", ".safetensors.vocab");
    check_vocab_path("dir/model.safetensors.index.json", "dir/model.vocab.txt");
    check_vocab_path("/proc", "/proc/model.vocab.txt"); /* a directory */
}

/* The vocabulary of a text, from a file of that name. */
static sl_vocab *make_vocab(scratch *in, const char *name, const char *text)
{
    sl_vocab *vocab;
    write_file(scratch_path(in, name), text, strlen(text));
    check_ok(sl_vocab_load(in->path, &vocab));
    return vocab;
}

static void save(const char *path, const sl_vocab *vocab)
{
    test_pipe pipe = open_small_model(1, 1);
    check_ok(sl_weights_save(pipe.pipe, &small_model_options, vocab, path));
    test_pipe_destroy(&pipe);
}

/* The vocabulary that is found beside weights has `token` as its first after <unk>. */
static void check_found(const char *path, const char *token)
{
    sl_vocab *found;
    check_ok(sl_weights_vocab(path, &found));
    assert_non_null(found);
    assert_string_equal(sl_vocab_token(found, 1).text, token);
    sl_vocab_destroy(&found);
}

static void vocabulary_is_saved_and_found(void **state)
{
    scratch *in = *state;
    sl_vocab *found, *vocab = make_vocab(in, "words", "<unk>\none\ntwo\n");
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", in->directory);
    check_ok(sl_weights_vocab(path, &found)); /* no weights, no vocabulary */
    assert_null(found);
    save(path, vocab);
    check_found(path, "one");
    sl_vocab_destroy(&vocab);
    write_file(scratch_path(in, "model.vocab.txt"), "one\n", 4);
    check_error(sl_weights_vocab(path, &found), SL_ERR_FORMAT, "/model.vocab.txt");
    assert_null(found);
    assert_int_equal(remove(scratch_path(in, "model.vocab.txt")), 0);
    check_ok(sl_weights_vocab(path, &found));
    assert_null(found);
}

static void vocabulary_of_other_weights_is_refused(void **state)
{
    scratch *in = *state;
    sl_vocab *found, *one = make_vocab(in, "words", "<unk>\none\ntwo\n"),
                     *two = make_vocab(in, "model.vocab.txt", "<unk>\ntwo\none\n");
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors", in->directory);
    save(path, one);
    check_ok(sl_vocab_save(two, scratch_path(in, "model.vocab.txt")));
    check_error(sl_weights_vocab(path, &found), SL_ERR_INVALID, "is not the one that ");
    check_error(sli_weights_vocab_check(path, two), SL_ERR_INVALID,
                "model.safetensors was saved with (");
    check_ok(sli_weights_vocab_check(path, one));
    check_ok(sl_vocab_save(one, scratch_path(in, "model.vocab.txt.new"))); /* a save's leftover */
    check_found(path, "one");
    save(path, NULL); /* weights that say nothing have what is there */
    check_found(path, "two");
    check_ok(sli_weights_vocab_check(path, one));
    sl_vocab_destroy(&one);
    sl_vocab_destroy(&two);
}

static void weights_with_and_without_an_ending_have_their_own_vocabularies(void **state)
{
    scratch *in = *state;
    sl_vocab *one = make_vocab(in, "words", "<unk>\none\ntwo\n"),
             *two = make_vocab(in, "words", "<unk>\ntwo\none\n");
    char with[512], without[512], vocab[512];
    snprintf(with, sizeof with, "%s/a.safetensors", in->directory);
    snprintf(without, sizeof without, "%s/a", in->directory);
    save(with, one);
    save(without, two);
    check_found(with, "one");
    check_found(without, "two");
    /* As older files of the second kind lie there: */
    snprintf(vocab, sizeof vocab, "%s/a.vocab", in->directory);
    assert_int_equal(rename(vocab, scratch_path(in, "a.vocab.txt")), 0);
    check_found(without, "two");
    save(without, NULL);
    check_found(without, "two");
    sl_vocab_destroy(&one);
    sl_vocab_destroy(&two);
}

/* ---- Where to write ----------------------------------------------------------------------- */

static void trying_to_save_leaves_nothing_and_harms_nothing(void **state)
{
    scratch *in = *state;
    char path[512], content[16];
    snprintf(path, sizeof path, "%s/model.safetensors", in->directory);
    test_pipe pipe = open_small_model(1, 1);
    check_ok(sli_weights_check_save(pipe.pipe, path));
    assert_int_equal(scratch_entries(in, 0), 0);
    write_file(path, "old", 3);
    check_ok(sli_weights_check_save(pipe.pipe, path));
    assert_int_equal(read_file(path, content, sizeof content), 3);
    assert_int_equal(scratch_entries(in, 0), 1);
    check_error(sli_weights_check_save(pipe.pipe, in->directory), SL_ERR_INVALID, in->directory);
    check_error(sli_weights_check_save(pipe.pipe, "/nowhere/x"), SL_ERR_NOT_FOUND, "/nowhere/x");
    test_pipe_destroy(&pipe);
}

int weights_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(saved_weights_come_back_in_any_cut),
        WITH_SCRATCH(names_are_pytorchs),
        WITH_SCRATCH(metadata_give_the_model_back),
        WITH_SCRATCH(buffer_may_be_missing_and_nothing_else),
        WITH_SCRATCH(partial_load_reads_what_fits_and_lists_the_rest),
        WITH_SCRATCH(partial_load_of_nothing_is_an_error),
        WITH_SCRATCH(metadata_that_make_no_sense_are_refused),
        WITH_SCRATCH(metadata_of_a_model_that_the_tensors_are_not_are_refused),
        cmocka_unit_test(vocabulary_lies_beside_the_weights),
        WITH_SCRATCH(vocabulary_is_saved_and_found),
        WITH_SCRATCH(vocabulary_of_other_weights_is_refused),
        WITH_SCRATCH(weights_with_and_without_an_ending_have_their_own_vocabularies),
        WITH_SCRATCH(trying_to_save_leaves_nothing_and_harms_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
