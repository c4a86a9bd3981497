#include "io/safetensors/format.h"
#include "scratch.h"

#include "sluice/device.h"
#include "sluice/safetensors.h"
#include "support/check.h"

#include <sys/stat.h>

/* A header, the number of data bytes behind it, and a part of the sentence that refuses it. */
typedef struct bad_header {
    const char *header;
    size_t data_bytes;
    const char *reason;
} bad_header;

static void assert_refused(const char *path, sl_status expected, const char *reason)
{
    sli_safetensors_reader *reader = (sli_safetensors_reader *)&reader;
    sl_status status = sli_safetensors_open(path, &reader);
    if (status != expected || !strstr(sl_error_text(), reason))
        print_error("expected \"%s\", got %s: %s\n", reason, sl_status_name(status),
                    status == SL_OK ? "accepted" : sl_error_text());
    assert_int_equal(status, expected);
    assert_null(reader);
    assert_non_null(strstr(sl_error_text(), reason));
    assert_memory_equal(sl_error_text(), path, strlen(path)); /* says which file */
}

static void assert_headers_refused(scratch *dir, const bad_header *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char *path = scratch_path(dir, "bad.safetensors");
        write_safetensors(path, cases[i].header, strlen(cases[i].header), cases[i].data_bytes);
        assert_refused(path, SL_ERR_FORMAT, cases[i].reason);
    }
}
#define ASSERT_HEADERS_REFUSED(in, cases)                                                          \
    assert_headers_refused(in, cases, sizeof(cases) / sizeof(cases)[0])

static void open_file_without_header_is_refused(void **state)
{
    char *path = scratch_path(*state, "short");
    write_file(path, "", 0);
    assert_refused(path, SL_ERR_FORMAT, "begins with a number of 8 bytes, but the file has 0");
    write_file(path, "\2\0\0\0\0\0\0", 7);
    assert_refused(path, SL_ERR_FORMAT, "begins with a number of 8 bytes, but the file has 7");
    write_file(path, "\2\0\0\0\0\0\0\0{", 9);
    assert_refused(path, SL_ERR_FORMAT, "should have 2 bytes, but only 1 follow");
    write_file(path, "\0\0\0\0\0\0\0\0", 8);
    assert_refused(path, SL_ERR_FORMAT, "must be a JSON object");
}

static void open_absurd_header_length_is_refused(void **state)
{
    char *path = scratch_path(*state, "absurd");
    write_file(path, "\377\377\377\377\377\377\377\377{}", 10);
    assert_refused(path, SL_ERR_FORMAT, "would have 18446744073709551615 bytes");
    write_file(path, "\1\341\365\5\0\0\0\0{}", 10); /* 100,000,001 */
    assert_refused(path, SL_ERR_FORMAT, "would have 100000001 bytes, more than the 100000000");
    write_file(path, "\0\341\365\5\0\0\0\0{}", 10); /* 100,000,000 */
    assert_refused(path, SL_ERR_FORMAT, "should have 100000000 bytes, but only 2 follow");
}

static void open_what_is_no_file_is_refused(void **state)
{
    scratch *dir = *state;
    assert_refused(scratch_path(dir, "absent"), SL_ERR_NOT_FOUND, "cannot be opened: No such file");
    assert_refused(dir->directory, SL_ERR_FORMAT, "is a directory");
    char *path = scratch_path(dir, "pipe");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(path, SL_ERR_FORMAT, "is a device or pipe");
}

static void open_invalid_json_is_refused(void **state)
{
    static const bad_header cases[] = {
        {"[]", 0, "must be a JSON object that begins with"},
        {" {}", 0, "must be a JSON object that begins with"},
        {"{", 0, "not valid JSON"},
        {"{}x", 0, "not valid JSON at its byte 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},}", 0, "not valid JSON"},
        {"{\"a\":123456789012345678901234567890}", 0, "too big integer"},
        {"{\"a\xFF\":{}}", 0, "unable to decode byte 0xff"},
        {"{\"\xC0\x80\":{}}", 0, "unable to decode byte 0xc0"}, /* an overlong NUL */
        {"{\"a\\u0000b\":{}}", 0, "not valid JSON"},
        {"{\"a\x1b[2J\":{}}", 0, "not valid JSON"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
    char *path = scratch_path(*state, "nul");
    write_safetensors(path, "{}\0", 3, 0);
    assert_refused(path, SL_ERR_FORMAT, "not valid JSON");
}

static void open_duplicate_names_are_refused(void **state)
{
    static const bad_header cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "tensor \"a\" is listed twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" is listed twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "duplicate object key"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
}

static void open_bad_data_type_is_refused(void **state)
{
    static const bad_header cases[] = {
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "tensor \"a\": data type \"F33\" is unknown"},
        {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "data type \"f32\" is unknown"},
        {"{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "tensor \"a\": \"dtype\" must be a string"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\" must be a string"},
        {"{\"a\":[\"F32\"]}", 4, "tensor \"a\": its description must be an object"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
}

static void open_bad_shape_is_refused(void **state)
{
    static const bad_header cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\" must be an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "must be an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4, "from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,20]}}", 20,
         "tensor \"a\": [2, 3] of F32 takes 24 bytes, but \"data_offsets\" gives it 20"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
         "[3] of F4 is no possible number of bytes"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
}

static void open_overflowing_products_are_refused(void **state)
{
    static const bad_header cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "[4294967296, 4294967296] of F32 is no possible number of bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807],\"data_offsets\":[0,4]}}", 4,
         "is no possible number of bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4,0],"
         "\"data_offsets\":[0,0]}}",
         0, "is no possible number of bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9,9,9,9,9,9,9,9],\"data_offsets\":[0,0]}}", 0,
         "[9, 9, 9, 9, 9, 9, ...] of U8 takes 43046721 bytes"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
}

/* The reference accepts them. No tensor has such a shape. */
static void open_large_shape_without_elements_is_accepted(void **state)
{
    static const char *const headers[] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,2,0],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4611686018427387904,2],\"data_offsets\":[0,0]}}",
    };
    SCOPED(sl_device_list) *devices = NULL;
    assert_int_equal(sl_device_list_create("cpu", &devices, NULL), SL_OK);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        sli_safetensors_reader *reader;
        sl_tensor *tensor;
        char *path = scratch_path(*state, "empty.safetensors");
        write_safetensors(path, headers[i], strlen(headers[i]), 0);
        assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
        const sl_safetensors_info *info = sli_safetensors_get(reader, 0);
        assert_int_equal(info->bytes, 0);
        sl_shape shape = {3, {info->size[0], info->size[1], info->size[2]}};
        assert_int_equal(sl_tensor_create(sl_device_list_get(devices, 0), SL_MEMORY_PARAMETERS,
                                          SL_F32, &shape, &tensor),
                         SL_ERR_INVALID);
        sli_safetensors_close(&reader);
    }
}

static void open_bad_offsets_are_refused(void **state)
{
    static const bad_header cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\" must be two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, "must be two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, "must be two"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "from 0 up"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
         "must not run backwards, got [4, 0]"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7,
         "tensor \"a\" ends at byte 8 of the data, but the file has only 7"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[9223372036854775803,9223372036854775807]}}",
         4, "tensor \"a\" ends at byte 9223372036854775807 of the data, but the file has only 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
         12, "tensors \"a\" and \"b\" overlap"},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         8, "tensors \"a\" and \"b\" overlap"},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         12, "bytes 4 to 7 of the data, before tensor \"b\", belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5,
         "the tensors end at byte 4 of the data, but the file has 5"},
        {"{}", 1, "the tensors end at byte 0 of the data, but the file has 1"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
}

static void open_metadata_other_than_strings_is_refused(void **state)
{
    static const bad_header cases[] = {
        {"{\"__metadata__\":\"pt\"}", 0, "__metadata__ must be an object of strings"},
        {"{\"__metadata__\":null}", 0, "__metadata__ must be an object of strings"},
        {"{\"__metadata__\":{\"format\":\"pt\",\"step\":3}}", 0,
         "__metadata__ must hold strings only, but \"step\" is none"},
    };
    ASSERT_HEADERS_REFUSED(*state, cases);
}

static void open_hostile_name_is_shown_harmlessly(void **state)
{
    char header[600];
    char *path = scratch_path(*state, "hostile");
    const char *escape = "{\"a\\u001b[2J\":{}}";
    write_safetensors(path, escape, strlen(escape), 0);
    assert_refused(path, SL_ERR_FORMAT, "tensor \"a\\x1b[2J\": ");
    /* 300 characters of two bytes each are cut between two of them. */
    char name[601] = "";
    for (int i = 0; i < 150; i++)
        memcpy(name + 2 * i, "\xC3\xA9", 3);
    int length = snprintf(header, sizeof header, "{\"%s\":{}}", name);
    write_safetensors(path, header, (size_t)length, 0);
    assert_refused(path, SL_ERR_FORMAT, "\xC3\xA9...\": \"dtype\" must be a string");
}

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\",\"empty\":\"\"},"
    "\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[6,30]},"
    "\"bias\\u00e9\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
    "\"none\":{\"dtype\":\"I64\",\"shape\":[0,7],\"data_offsets\":[6,6]},"
    "\"half\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[30,32],\"later\":true},"
    "\"one\":{\"data_offsets\":[32,36],\"shape\":[],\"dtype\":\"I32\"},"
    "\"deep\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,2],\"data_offsets\":[36,38]}}   ";

static void open_good_file_lists_its_tensors(void **state)
{
    static const char *const order[] = {"bias\xC3\xA9", "none", "w", "half", "one", "deep"};
    char *path = scratch_path(*state, "good");
    write_safetensors(path, good, strlen(good), 38);
    sli_safetensors_reader *reader;
    assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
    assert_int_equal(sli_safetensors_count(reader), 6);
    for (size_t i = 0; i < 6; i++) {
        const sl_safetensors_info *info = sli_safetensors_get(reader, i);
        assert_string_equal(info->name, order[i]);
        assert_ptr_equal(sli_safetensors_find(reader, order[i]), info);
    }
    const sl_safetensors_info *w = sli_safetensors_find(reader, "w");
    assert_string_equal(w->type_name, "F32");
    assert_true(w->readable);
    assert_int_equal(w->dtype, SL_F32);
    assert_int_equal(w->dims, 2);
    assert_int_equal(w->size[0], 2);
    assert_int_equal(w->size[1], 3);
    assert_int_equal(w->bytes, 24);
    assert_int_equal(sli_safetensors_find(reader, "one")->dims, 0);
    assert_int_equal(sli_safetensors_find(reader, "deep")->dims, 5);
    assert_int_equal(sli_safetensors_find(reader, "half")->dtype, SL_F16);
    assert_false(sli_safetensors_find(reader, "deep")->readable);
    assert_null(sli_safetensors_find(reader, "W"));
    assert_null(sli_safetensors_find(reader, "__metadata__"));
    assert_string_equal(sli_safetensors_metadata(reader, "format"), "pt");
    assert_string_equal(sli_safetensors_metadata(reader, "empty"), "");
    assert_null(sli_safetensors_metadata(reader, "absent"));
    sli_safetensors_close(&reader);
    assert_null(reader);
    sli_safetensors_close(&reader);
}

static void open_file_without_tensors_or_metadata_succeeds(void **state)
{
    char *path = scratch_path(*state, "empty");
    write_safetensors(path, "{}", 2, 0);
    sli_safetensors_reader *reader;
    assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
    assert_int_equal(sli_safetensors_count(reader), 0);
    assert_null(sli_safetensors_find(reader, ""));
    assert_null(sli_safetensors_metadata(reader, "format"));
    sli_safetensors_close(&reader);
}

static void read_gives_each_tensor_its_bytes(void **state)
{
    char *path = scratch_path(*state, "good");
    write_safetensors(path, good, strlen(good), 38);
    sli_safetensors_reader *reader;
    assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
    static const struct {
        const char *name;
        unsigned char first;
        size_t bytes;
    } cases[] = {{"w", 6, 24}, {"bias\xC3\xA9", 0, 6}, {"one", 32, 4}, {"none", 6, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        unsigned char bytes[32];
        memset(bytes, 0xAA, sizeof bytes);
        const sl_safetensors_info *info = sli_safetensors_find(reader, cases[c].name);
        assert_int_equal(sli_safetensors_read(reader, info, bytes), SL_OK);
        for (size_t i = 0; i < sizeof bytes; i++)
            assert_int_equal(bytes[i], i < cases[c].bytes ? cases[c].first + i : 0xAA);
    }
    sli_safetensors_close(&reader);
}

static void read_type_that_sluice_lacks_is_refused_by_name(void **state)
{
    char *path = scratch_path(*state, "good");
    write_safetensors(path, good, strlen(good), 38);
    sli_safetensors_reader *reader;
    assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
    unsigned char bytes[2];
    sl_status status = sli_safetensors_read(reader, sli_safetensors_find(reader, "deep"), bytes);
    assert_int_equal(status, SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(sl_error_text(), "tensor \"deep\": its data type is U8"));
    sli_safetensors_close(&reader);
}

static void read_file_that_became_shorter_is_an_error(void **state)
{
    char *path = scratch_path(*state, "shrinks");
    write_safetensors(path, good, strlen(good), 38);
    sli_safetensors_reader *reader;
    assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
    assert_int_equal(truncate(path, (off_t)strlen(good) + 8 + 20), 0);
    unsigned char bytes[24];
    sl_status status = sli_safetensors_read(reader, sli_safetensors_find(reader, "w"), bytes);
    assert_int_equal(status, SL_ERR_IO);
    assert_non_null(strstr(sl_error_text(), "the file became shorter"));
    sli_safetensors_close(&reader);
}

int safetensors_reader_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(open_file_without_header_is_refused),
        TEST(open_absurd_header_length_is_refused),
        TEST(open_what_is_no_file_is_refused),
        TEST(open_invalid_json_is_refused),
        TEST(open_duplicate_names_are_refused),
        TEST(open_bad_data_type_is_refused),
        TEST(open_bad_shape_is_refused),
        TEST(open_overflowing_products_are_refused),
        TEST(open_large_shape_without_elements_is_accepted),
        TEST(open_bad_offsets_are_refused),
        TEST(open_metadata_other_than_strings_is_refused),
        TEST(open_hostile_name_is_shown_harmlessly),
        TEST(open_good_file_lists_its_tensors),
        TEST(open_file_without_tensors_or_metadata_succeeds),
        TEST(read_gives_each_tensor_its_bytes),
        TEST(read_type_that_sluice_lacks_is_refused_by_name),
        TEST(read_file_that_became_shorter_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
