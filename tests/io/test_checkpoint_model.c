/* Models in one file and in several: all that they may be on disk is read as if it were one file.
 */
#include "scratch.h"

#include "io/checkpoint/format.h"
#include "sluice/checkpoint.h"
#include "support/check.h"

#include <time.h>

enum { TENSORS = 4, ELEMENTS = 3 };

typedef struct sample {
    float values[TENSORS][ELEMENTS];
    sl_safetensors_item items[TENSORS];
} sample;

static void sample_fill(sample *filled, float first)
{
    static const char *const names[TENSORS] = {"a", "b", "c", "d"};
    for (int t = 0; t < TENSORS; t++) {
        filled->items[t] =
            (sl_safetensors_item){names[t], SL_F32, sl_shape_1d(ELEMENTS), filled->values[t]};
        for (int i = 0; i < ELEMENTS; i++)
            filled->values[t][i] = first + (float)(ELEMENTS * t + i);
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
static char *write_shards(scratch *dir, const char *index)
{
    sample made;
    const sl_metadata note = {"made", "here"};
    sample_fill(&made, 0);
    check_ok(
        sl_safetensors_save(scratch_path(dir, "model-1.safetensors"), made.items, 2, &note, 1));
    check_ok(
        sl_safetensors_save(scratch_path(dir, "model-2.safetensors"), made.items + 2, 2, NULL, 0));
    char *path = scratch_path(dir, "model.safetensors.index.json");
    write_file(path, index, strlen(index));
    return path;
}

#define ONE "\"model-1.safetensors\""
#define TWO "\"model-2.safetensors\""
static const char whole_index[] = "{\"metadata\":{\"total_size\":48},\"weight_map\":{\"d\":" TWO
                                  ",\"a\":" ONE ",\"c\":" TWO ",\"b\":" ONE "}}";

static void file_is_a_model(void **state)
{
    sample made;
    sl_checkpoint_reader *model;
    char *path = scratch_path(*state, "any.name");
    sample_fill(&made, 0);
    check_ok(sl_safetensors_save(path, made.items, TENSORS, NULL, 0));
    check_loads(path);
    check_ok(sl_checkpoint_open(path, &model));
    assert_int_equal(sl_checkpoint_file_count(model), 1);
    assert_string_equal(model->files[0].reader->path, path);
    sl_checkpoint_close(&model);
    assert_null(model);
}

static void index_stands_for_its_files(void **state)
{
    sl_checkpoint_reader *model;
    char *path = write_shards(*state, whole_index);
    check_loads(path);
    check_loads(((scratch *)*state)->directory);
    check_ok(sl_checkpoint_open(path, &model));
    assert_int_equal(sl_checkpoint_file_count(model), 2);
    assert_int_equal(sl_checkpoint_tensor_count(model, SLI_MODEL_PART), TENSORS);
    assert_string_equal(sl_checkpoint_tensor_get(model, SLI_MODEL_PART, 3)->name, "d");
    assert_string_equal(sli_checkpoint_find_tensor(model, SLI_MODEL_PART, "c")->info.name, "c");
    assert_null(sli_checkpoint_find_tensor(model, SLI_MODEL_PART, "e"));
    assert_string_equal(sli_checkpoint_metadata(model, SLI_MODEL_PART, "made"), "here");
    sl_checkpoint_close(&model);
}

/* A file that cannot be mapped is to be read. */
static void tensor_has_a_place_in_its_files_map_where_there_can_be_one(void **state)
{
    sample made;
    sl_checkpoint_reader *model;
    sli_file_map *map;
    void *data;
    char *path = scratch_path(*state, "file");
    sample_fill(&made, 0);
    check_ok(sl_safetensors_save(path, made.items, TENSORS, NULL, 0));
    check_ok(sl_checkpoint_open(path, &model));
    const sli_checkpoint_entry *entry = sli_checkpoint_find_tensor(model, SLI_MODEL_PART, "a");
    uint64_t *bytes = &model->files[0].reader->file_bytes, size = *bytes;
    *bytes = UINT64_MAX / 4;
    check_ok(sli_checkpoint_map(model, entry, &map, &data));
    assert_null(map);
    assert_null(data);
    *bytes = size;
    check_ok(sli_checkpoint_map(model, entry, &map, &data));
    assert_non_null(map);
    assert_memory_equal(data, made.items[0].data, (size_t)entry->info.bytes);
    sl_checkpoint_close(&model);
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

/* ---- What is asked for -------------------------------------------------------------------- */

static void assert_load_refused(const char *path, const sl_safetensors_item *items, size_t count,
                                const char *reason)
{
    assert_int_equal(sl_safetensors_load(path, items, count), SL_ERR_INVALID);
    if (!strstr(sl_error_text(), reason))
        print_error("expected \"%s\", got: %s\n", reason, sl_error_text());
    assert_non_null(strstr(sl_error_text(), reason));
}

/* A file of float scalars with these names. */
static void save_scalars(const char *path, const char *const *names, size_t count)
{
    static float value = 1.0F;
    sl_safetensors_item items[8];
    assert_true(count <= 8);
    for (size_t i = 0; i < count; i++)
        items[i] = (sl_safetensors_item){names[i], SL_F32, {0, {0}}, &value};
    assert_int_equal(sl_safetensors_save(path, items, count, NULL, 0), SL_OK);
}

static void load_lists_missing_and_unexpected_names_together(void **state)
{
    char *path = scratch_path(*state, "file");
    static const char *const held[] = {"a", "b", "c", "d", "e"};
    save_scalars(path, held, 5);
    float got[6] = {0};
    const sl_safetensors_item wanted[] = {{"z", SL_F32, {0, {0}}, got},
                                          {"a", SL_F32, {0, {0}}, got + 1},
                                          {"x", SL_F32, {0, {0}}, got + 2},
                                          {"y", SL_F32, {0, {0}}, got + 3},
                                          {"w", SL_F32, {0, {0}}, got + 4}};
    assert_load_refused(path, wanted, 5,
                        "file: it lacks 4 of the 5 tensors expected (\"z\", \"x\", \"y\", ...), "
                        "and has 4 unexpected ones (\"b\", \"c\", \"d\", ...)");
    assert_load_refused(path, wanted + 1, 1,
                        "it has 4 unexpected tensors (\"b\", \"c\", \"d\", ...)");
    save_scalars(path, held, 1);
    assert_load_refused(path, wanted, 2, "it lacks 1 of the 2 tensors expected (\"z\")");
    for (int i = 0; i < 6; i++)
        assert_true(got[i] == 0.0F);
}

static void load_wrong_shape_or_type_names_both_and_writes_nothing(void **state)
{
    char *path = scratch_path(*state, "file");
    float a[6] = {1, 2, 3, 4, 5, 6}, got_a[6] = {0}, got_b[6] = {0};
    sl_safetensors_item items[] = {{"a", SL_F32, {2, {2, 3}}, a}, {"b", SL_F32, {1, {6}}, a}};
    assert_int_equal(sl_safetensors_save(path, items, 2, NULL, 0), SL_OK);
    items[0].data = got_a;
    items[1].data = got_b;
    items[1].shape = (sl_shape){2, {3, 2}};
    assert_load_refused(path, items, 2, "tensor \"b\" should be F32 [3, 2], but is F32 [6]");
    items[1].shape = (sl_shape){1, {5}};
    assert_load_refused(path, items, 2, "tensor \"b\" should be F32 [5], but is F32 [6]");
    items[1].shape = (sl_shape){1, {6}};
    items[1].dtype = SL_I32;
    assert_load_refused(path, items, 2, "tensor \"b\" should be I32 [6], but is F32 [6]");
    items[0].dtype = SL_BF16;
    assert_load_refused(path, items, 2,
                        "tensor \"a\" should be BF16 [2, 3], but is F32 [2, 3]; 1 "
                        "more of the tensors do not fit");
    for (int i = 0; i < 6; i++)
        assert_true(got_a[i] == 0.0F && got_b[i] == 0.0F);
}

static void load_of_a_type_that_sluice_lacks_is_refused(void **state)
{
    char *path = scratch_path(*state, "file");
    const char *header = "{\"h\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4]}}";
    write_safetensors(path, header, strlen(header), 4);
    uint16_t got[2];
    const sl_safetensors_item item = {"h", SL_BF16, {1, {2}}, got};
    assert_load_refused(path, &item, 1, "tensor \"h\" should be BF16 [2], but is I16 [2]");
}

static void load_of_one_name_twice_is_refused(void **state)
{
    char *path = scratch_path(*state, "file");
    static const char *const held[] = {"a"};
    save_scalars(path, held, 1);
    float got[2];
    const sl_safetensors_item items[] = {{"a", SL_F32, {0, {0}}, got},
                                         {"a", SL_F32, {0, {0}}, got + 1}};
    assert_load_refused(path, items, 2, "tensor \"a\" is asked for twice");
}

static void load_of_an_absent_or_broken_file_is_refused(void **state)
{
    char *path = scratch_path(*state, "absent");
    assert_int_equal(sl_safetensors_load(path, NULL, 0), SL_ERR_NOT_FOUND);
    write_file(path, "short", 5);
    assert_int_equal(sl_safetensors_load(path, NULL, 0), SL_ERR_FORMAT);
}

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

enum { ITEMS_MAX = 12, ELEMENT_MAX = 8 };

/* Random tensors of all types, with sizes from 0 up; their names are unique by their number. */
static size_t random_items(uint64_t *seed, sl_safetensors_item *items, char names[][32])
{
    size_t count = next_random(seed) % (ITEMS_MAX + 1);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], 32, "%zu.\xE2\x82\xAC\"\\\n%x", i, (unsigned)next_random(seed));
        items[i] = (sl_safetensors_item){.name = names[i], .dtype = next_random(seed) % 5};
        items[i].shape.dims = (int)(next_random(seed) % (SL_MAX_DIMS + 1));
        size_t bytes = ELEMENT_MAX;
        for (int d = 0; d < items[i].shape.dims; d++) {
            items[i].shape.size[d] = (int64_t)(next_random(seed) % 5);
            bytes *= (size_t)items[i].shape.size[d];
        }
        unsigned char *data = malloc(bytes + 1);
        assert_non_null(data);
        for (size_t b = 0; b < bytes; b++)
            data[b] = (unsigned char)next_random(seed);
        items[i].data = data;
    }
    return count;
}

static void check_round_trip(const char *path, const sl_safetensors_item *items, size_t count)
{
    static const size_t widths[] = {4, 8, 4, 8, 2};
    sl_safetensors_item loaded[ITEMS_MAX];
    assert_int_equal(sl_safetensors_save(path, items, count, NULL, 0), SL_OK);
    for (size_t i = 0; i < count; i++) { /* asked for in the opposite order */
        loaded[i] = items[count - 1 - i];
        loaded[i].data = malloc(ELEMENT_MAX * 256 + 1);
        assert_non_null(loaded[i].data);
    }
    sl_status status = sl_safetensors_load(path, loaded, count);
    if (status != SL_OK)
        print_error("%s\n", sl_error_text());
    assert_int_equal(status, SL_OK);
    for (size_t i = 0; i < count; i++) {
        const sl_safetensors_item *item = &items[count - 1 - i];
        size_t bytes = widths[item->dtype];
        for (int d = 0; d < item->shape.dims; d++)
            bytes *= (size_t)item->shape.size[d];
        assert_memory_equal(loaded[i].data, item->data, bytes);
        free(loaded[i].data);
    }
}

static void load_gives_back_what_save_took_for_random_tensors(void **state)
{
    char *path = scratch_path(*state, "file");
    const char *given = getenv("SLUICE_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 2654435761U + 1;
    print_message("SLUICE_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (int round = 0; round < 30; round++) {
        sl_safetensors_item items[ITEMS_MAX];
        char names[ITEMS_MAX][32];
        size_t count = random_items(&seed, items, names);
        check_round_trip(path, items, count);
        for (size_t i = 0; i < count; i++)
            free(items[i].data);
    }
}

int checkpoint_model_tests(void)
{
#define WITH_SCRATCH(test) cmocka_unit_test_setup_teardown(test, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        WITH_SCRATCH(file_is_a_model),
        WITH_SCRATCH(index_stands_for_its_files),
        WITH_SCRATCH(tensor_has_a_place_in_its_files_map_where_there_can_be_one),
        WITH_SCRATCH(index_that_does_not_fit_is_refused),
        WITH_SCRATCH(checkpoint_is_read_against_its_checksums),
        WITH_SCRATCH(directory_without_a_model_is_refused),
        WITH_SCRATCH(load_lists_missing_and_unexpected_names_together),
        WITH_SCRATCH(load_wrong_shape_or_type_names_both_and_writes_nothing),
        WITH_SCRATCH(load_of_a_type_that_sluice_lacks_is_refused),
        WITH_SCRATCH(load_of_one_name_twice_is_refused),
        WITH_SCRATCH(load_of_an_absent_or_broken_file_is_refused),
        WITH_SCRATCH(load_gives_back_what_save_took_for_random_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
