/* Files of tokens as llm.c, nanoGPT and megatron-core 0.16 write them: 60 tokens, the same in all.
 */
#include "io/scratch.h"

#include "support/check.h"
#include "text/rows.h"

#include <jansson.h>

enum { TOKENS = 60 };

static const char *golden(const char *name, char path[4096])
{
    const char *source = getenv("SLUICE_SOURCE_DIR");
    snprintf(path, 4096, "%s/tests/text/token_files/%s", source ? source : ".", name);
    return path;
}

/* The tokens of megatron.json's documents, one after the other. */
static void expected_tokens(int32_t tokens[TOKENS])
{
    char path[4096];
    size_t i, j, k, count = 0;
    json_t *golden_is = json_load_file(golden("megatron.json", path), 0, NULL), *document,
           *sequence, *token;
    json_array_foreach(json_object_get(golden_is, "documents"), i, document)
        json_array_foreach(document, j, sequence) json_array_foreach(sequence, k, token)
    {
        assert_true(count < TOKENS);
        tokens[count++] = (int32_t)json_integer_value(token);
    }
    assert_int_equal(count, TOKENS);
    json_decref(golden_is);
}

static void every_form_has_the_same_tokens(void **state)
{
    static const struct {
        const char *name;
        sl_token_type type;
    } files[] = {{"llmc_gpt2.bin", SL_TOKENS_BY_HEADER},
                 {"llmc_llama3.bin", SL_TOKENS_BY_HEADER},
                 {"megatron_uint16.bin", SL_TOKENS_BY_HEADER},
                 {"megatron_int32.bin", SL_TOKENS_BY_HEADER},
                 {"nanogpt.bin", SL_TOKENS_UINT16}};
    int32_t expected[TOKENS], ids[TOKENS];
    char path[4096];
    expected_tokens(expected);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        sli_token_file file;
        check_ok(sli_token_file_open(golden(files[i].name, path), files[i].type, &file));
        assert_int_equal(file.count, TOKENS);
        check_ok(sli_token_file_read(&file, 0, TOKENS, 1000, ids));
        assert_memory_equal(ids, expected, sizeof ids);
        sli_token_file_clear(&file);
    }
}

static void rows_are_consecutive_tokens_and_share_one(void **state)
{
    enum { LENGTH = 8 };
    int32_t expected[TOKENS], ids[LENGTH], targets[LENGTH];
    char path[4096];
    SCOPED(sl_rows) *rows = NULL;
    const sl_rows_options options = {.ntokens = 100, .length = LENGTH};
    expected_tokens(expected);
    check_ok(sl_rows_read(golden("llmc_gpt2.bin", path), &options, &rows));
    assert_int_equal(rows->count, (TOKENS - 1) / LENGTH);
    for (int64_t row = 0; row < rows->count; row++) {
        check_ok(sli_rows_copy(rows, row, false, ids));
        check_ok(sli_rows_copy(rows, row, true, targets));
        assert_memory_equal(ids, expected + row * LENGTH, sizeof ids);
        assert_memory_equal(targets, expected + row * LENGTH + 1, sizeof targets);
    }
}

/* KiB of the file's pages that are in this process's memory; -1: the system does not say. */
static long mapped_kib(const char *path)
{
    char line[4096];
    long kib = -1;
    bool is_ours = false;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        if (strstr(line, path))
            is_ours = true;
        if (is_ours && sscanf(line, "Rss: %ld kB", &kib) == 1)
            break;
    }
    if (maps)
        fclose(maps);
    return kib;
}

static void pages_are_dropped_behind_the_reader(void **state)
{
    enum { ALL = 1 << 23, ROW = 1024 };
    scratch *dir = *state;
    static uint16_t tokens[ALL / 2];
    int32_t ids[ROW];
    sli_token_file file;
    unsigned seed = test_seed(3);
    for (int i = 0; i < ALL / 2; i++)
        tokens[i] = (uint16_t)(i * 31);
    char *path = scratch_path(dir, "large.bin");
    write_file(path, tokens, sizeof tokens);
    check_ok(sli_token_file_open(path, SL_TOKENS_UINT16, &file));
    if (mapped_kib(path) < 0)
        skip();
    for (int row = 0; row < 4000; row++) {
        int64_t first = test_draw(&seed, 0, ALL / 2 - ROW);
        check_ok(sli_token_file_read(&file, first, ROW, 1 << 16, ids));
        assert_int_equal(ids[ROW - 1], tokens[first + ROW - 1]);
        if (row % 100 == 0)
            assert_in_range(mapped_kib(path), 0, ALL / 2048); /* half of the file */
    }
    sli_token_file_clear(&file);
}

static void the_next_name_counts_up(void **state)
{
    static const char *const names[][2] = {{"a/train.bin", "a/train_000001.bin"},
                                           {"train_000000.bin", "train_000001.bin"},
                                           {"train_000199.bin", "train_000200.bin"},
                                           {"train_00019.bin", "train_00019_000001.bin"},
                                           {"train_00x199.bin", "train_00x199_000001.bin"},
                                           {"_999998.bin", "_999999.bin"},
                                           {"train_999999.bin", NULL},
                                           {"train.idx", NULL},
                                           {".bin", NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        FREED char *next = NULL;
        check_ok(sli_token_file_next(names[i][0], &next));
        if (names[i][1])
            assert_string_equal(next, names[i][1]);
        else
            assert_null(next);
    }
}

/* A row may begin in one file and end in the next. */
static void numbered_files_are_one_stream(void **state)
{
    enum { LENGTH = 7 };
    static const uint16_t first[] = {1, 2, 3, 4, 5}, second[] = {6, 7}, third[] = {8, 9, 10, 11};
    scratch *dir = *state;
    FREED char *found = NULL;
    SCOPED(sl_rows) *rows = NULL;
    int32_t ids[LENGTH];
    write_file(scratch_path(dir, "val.bin"), (const char *)first, sizeof first);
    write_file(scratch_path(dir, "val_000001.bin"), (const char *)second, sizeof second);
    write_file(scratch_path(dir, "val_000002.bin"), (const char *)third, sizeof third);
    check_ok(sl_rows_path(dir->directory, SL_SPLIT_VALID, &found));
    const sl_rows_options options = {.ntokens = 12,
                                     .length = LENGTH,
                                     .token_type = SL_TOKENS_UINT16};
    check_ok(sl_rows_read(found, &options, &rows));
    assert_int_equal(rows->count, 1);
    check_ok(sli_rows_copy(rows, 0, true, ids));
    for (int i = 0; i < LENGTH; i++)
        assert_int_equal(ids[i], i + 2);
}

/* Copies a golden, and changes a byte of it, or cuts it where `byte` is below 0. */
static const char *changed(scratch *dir, const char *name, size_t place, int byte)
{
    char path[4096], text[4096];
    size_t bytes = read_file(golden(name, path), text, sizeof text);
    if (byte >= 0)
        text[place] = (char)byte;
    write_file(scratch_path(dir, name), text, byte >= 0 ? bytes : place);
    return dir->path;
}

static void what_contradicts_itself_is_refused(void **state)
{
    scratch *dir = *state;
    char path[4096];
    sli_token_file file;
    check_error(sli_token_file_open(changed(dir, "llmc_gpt2.bin", 4, 2), 0, &file), SL_ERR_FORMAT,
                "its header must be of version 1, got 2");
    check_error(sli_token_file_open(changed(dir, "llmc_llama3.bin", 8, 61), 0, &file),
                SL_ERR_FORMAT, "its header says 61 tokens, which are 1268 bytes, but it has 1264");
    check_error(sli_token_file_open(changed(dir, "llmc_gpt2.bin", 1100, -1), 0, &file),
                SL_ERR_FORMAT, "its header says 60 tokens, which are 1144 bytes, but it has 1100");
    check_error(sli_token_file_open(golden("nanogpt.bin", path), 0, &file), SL_ERR_INVALID,
                "it has neither llm.c's header nor an .idx beside it");
    check_error(sli_token_file_open(changed(dir, "nanogpt.bin", 7, -1), SL_TOKENS_UINT16, &file),
                SL_ERR_FORMAT, "its 7 bytes are no whole number of 2-byte tokens");
    check_error(sli_token_file_open(changed(dir, "nanogpt.bin", 0, -1), SL_TOKENS_UINT16, &file),
                SL_ERR_FORMAT, "it has no tokens");
    changed(dir, "megatron_uint16.idx", 0, 'N');
    const char *bin = changed(dir, "megatron_uint16.bin", 0, 0);
    check_error(sli_token_file_open(bin, 0, &file), SL_ERR_FORMAT,
                "it does not begin as an index of Megatron");
    changed(dir, "megatron_uint16.idx", 17, 7);
    bin = changed(dir, "megatron_uint16.bin", 0, 0);
    check_error(sli_token_file_open(bin, 0, &file), SL_ERR_FORMAT, "got version 1 and type 7");
    changed(dir, "megatron_uint16.idx", 34, 200);
    bin = changed(dir, "megatron_uint16.bin", 0, 0);
    check_error(sli_token_file_open(bin, 0, &file), SL_ERR_FORMAT, "sequence 1 must begin at byte");
    changed(dir, "megatron_uint16.idx", 100, -1);
    bin = changed(dir, "megatron_uint16.bin", 0, 0);
    check_error(sli_token_file_open(bin, 0, &file), SL_ERR_FORMAT, "it has 100 bytes, too few for");
    char idx[512];
    write_file(scratch_path(dir, "megatron_uint16.idx"), idx,
               read_file(golden("megatron_uint16.idx", path), idx, sizeof idx));
    check_error(sli_token_file_open(changed(dir, "megatron_uint16.bin", 118, -1), 0, &file),
                SL_ERR_FORMAT, "has 118 bytes");
}

static void ids_over_the_vocabulary_are_refused_with_their_place(void **state)
{
    int32_t ids[TOKENS];
    char path[4096];
    sli_token_file file;
    check_ok(sli_token_file_open(golden("llmc_gpt2.bin", path), 0, &file));
    check_error(sli_token_file_read(&file, 0, TOKENS, 65, ids), SL_ERR_FORMAT,
                "llmc_gpt2.bin: its token 0 must be an id from 0 to 64, got 65");
    sli_token_file_clear(&file);
    sl_rows *rows;
    check_error(sl_rows_read(path, &(sl_rows_options){.length = 8}, &rows), SL_ERR_INVALID,
                "a tokenizer must be named, or a model");
    check_error(sl_rows_read(path, &(sl_rows_options){.ntokens = 99, .length = TOKENS}, &rows),
                SL_ERR_FORMAT, "its 60 tokens are no row of 60 and the target behind it");
    assert_null(rows);
}

int token_file_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_has_the_same_tokens),
        cmocka_unit_test(rows_are_consecutive_tokens_and_share_one),
        cmocka_unit_test_setup_teardown(numbered_files_are_one_stream, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(the_next_name_counts_up),
        cmocka_unit_test_setup_teardown(pages_are_dropped_behind_the_reader, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_contradicts_itself_is_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(ids_over_the_vocabulary_are_refused_with_their_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
