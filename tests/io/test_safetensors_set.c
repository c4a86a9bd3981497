/* Models in one file and in several: all that they may be on disk is read as if it were one file.
 */
#include "scratch.h"

#include "io/safetensors/set.h"
#include "sluice/checkpoint.h"
#include "support/check.h"

enum { TENSORS = 4, ELEMENTS = 3 };

typedef struct sample {
    float values[TENSORS][ELEMENTS];
    sl_safetensors_item items[TENSORS];
} sample;

static void sample_fill(sample *to, float first)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    for (int t = 0; t < TENSORS; t++) {
        to->items[t] =
            (sl_safetensors_item){names[t], SL_F32, sl_shape_1d(ELEMENTS), to->values[t]};
        for (int i = 0; i < ELEMENTS; i++)
            to->values[t][i] = first + (float)(ELEMENTS * t + i);
    }
}

static void check_loads(const char *path)
{
    sample back, expected;
    sample_fill(&back, -1000);
    sample_fill(&expected, 0);
    check_ok(sl_safetensors_load(path, back.items, TENSORS));
    assert_memory_equal(back.values, expected.values, sizeof expected.values);
}

static void check_refused(const char *path, sl_status code, const char *reason)
{
    sample back;
    sample_fill(&back, -1000);
    check_error(sl_safetensors_load(path, back.items, TENSORS), code, reason);
    assert_float_equal(back.values[0][0], -1000, 0);
}

/* model-1 with the first two tensors, model-2 with the others, and an index of this text. */
static char *write_shards(scratch *in, const char *index)
{
    sample made;
    const sl_metadata note = {"made", "here"};
    sample_fill(&made, 0);
    check_ok(sl_safetensors_save(scratch_path(in, "model-1.safetensors"), made.items, 2, &note, 1));
    check_ok(
        sl_safetensors_save(scratch_path(in, "model-2.safetensors"), made.items + 2, 2, NULL, 0));
    char *path = scratch_path(in, "model.safetensors.index.json");
    write_file(path, index, strlen(index));
    return path;
}

#define ONE "\"model-1.safetensors\""
#define TWO "\"model-2.safetensors\""
static const char whole_index[] = "{\"metadata\":{\"total_size\":48},\"weight_map\":{\"d\":" TWO
                                  ",\"a\":" ONE ",\"c\":" TWO ",\"b\":" ONE "}}";

static void file_is_a_set_of_one(void **state)
{
    sample made;
    sli_safetensors_set *set;
    char *path = scratch_path(*state, "any.name");
    sample_fill(&made, 0);
    check_ok(sl_safetensors_save(path, made.items, TENSORS, NULL, 0));
    check_loads(path);
    check_ok(sli_safetensors_set_open(path, &set));
    assert_int_equal(sli_safetensors_set_files(set), 1);
    assert_string_equal(sli_safetensors_set_file(set, 0), path);
    sli_safetensors_set_close(&set);
    assert_null(set);
}

static void index_stands_for_its_files(void **state)
{
    sli_safetensors_set *set;
    char *path = write_shards(*state, whole_index);
    check_loads(path);
    check_loads(((scratch *)*state)->directory);
    check_ok(sli_safetensors_set_open(path, &set));
    assert_int_equal(sli_safetensors_set_files(set), 2);
    assert_int_equal(sli_safetensors_set_count(set), TENSORS);
    assert_string_equal(sli_safetensors_set_get(set, 3)->name, "d");
    assert_string_equal(sli_safetensors_set_find(set, "c")->name, "c");
    assert_null(sli_safetensors_set_find(set, "e"));
    assert_string_equal(sli_safetensors_set_metadata(set, "made"), "here");
    sli_safetensors_set_close(&set);
}

static void index_that_does_not_fit_is_refused(void **state)
{
    static const struct {
        const char *index, *reason;
    } bad[] = {
        {"[", "not valid JSON"},
        {"{}", "\"weight_map\" must be an object"},
        {"{\"weight_map\":{}}", "it names no tensors"},
        {"{\"weight_map\":{\"a\":\"../model-1.safetensors\"}}", "is no file beside it"},
        {"{\"weight_map\":{\"a\":\"/model-1.safetensors\"}}", "is no file beside it"},
        {"{\"weight_map\":{\"a\":\"\"}}", "is no file beside it"},
        {"{\"weight_map\":{\"a\":" ONE "}}", "tensor \"b\" is in model-1.safetensors"},
        {"{\"weight_map\":{\"a\":" ONE ",\"b\":" ONE ",\"c\":" ONE ",\"d\":" TWO "}}",
         "tensor \"c\" is in model-2.safetensors"},
        {"{\"weight_map\":{\"a\":" ONE ",\"b\":" ONE ",\"e\":" ONE "}}",
         "it names 3 tensors, but its files have 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_refused(write_shards(*state, bad[i].index), SL_ERR_FORMAT, bad[i].reason);
    check_refused(write_shards(*state, "{\"weight_map\":{\"a\":\"model-3.safetensors\"}}"),
                  SL_ERR_NOT_FOUND, "model-3.safetensors: cannot be opened");
    check_refused(write_shards(*state, "{\"weight_map\":{\"a\":" ONE ",\"b\":" ONE "}}"),
                  SL_ERR_INVALID, "it lacks 2 of the 4 tensors expected (\"c\", \"d\")");
}

static void checkpoint_is_read_against_its_checksums(void **state)
{
    for (uint64_t limit = 0; limit <= 24; limit += 24) {
        sample made;
        char path[512], line[700], file[600];
        sample_fill(&made, 0);
        snprintf(path, sizeof path, "%s", scratch_path(*state, "checkpoint"));
        const sl_checkpoint_part parts[] = {{"optimizer", made.items, 1, NULL, 0},
                                            {"model", made.items, TENSORS, NULL, 0}};
        check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = parts,
                                                                    .part_count = 2,
                                                                    .shard_bytes = limit}));
        check_loads(path);
        snprintf(file, sizeof file, "%s/model%s.safetensors", path, limit ? "-00002-of-00002" : "");
        FILE *open = fopen(file, "r+b");
        assert_non_null(open);
        assert_int_equal(fseek(open, -1, SEEK_END), 0);
        assert_int_not_equal(fputc(1, open), EOF);
        assert_int_equal(fclose(open), 0);
        sample back;
        sample_fill(&back, 0);
        check_error(sl_safetensors_load(path, back.items, TENSORS), SL_ERR_FORMAT,
                    "it is damaged: its checksum is ");
        snprintf(line, sizeof line, "rm -r '%s'", path);
        assert_int_equal(system(line), 0);
    }
}

static void directory_without_a_model_is_refused(void **state)
{
    sample made;
    char line[700];
    sample_fill(&made, 0);
    check_refused(((scratch *)*state)->directory, SL_ERR_NOT_FOUND,
                  "the directory is no checkpoint, and has neither model.safetensors nor "
                  "model.safetensors.index.json");
    const sl_checkpoint_part part = {"optimizer", made.items, 1, NULL, 0};
    char *path = scratch_path(*state, "checkpoint");
    check_ok(sl_checkpoint_save(path, &(sl_checkpoint_contents){.parts = &part, .part_count = 1}));
    check_refused(path, SL_ERR_NOT_FOUND, "the checkpoint has no part \"model\"");
    snprintf(line, sizeof line, "rm -r '%s'", path);
    assert_int_equal(system(line), 0);
}

int safetensors_set_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(file_is_a_set_of_one),
        WITH_SCRATCH(index_stands_for_its_files),
        WITH_SCRATCH(index_that_does_not_fit_is_refused),
        WITH_SCRATCH(checkpoint_is_read_against_its_checksums),
        WITH_SCRATCH(directory_without_a_model_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
