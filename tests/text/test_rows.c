/* Rows of ids: what is read of JSON lines, and what is refused with its line. */
#include "io/scratch.h"

#include "support/check.h"
#include "text/kept_rows.h"

static void labels_become_targets_of_the_position_before(void **state)
{
    static const char text[] = "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n\n"
                               "  \n{\"labels\": null, \"input_ids\": [1, 2]}";
    static const int32_t targets[] = {-100, 9, -100, 2, -100};
    scratch *dir = *state;
    SCOPED(sl_rows) *rows = NULL;
    write_file(scratch_path(dir, "a.jsonl"), text, strlen(text));
    check_error(sl_rows_read(dir->path, &(sl_rows_options){0}, &rows), SL_ERR_FORMAT,
                "/a.jsonl: line 4: \"labels\" must be a list of as many");
    static const char good[] = "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n\n"
                               "  \n{\"input_ids\": [1, 2]}";
    write_file(dir->path, good, strlen(good));
    check_ok(sl_rows_read(dir->path, &(sl_rows_options){.ntokens = 10, .positions = 3}, &rows));
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
    scratch *dir = *state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_rows *rows;
        char text[256];
        snprintf(text, sizeof text, "\n%s\n", bad[i][0]);
        write_file(scratch_path(dir, "a.jsonl"), text, strlen(text));
        check_error(sl_rows_read(dir->path, &(sl_rows_options){.ntokens = 10, .positions = 4},
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
    scratch *dir = *state;
    char expected[600];
    check_path("a.jsonl", SL_SPLIT_TEST, "a.jsonl");
    check_path("a.json", SL_SPLIT_TRAIN, NULL);
    check_path(".jsonl", SL_SPLIT_TRAIN, NULL);
    check_path(dir->directory, SL_SPLIT_TRAIN, NULL);
    write_file(scratch_path(dir, "train.jsonl"), "", 0);
    snprintf(expected, sizeof expected, "%s/train.jsonl", dir->directory);
    check_path(dir->directory, SL_SPLIT_TRAIN, expected);
    check_path(dir->directory, SL_SPLIT_VALID, NULL);
}

enum { MANY = 60000 };

/* Lines of 1 to 7 ids, of which every tenth is blank; `bad` lines are none. Parsed in many parts.
 */
static void write_many_lines(scratch *dir, const int *bad, int bad_count)
{
    FILE *file = fopen(scratch_path(dir, "many.jsonl"), "w");
    assert_non_null(file);
    for (int line = 0; line < MANY; line++) {
        bool is_bad = false;
        for (int i = 0; i < bad_count; i++)
            is_bad |= line == bad[i];
        if (line % 10 == 3) {
            fputs(" \n", file);
            continue;
        }
        fprintf(file, "{\"%s\": [%d", is_bad ? "ids" : "input_ids", line);
        for (int i = 0; i < line % 7; i++)
            fprintf(file, ", %d", line + i);
        fputs("]}\n", file);
    }
    assert_int_equal(fclose(file), 0);
}

static void lines_parsed_side_by_side_are_in_their_order(void **state)
{
    scratch *dir = *state;
    SCOPED(sl_rows) *rows = NULL;
    write_many_lines(dir, NULL, 0);
    check_ok(sl_rows_read(dir->path, &(sl_rows_options){0}, &rows));
    assert_int_equal(rows->count, MANY - MANY / 10);
    assert_int_equal(rows->longest, 7);
    int64_t row = 0, token = 0;
    for (int line = 0; line < MANY; line++) {
        if (line % 10 == 3)
            continue;
        assert_int_equal(rows->begins[row++], token);
        assert_int_equal(rows->ids[token], line);
        token += line % 7;
        assert_int_equal(rows->targets[token], -100);
        assert_int_equal(rows->ids[token++], line % 7 > 0 ? line + line % 7 - 1 : line);
    }
    assert_int_equal(rows->begins[row], token);
    assert_int_equal(rows->arrays[SLI_ROW_BEGINS].bytes, 8 * (row + 1));
    assert_int_equal(rows->arrays[SLI_ROW_IDS].bytes, 4 * token);
    assert_int_equal(rows->arrays[SLI_ROW_TARGETS].bytes, 4 * token);
}

static void first_bad_line_of_all_is_named(void **state)
{
    static const int bad[] = {59998, 41234, 41236};
    scratch *dir = *state;
    sl_rows *rows;
    write_many_lines(dir, bad, 3);
    check_error(sl_rows_read(dir->path, &(sl_rows_options){0}, &rows), SL_ERR_FORMAT,
                "/many.jsonl: line 41235: it must have");
}

/* Kept, read again, and not those of something else. */
static void kept_rows_are_those_that_were_written(void **state)
{
    scratch *dir = *state;
    char path[512];
    int64_t documents = 0;
    const uint64_t bytes = 5 * sizeof(int32_t);
    SCOPED(sl_rows) *rows = NULL, *packed = NULL;
    SCOPED(sl_rows) *kept = NULL;
    json_t *mine = json_pack("{si}", "lines", 1), *other = json_pack("{si}", "lines", 2);
    static const char lines[] = "{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 9]}\n"
                                "{\"input_ids\": [1, 2]}";
    write_file(scratch_path(dir, "b.jsonl"), lines, strlen(lines));
    check_ok(sl_rows_read(dir->path, &(sl_rows_options){0}, &rows));
    check_ok(sli_rows_pack(rows, 8, &packed));
    snprintf(path, sizeof path, "%s", scratch_path(dir, "b.rows"));
    check_ok(sli_kept_rows_read(path, mine, &kept, &documents));
    assert_null(kept);
    check_ok(sli_kept_rows_write(path, mine, packed, 2));
    check_ok(sli_kept_rows_read(path, other, &kept, &documents));
    assert_null(kept);
    check_ok(sli_kept_rows_read(path, mine, &kept, &documents));
    assert_int_equal(documents, 2);
    assert_int_equal(kept->count, packed->count);
    assert_int_equal(kept->longest, packed->longest);
    assert_int_equal(kept->largest, packed->largest);
    assert_int_equal(kept->has_targets, true);
    assert_int_equal(kept->begins[1], 5);
    assert_memory_equal(kept->ids, packed->ids, bytes);
    assert_memory_equal(kept->targets, packed->targets, bytes);
    assert_memory_equal(kept->numbers, packed->numbers, bytes);
    sl_rows_destroy(&kept);
    check_ok(sli_kept_rows_write(path, other, rows, 0)); /* in its place, without numbers */
    check_ok(sli_kept_rows_read(path, other, &kept, &documents));
    assert_null(kept->numbers);
    sl_rows_destroy(&kept);
    write_file(path, "a text of the user", 18);
    static const char refusal[] = "b.rows: the run keeps its rows there, but this file is not one "
                                  "that a run has kept: move it away";
    check_error(sli_kept_rows_read(path, other, &kept, &documents), SL_ERR_INVALID, refusal);
    check_error(sli_kept_rows_write(path, other, rows, 0), SL_ERR_INVALID, refusal);
    json_decref(mine);
    json_decref(other);
}

int rows_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_become_targets_of_the_position_before),
        cmocka_unit_test(what_is_no_row_is_refused_with_its_line),
        cmocka_unit_test(data_are_rows_by_the_names_of_files),
        cmocka_unit_test(lines_parsed_side_by_side_are_in_their_order),
        cmocka_unit_test(first_bad_line_of_all_is_named),
        cmocka_unit_test(kept_rows_are_those_that_were_written),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
