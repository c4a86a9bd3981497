#include "scratch.h"

#include "support/check.h"

#include "sluice/safetensors.h"

#include <signal.h>
#include <sys/resource.h>

static void assert_refused(scratch *dir, const sl_safetensors_item *items, size_t count,
                           const char *reason)
{
    check_error(sl_safetensors_save(scratch_path(dir, "refused"), items, count, NULL, 0),
                SL_ERR_INVALID, reason);
    assert_int_equal(scratch_entries(dir, 0), 0);
}

static void save_of_bad_names_are_refused(void **state)
{
    const sl_safetensors_item twice[] = {{"a", SL_F32, {1, {1}}, NULL},
                                         {"a", SL_I64, {1, {1}}, NULL}};
    assert_refused(*state, twice, 2, "tensor \"a\": the name is used twice");
    const sl_safetensors_item kept = {"__metadata__", SL_F32, {1, {1}}, NULL};
    assert_refused(*state, &kept, 1, "the format keeps this name for itself");
    const sl_safetensors_item latin1 = {"caf\xE9", SL_F32, {1, {1}}, NULL};
    assert_refused(*state, &latin1, 1, "its name is not UTF-8");
}

static void save_of_bad_shapes_and_types_are_refused(void **state)
{
    const sl_safetensors_item negative = {"a", SL_F32, {2, {3, -1}}, NULL};
    assert_refused(*state, &negative, 1, "[3, -1] is no possible shape");
    const sl_safetensors_item huge = {"a", SL_F64, {2, {INT64_MAX, 2}}, NULL};
    assert_refused(*state, &huge, 1, "is no possible shape");
    const sl_safetensors_item deep = {"a", SL_F64, {5, {1, 1, 1, 1}}, NULL};
    assert_refused(*state, &deep, 1, "0 to 4 dimensions, got 5");
    const sl_safetensors_item unknown = {"a", (sl_dtype)99, {1, {1}}, NULL};
    assert_refused(*state, &unknown, 1, "99 is no data type");
    const sl_safetensors_item sum[] = {{"a", SL_F64, {1, {INT64_MAX / 40}}, NULL},
                                       {"b", SL_F64, {1, {INT64_MAX / 40}}, NULL},
                                       {"c", SL_F64, {1, {INT64_MAX / 40}}, NULL}};
    assert_refused(*state, sum, 3,
                   "tensor \"c\": with it the file would be larger than a file can be");
}

static void save_of_bad_metadata_is_refused(void **state)
{
    scratch *dir = *state;
    const sl_metadata note = {"author", "\xFF"};
    check_error(sl_safetensors_save(scratch_path(dir, "refused"), NULL, 0, &note, 1),
                SL_ERR_INVALID, "the metadata of the key \"author\" is not UTF-8");
    assert_int_equal(scratch_entries(dir, 0), 0);
}

/* The whole file, byte by byte. */
static void save_writes_the_format(void **state)
{
    char *path = scratch_path(*state, "file");
    float w[2] = {1.0F, -2.0F};
    uint16_t b[3] = {0x3F80, 0xC000, 0x7FC0};
    int64_t n = -1;
    const sl_safetensors_item items[] = {{"b", SL_BF16, {1, {3}}, b},
                                         {"w", SL_F32, {2, {1, 2}}, w},
                                         {"n", SL_I64, {0, {0}}, &n}};
    const sl_metadata note = {"format", "pt"};
    assert_int_equal(sl_safetensors_save(path, items, 3, &note, 1), SL_OK);
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"n\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[16,22]}}";
    unsigned char file[512];
    size_t count = read_file(path, file, sizeof file), length = (strlen(header) + 7) / 8 * 8;
    uint64_t stored;
    memcpy(&stored, file, sizeof stored);
    assert_int_equal(stored, length);
    assert_int_equal(count, 8 + length + 22);
    assert_memory_equal(file + 8, header, strlen(header));
    for (size_t i = strlen(header); i < length; i++)
        assert_int_equal(file[8 + i], ' ');
    assert_memory_equal(file + 8 + length, &n, 8);
    assert_memory_equal(file + 8 + length + 8, w, 8);
    assert_memory_equal(file + 8 + length + 16, b, 6);
}

static void save_without_tensors_writes_an_empty_object(void **state)
{
    char *path = scratch_path(*state, "file"), file[64];
    assert_int_equal(sl_safetensors_save(path, NULL, 0, NULL, 0), SL_OK);
    assert_int_equal(read_file(path, file, sizeof file), 16);
    assert_memory_equal(file, "\10\0\0\0\0\0\0\0{}      ", 16);
}

static void saved_tensors_are_loaded_in_any_order(void **state)
{
    char *path = scratch_path(*state, "file");
    int32_t a[3] = {1, 2, 3}, b[2] = {4, 5}, got_a[3], got_b[2];
    const sl_safetensors_item items[] = {{"a", SL_I32, {1, {3}}, a},
                                         {"b", SL_I32, {1, {2}}, b},
                                         {"void", SL_F32, {2, {0, 5}}, NULL}};
    const sl_safetensors_item wanted[] = {items[2],
                                          {"b", SL_I32, {1, {2}}, got_b},
                                          {"a", SL_I32, {1, {3}}, got_a}};
    check_ok(sl_safetensors_save(path, items, 3, NULL, 0));
    check_ok(sl_safetensors_load(path, wanted, 3));
    assert_memory_equal(got_a, a, sizeof a);
    assert_memory_equal(got_b, b, sizeof b);
}

/* The disk space of the whole file is asked for at once, here against a limit. */
static void save_without_room_fails_and_keeps_the_old_file(void **state)
{
    scratch *dir = *state;
    static float big[5000];
    char *path = scratch_path(dir, "file"), content[4];
    write_file(path, "old", 3);
    const sl_safetensors_item item = {"big", SL_F32, {1, {5000}}, big};
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 10000;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    sl_status status = sl_safetensors_save(path, &item, 1, NULL, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "File too large"));
    assert_int_equal(read_file(path, content, sizeof content), 3);
    assert_memory_equal(content, "old", 3);
    assert_int_equal(scratch_entries(dir, 0), 1);
}

static void save_into_a_file_as_directory_fails(void **state)
{
    scratch *dir = *state;
    write_file(scratch_path(dir, "file"), "", 0);
    char *path = scratch_path(dir, "file/weights");
    check_error(sl_safetensors_save(path, NULL, 0, NULL, 0), SL_ERR_NOT_FOUND, "Not a directory");
}

int safetensors_writer_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(save_of_bad_names_are_refused),
        TEST(save_of_bad_shapes_and_types_are_refused),
        TEST(save_of_bad_metadata_is_refused),
        TEST(save_writes_the_format),
        TEST(save_without_tensors_writes_an_empty_object),
        TEST(saved_tensors_are_loaded_in_any_order),
        TEST(save_without_room_fails_and_keeps_the_old_file),
        TEST(save_into_a_file_as_directory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
