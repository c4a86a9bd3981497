#include "sluice/app/text.h"
#include "support/check.h"

#include <stdio.h>
#include <string.h>

static void path_is_one_source_without_a_name(void **state)
{
    static const char *const paths[] = {"text",  "a,b",         "./a=1:b", "dir/a=1:b",
                                        "a=b/c", "C:\\a=b.txt", "=1:b",    "a=1"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        sl_sources sources;
        check_ok(sl_sources_parse(paths[i], &sources));
        assert_int_equal(sources.count, 1);
        assert_null(sources.source[0].name);
        assert_true(sources.source[0].weight == 1);
        assert_string_equal(sources.source[0].path, paths[i]);
        assert_false(sl_is_source(paths[i]));
        sl_sources_free(&sources);
    }
}

static void sources_have_names_weights_and_paths(void **state)
{
    sl_sources sources;
    check_ok(sl_sources_parse("a=0.7:text/x,wiki-2.b=3e2:C:y,c_=.5:/z=1", &sources));
    assert_int_equal(sources.count, 3);
    assert_string_equal(sources.source[0].name, "a");
    assert_string_equal(sources.source[1].name, "wiki-2.b");
    assert_string_equal(sources.source[2].name, "c_");
    assert_true(sources.source[0].weight == 0.7 && sources.source[1].weight == 300 &&
                sources.source[2].weight == 0.5);
    assert_string_equal(sources.source[0].path, "text/x");
    assert_string_equal(sources.source[1].path, "C:y");
    assert_string_equal(sources.source[2].path, "/z=1");
    sl_sources_free(&sources);
    assert_null(sources.source);
}

static void wrong_sources_are_refused(void **state)
{
    static const char *const wrong[][2] = {
        {"a=x:d", "the weight of source a must be a number above 0, got \"x\""},
        {"a=:d", "the weight of source a must be a number above 0, got \"\""},
        {"a=0:d", "the weight of source a must be a number above 0, got \"0\""},
        {"a=-1:d", "the weight of source a must be a number above 0, got \"-1\""},
        {"a=nan:d", "got \"nan\""},
        {"a=inf:d", "got \"inf\""},
        {"a=1e999:d", "got \"1e999\""},
        {"a=0x1:d", "got \"0x1\""},
        {"a=1 :d", "got \"1 \""},
        {"a=1:d,a=2:e", "two sources are called a"},
        {"a=1:", "source a has no path"},
        {"a=1:d,e", "got \"e\" among sources"},
        {"d,a=1:e", "got \"d\" among sources"},
        {"a=1:d,", "got \"\" among sources"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sl_sources sources;
        check_error(sl_sources_parse(wrong[i][0], &sources), SL_ERR_INVALID, wrong[i][1]);
        assert_null(sources.source);
    }
}

static void more_sources_than_the_most_are_refused(void **state)
{
    char data[16 * (SL_MAX_SOURCES + 1)] = "";
    sl_sources sources;
    for (int i = 0; i <= SL_MAX_SOURCES; i++) {
        if (i == SL_MAX_SOURCES) {
            check_ok(sl_sources_parse(data, &sources));
            assert_int_equal(sources.count, SL_MAX_SOURCES);
            sl_sources_free(&sources);
        }
        sprintf(data + strlen(data), "%ss%d=1:d", i ? "," : "", i);
    }
    check_error(sl_sources_parse(data, &sources), SL_ERR_INVALID, "more than 64 sources");
}

int sources_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(path_is_one_source_without_a_name),
        cmocka_unit_test(sources_have_names_weights_and_paths),
        cmocka_unit_test(wrong_sources_are_refused),
        cmocka_unit_test(more_sources_than_the_most_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
