/* Files go both ways between sluice and the format's reference implementation, and both judge
 * damaged files alike. Needs Python with `safetensors`: scripts/test makes it. */
#include "io/safetensors/format.h"
#include "scratch.h"

#include "sluice/safetensors.h"

#include <time.h>

static const char *python(void)
{
    static char path[4096];
    const char *given = getenv("SLUICE_PYTHON"), *source = getenv("SLUICE_SOURCE_DIR");
    if (given && given[0])
        return given;
    snprintf(path, sizeof path, "%s/.venv/bin/python3", source ? source : ".");
    return path;
}

static int run_reference(const char *command, const char *path, unsigned long long seed)
{
    char line[8192];
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(line, sizeof line, "'%s' '%s/tests/io/safetensors_reference.py' %s '%s' %s", python(),
             source ? source : ".", command, path, "");
    if (seed)
        snprintf(line + strlen(line), sizeof line - strlen(line), "%llu", seed);
    return system(line);
}

static void file_from_python_is_read(void **state)
{
    char *path = scratch_path(*state, "from-python");
    assert_int_equal(run_reference("write", path, 0), 0);
    sli_safetensors_reader *reader;
    assert_int_equal(sli_safetensors_open(path, &reader), SL_OK);
    assert_int_equal(sli_safetensors_count(reader), 8);
    assert_string_equal(sli_safetensors_metadata(reader, "format"), "pt");
    assert_string_equal(sli_safetensors_metadata(reader, "\xC3\xA4"), "\xC3\xB6\n");
    float w[6], one;
    double d[2];
    int32_t i[2];
    int64_t l;
    uint16_t b[6];
    const struct {
        const char *name;
        sl_dtype dtype;
        void *to;
        size_t bytes;
    } expected[] = {{"w", SL_F32, w, sizeof w},
                    {"d", SL_F64, d, sizeof d},
                    {"i", SL_I32, i, sizeof i},
                    {"l", SL_I64, &l, sizeof l},
                    {"b", SL_BF16, b, sizeof b},
                    {"gr\xC3\xBC\xC3\x9F"
                     "e",
                     SL_F32, &one, 4},
                    {"none", SL_F32, NULL, 0}};
    for (size_t k = 0; k < sizeof expected / sizeof expected[0]; k++) {
        const sl_safetensors_info *info = sli_safetensors_find(reader, expected[k].name);
        assert_non_null(info);
        assert_true(info->readable);
        assert_int_equal(info->dtype, expected[k].dtype);
        assert_int_equal(info->bytes, expected[k].bytes);
        assert_int_equal(sli_safetensors_read(reader, info, expected[k].to), SL_OK);
    }
    assert_int_equal(sli_safetensors_find(reader, "h")->dtype, SL_F16);
    for (int k = 0; k < 6; k++) {
        uint32_t widened = (uint32_t)b[k] << 16;
        float value;
        memcpy(&value, &widened, sizeof value);
        assert_true(w[k] == (float)k / 4 && value == w[k]);
    }
    assert_true(d[0] == 1.0 / 3 && d[1] == -2.5 && one == 7.0F);
    assert_true(i[0] == -1 && i[1] == INT32_MAX && l == INT64_MIN);
    sli_safetensors_close(&reader);
}

static void file_for_python_is_understood(void **state)
{
    char *path = scratch_path(*state, "for-python");
    float w[6] = {0.5F, 1.5F, 2.5F, 3.5F, 4.5F, 5.5F};
    int64_t l = INT64_MIN;
    int32_t a[2] = {7, 8};
    const sl_safetensors_item items[] = {{"w", SL_F32, {2, {2, 3}}, w},
                                         {"l", SL_I64, {0, {0}}, &l},
                                         {"none", SL_F64, {2, {3, 0}}, NULL},
                                         {"a \"name\"\n", SL_I32, {1, {2}}, a}};
    const sl_metadata metadata[] = {{"format", "pt"}, {"note", "quotes \" and \\ and \xC3\xA9"}};
    assert_int_equal(sl_safetensors_save(path, items, 4, metadata, 2), SL_OK);
    assert_int_equal(run_reference("check", path, 0), 0);
}

static void damaged_files_are_judged_as_the_reference_judges_them(void **state)
{
    scratch *dir = *state;
    const char *given = getenv("SLUICE_TEST_SEED");
    unsigned long long seed = given ? strtoull(given, NULL, 0) : (unsigned long long)time(NULL);
    print_message("SLUICE_TEST_SEED=%llu\n", seed);
    assert_int_equal(run_reference("judge", dir->directory, seed), 0);
    FILE *verdicts = fopen(scratch_path(dir, "verdicts"), "r");
    assert_non_null(verdicts);
    char name[16], verdict[16];
    int counts[2] = {0, 0}, differences = 0;
    while (fscanf(verdicts, "%15s %15s", name, verdict) == 2) {
        sli_safetensors_reader *reader;
        int accepted = strcmp(verdict, "accepted") == 0;
        sl_status status = sli_safetensors_open(scratch_path(dir, name), &reader);
        sli_safetensors_close(&reader);
        counts[accepted]++;
        if ((status == SL_OK) == accepted)
            continue;
        differences++;
        print_error("file %s is %s by the reference; here: %s\n", name, verdict,
                    status == SL_OK ? "accepted" : sl_error_text());
    }
    fclose(verdicts);
    assert_int_equal(differences, 0);
    assert_true(counts[0] > 50 && counts[1] > 50); /* both kinds were drawn */
}

int safetensors_python_tests(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_create, scratch_remove)
    const struct CMUnitTest tests[] = {
        TEST(file_from_python_is_read),
        TEST(file_for_python_is_understood),
        TEST(damaged_files_are_judged_as_the_reference_judges_them),
    };
    char line[4200];
    snprintf(line, sizeof line, "'%s' -c 'import numpy, safetensors.numpy' 2>/dev/null", python());
    if (system(line) != 0) {
        printf("skipped: %s has no numpy and safetensors; scripts/test installs them\n", python());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
