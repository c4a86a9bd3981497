/* Rows of ids: what is read of JSON lines, and what is refused with its line. */
#include "io/scratch.h"

#include "support/check.h"
#include "text/rows.h"

static void labels_become_targets_of_the_position_before(void **state)
{
    static const char text[] = "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n\n"
                               "  \n{\"labels\": null, \"input_ids\": [1, 2]}";
    static const int32_t targets[] = {-100, 9, -100, 2, -100};
    scratch *in = *state;
    SCOPED(sl_rows) *rows = NULL;
    write_file(scratch_path(in, "a.jsonl"), text, strlen(text));
    check_error(sl_rows_read(in->path, &(sl_rows_options){0}, &rows), SL_ERR_FORMAT,
                "/a.jsonl: line 4: \"labels\" must be a list of as many");
    static const char good[] = "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n\n"
                               "  \n{\"input_ids\": [1, 2]}";
    write_file(in->path, good, strlen(good));
    check_ok(sl_rows_read(in->path, &(sl_rows_options){.ntokens = 10, .positions = 3}, &rows));
    assert_int_equal(rows->count, 2);
    assert_int_equal(rows->longest, 3);
    assert_int_equal(rows->largest, 9);
    assert_int_equal(rows->begins[1], 3);
    assert_memory_equal(rows->ids, ((const int32_t[]){5, 6, 7, 1, 2}), 5 * sizeof(int32_t));
    assert_memory_equal(rows->targets, targets, sizeof targets);
}

static void what_is_no_row_is_refused_with_its_line(void **state)
{
    static const char *const bad[][2] = {
        {"", "/a.jsonl: it has no rows"},
        {"[1, 2]", "line 2: it must be a JSON object"},
        {"{\"input_ids\": [1, 2]", "line 2: it must be a JSON object"},
        {"{\"texts\": \"a\"}", "line 2: it must have \"input_ids\", \"text\", \"prompt\" and"},
        {"{\"input_ids\": []}", "line 2: it must have a list \"input_ids\" that is not empty"},
        {"{\"input_ids\": [1, 10]}",
         "line 2: number 2 of \"input_ids\" must be an id from 0 to 9, got 10"},
        {"{\"input_ids\": [-100, 1]}", "number 1 of \"input_ids\" must be an id from 0 to 9, got"},
        {"{\"input_ids\": [1, 2.5]}", "got 2.5"},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}",
         "\"labels\" must be a list of as many numbers as \"input_ids\", 2, got 1"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, -1]}",
         "number 2 of \"labels\" must be an id from 0 to 9, or -100, got -1"},
        {"{\"input_ids\": [1, 2, 3, 4, 5]}", "its 5 tokens are more than the model's 4 positions"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, -100]}", "none of its rows has a target"},
        {"{\"input_ids\": [1]}", "none of its rows has a target"},
    };
    scratch *in = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_rows *rows;
        char text[256];
        snprintf(text, sizeof text, "\n%s\n", bad[i][0]);
        write_file(scratch_path(in, "a.jsonl"), text, strlen(text));
        check_error(sl_rows_read(in->path, &(sl_rows_options){.ntokens = 10, .positions = 4},
                                 &rows),
                    SL_ERR_FORMAT, bad[i][1]);
        assert_null(rows);
    }
}

static void check_path(const char *data, sl_split split, const char *expected)
{
    FREED char *path = NULL;
    check_ok(sl_rows_path(data, split, &path));
    if (expected)
        assert_string_equal(path, expected);
    else
        assert_null(path);
}

static void data_are_rows_by_the_names_of_files(void **state)
{
    scratch *in = *state;
    char expected[600];
    check_path("a.jsonl", SL_SPLIT_TEST, "a.jsonl");
    check_path("a.json", SL_SPLIT_TRAIN, NULL);
    check_path(".jsonl", SL_SPLIT_TRAIN, NULL);
    check_path(in->directory, SL_SPLIT_TRAIN, NULL);
    write_file(scratch_path(in, "train.jsonl"), "", 0);
    snprintf(expected, sizeof expected, "%s/train.jsonl", in->directory);
    check_path(in->directory, SL_SPLIT_TRAIN, expected);
    check_path(in->directory, SL_SPLIT_VALID, NULL);
}

int rows_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_become_targets_of_the_position_before),
        cmocka_unit_test(what_is_no_row_is_refused_with_its_line),
        cmocka_unit_test(data_are_rows_by_the_names_of_files),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
