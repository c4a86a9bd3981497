/* Writing token files: the ids of texts in one file or several, the manifest beside them, and what
 * is left of a writer that was killed. */
#include "io/scratch.h"

#include "support/check.h"
#include "text/drawn_texts.h"
#include "text/rows.h"
#include "text/token_manifest.h"
#include "text/token_writer.h"

#include <signal.h>
#include <sys/wait.h>

/* ---- Several files ------------------------------------------------------------------------ */

enum { TEXTS = 3, PATH = 600, MOST_TOKENS = 1 << 14, MOST_FILES = 10 };

/* Texts in files, and where their tokens go. */
typedef struct fixture {
    scratch *in;
    sl_vocab *vocab;
    char paths[TEXTS][PATH], to[PATH];
    const char *texts[TEXTS];
    int32_t ids[MOST_TOKENS]; /* of all texts */
    int64_t count;
} fixture;

static void make_texts(fixture *made, scratch *in, unsigned *seed)
{
    static char text[8 * 400];
    *made = (fixture){.in = in, .vocab = make_vocab("gpt2", "")};
    snprintf(made->to, PATH, "%s", scratch_path(in, "train.bin"));
    for (int i = 0; i < TEXTS; i++) {
        sl_tokens ids;
        size_t bytes = draw_text(seed, text, test_draw(seed, 1, 400));
        snprintf(made->paths[i], PATH, "%s/text%d", in->directory, i);
        made->texts[i] = made->paths[i];
        write_file(made->paths[i], text, bytes);
        check_ok(sl_tokens_encode(made->vocab, text, bytes, false, &ids));
        assert_true(made->count + ids.count <= MOST_TOKENS);
        memcpy(made->ids + made->count, ids.ids, (size_t)ids.count * sizeof *ids.ids);
        made->count += ids.count;
        sl_tokens_free(&ids);
    }
}

/* The stream that begins with the file has all ids, and its files as many as they can have. */
static void check_stream(const fixture *texts, int64_t file_tokens)
{
    SCOPED(sl_rows) *rows = NULL;
    const sl_rows_options options = {.ntokens = 1000, .vocab = texts->vocab, .length = 1};
    FREED int32_t *ids = malloc(MOST_TOKENS * sizeof *ids);
    check_ok(sl_rows_read(texts->to, &options, &rows));
    assert_int_equal(rows->tokens, texts->count);
    assert_int_equal(rows->file_count, (texts->count + file_tokens - 1) / file_tokens);
    for (size_t i = 0, first = 0; i < rows->file_count; first += (size_t)rows->files[i++].count) {
        bool is_last = i + 1 == rows->file_count;
        assert_true(is_last || rows->files[i].count == file_tokens);
        check_ok(sli_token_file_read(&rows->files[i], 0, rows->files[i].count, 1000, ids + first));
    }
    assert_memory_equal(ids, texts->ids, (size_t)texts->count * sizeof *ids);
}

static sl_status write_texts(const fixture *texts, int64_t file_tokens, bool resume)
{
    sl_tokens_written written;
    const sli_tokens_limits limits = {64, 1000, file_tokens};
    const sl_tokens_writing writing = {.resume = resume};
    return sli_tokens_write(texts->vocab, texts->texts, TEXTS, texts->to, &writing, &limits,
                            &written);
}

static void the_next_file_begins_where_one_is_full(void **state)
{
    unsigned seed = test_seed(2);
    fixture texts;
    make_texts(&texts, *state, &seed);
    for (int round = 0; round < 10; round++) {
        int64_t file_tokens = round == 0 ? texts.count
                              : round == 1
                                  ? texts.count - 1
                                  : test_draw(&seed, (int)texts.count / 6, 2 * (int)texts.count);
        check_ok(write_texts(&texts, file_tokens, false));
        check_stream(&texts, file_tokens); /* also where an older output had more files */
        int64_t files = (texts.count + file_tokens - 1) / file_tokens;
        assert_int_equal(scratch_entries(texts.in, 0), TEXTS + files + 1);
    }
    sl_vocab_destroy(&texts.vocab);
}

static void a_file_of_other_tokens_is_not_replaced(void **state)
{
    unsigned seed = test_seed(3);
    char other[8];
    fixture texts;
    make_texts(&texts, *state, &seed);
    write_file(scratch_path(texts.in, "train_000001.bin"), "other", 5);
    check_error(
        write_texts(&texts, texts.count - 1, false), SL_ERR_INVALID,
        "train_000001.bin: it would be read after these tokens or be replaced by more of them");
    assert_int_equal(read_file(texts.in->path, other, sizeof other), 5);
    assert_int_equal(access(texts.to, F_OK), -1);
    assert_int_equal(scratch_entries(texts.in, 0), TEXTS + 1);
    snprintf(texts.to, PATH, "%s", scratch_path(texts.in, "tokens"));
    check_error(write_texts(&texts, texts.count - 1, false), SL_ERR_UNSUPPORTED,
                "no file comes after one of this name: call it NAME.bin");
    write_file(scratch_path(texts.in, "tokens.manifest.json"), "{}", 2);
    check_error(write_texts(&texts, INT32_MAX, false), SL_ERR_FORMAT,
                "tokens.manifest.json: expected what sluice tokenize says of its tokens");
    sl_vocab_destroy(&texts.vocab);
}

/* ---- What reading is held to -------------------------------------------------------------- */

static void tokens_of_another_tokenizer_are_refused(void **state)
{
    unsigned seed = test_seed(4);
    fixture texts;
    sl_rows *rows;
    make_texts(&texts, *state, &seed);
    check_ok(write_texts(&texts, texts.count, false));
    SCOPED(sl_vocab) *other = make_vocab("gpt2", "IAo= 264\n"), *of_more = make_vocab("cl100k", "");
    sl_rows_options options = {.ntokens = 1000, .vocab = other, .length = 1};
    check_error(sl_rows_read(texts.to, &options, &rows), SL_ERR_INVALID,
                "train.bin: these are the tokens of another tokenizer: train.manifest.json says");
    options.vocab = of_more;
    check_error(sl_rows_read(texts.to, &options, &rows), SL_ERR_INVALID, "another tokenizer");
    options.vocab = NULL;
    check_ok(sl_rows_read(texts.to, &options, &rows));
    sl_rows_destroy(&rows);
    sl_vocab_destroy(&texts.vocab);
}

/* The forms that a tokenizer can have are one tokenizer. */
static void a_tokenizer_has_one_checksum_in_all_its_forms(void **state)
{
    char checksum[SLI_CHECKSUM_BYTES], again[SLI_CHECKSUM_BYTES];
    for (int i = 0; sl_splitters[i]; i++) {
        SCOPED(sl_vocab) *ranks = make_vocab(sl_splitters[i], "IAo= 264\n"), *json = NULL;
        char *path = scratch_path(*state, "tokenizer.json");
        check_ok(sl_vocab_save(ranks, path));
        check_ok(sl_vocab_open(path, NULL, &json));
        check_ok(sl_vocab_checksum(ranks, checksum));
        check_ok(sl_vocab_checksum(json, again));
        assert_string_equal(checksum, again);
    }
}

static void files_are_held_to_their_manifest(void **state)
{
    unsigned seed = test_seed(5);
    fixture texts;
    sl_rows *rows;
    char path[PATH];
    make_texts(&texts, *state, &seed);
    const sl_rows_options options = {.ntokens = 1000, .vocab = texts.vocab, .length = 1};
    check_ok(write_texts(&texts, texts.count / 2 + 1, false));
    snprintf(path, PATH, "%s", scratch_path(texts.in, "train_000001.bin"));
    assert_int_equal(rename(texts.to, scratch_path(texts.in, "kept")), 0);
    assert_int_equal(rename(path, texts.to), 0);
    check_error(sl_rows_read(texts.to, &options, &rows), SL_ERR_FORMAT,
                "but train.manifest.json says");
    assert_int_equal(rename(texts.to, path), 0);
    assert_int_equal(rename(scratch_path(texts.in, "kept"), texts.to), 0);
    check_stream(&texts, texts.count / 2 + 1);
    assert_int_equal(link(texts.to, scratch_path(texts.in, "train_000002.bin")), 0);
    check_error(sl_rows_read(texts.to, &options, &rows), SL_ERR_FORMAT,
                "train_000002.bin: it would follow the token files before it");
    sl_vocab_destroy(&texts.vocab);
}

/* Anything but a crash, and nothing that was written is lost. */
static void hostile_manifests_are_refused(void **state)
{
    static const char *const manifests[] = {
        "",
        "[",
        "[]",
        "{}",
        "{\"sluice_token_files\": 2}",
        "{\"sluice_token_files\": \"1\"}",
        "{\"sluice_token_files\": 1}",
        "{\"sluice_token_files\": 1, \"tokenizer\": [], \"files\": {}}",
        "{\"sluice_token_files\": 1, \"files\": [1, null, [], {\"name\": 3}]}",
        "{\"sluice_token_files\": 1, \"files\": [{\"name\": \"train.bin\", \"tokens\": \"x\"}]}",
        "{\"sluice_token_files\": 1, \"files\": [{\"name\": \"train.bin\", \"tokens\": -1}]}"};
    static const char *const records[] = {
        "{\"sluice_token_files\": 1, \"files\": []}",
        "{\"sluice_token_files\": 1, \"files\": 5, \"sources\": []}",
        "{\"sluice_token_files\": 1, \"files\": [[]], \"sources\": []}",
        "{\"sluice_token_files\": 1, \"files\": [{\"tokens\": -2}], \"sources\": []}",
        "{\"sluice_token_files\": 1, \"files\": [{\"tokens\": 4611686018427387904}]}",
        "{\"sluice_token_files\": 1, \"files\": [{\"tokens\": 1, \"temporary\": \"../text0\"}]}",
        "{\"sluice_token_files\": 1, \"files\": [{\"tokens\": 0, \"temporary\": \"text0\"}]}"};
    unsigned seed = test_seed(9);
    fixture texts;
    sl_rows *rows;
    make_texts(&texts, *state, &seed);
    check_ok(write_texts(&texts, texts.count, false));
    const sl_rows_options options = {.ntokens = 1000, .vocab = texts.vocab, .length = 1};
    char *path = scratch_path(texts.in, "train.manifest.json");
    for (size_t i = 0; i < sizeof manifests / sizeof *manifests; i++) {
        write_file(path, manifests[i], strlen(manifests[i]));
        sl_status status = sl_rows_read(texts.to, &options, &rows);
        assert_true(status == SL_ERR_FORMAT || status == SL_ERR_INVALID);
    }
    unlink(path);
    json_t *tokenizer;
    check_ok(sli_manifest_tokenizer(texts.vocab, &tokenizer));
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        json_t *record = json_loads(records[i], 0, NULL);
        assert_int_equal(json_object_set(record, "tokenizer", tokenizer), 0);
        check_ok(sli_manifest_write(scratch_path(texts.in, ".train.bin.resume"), record));
        json_decref(record);
        check_error(write_texts(&texts, texts.count, true), SL_ERR_FORMAT, "");
        check_stream(&texts, texts.count);
        assert_int_equal(scratch_entries(texts.in, 0), TEXTS + 2);
    }
    json_decref(tokenizer);
    sl_vocab_destroy(&texts.vocab);
}

/* ---- Killed writers ----------------------------------------------------------------------- */

/* All that stands under names without a dot before them, one after the other. */
static size_t collect(const fixture *texts, char *all, size_t room)
{
    size_t used = read_file(texts->to, all, room);
    char path[PATH];
    for (int i = 1; i < MOST_FILES; i++) {
        snprintf(path, PATH, "%s/train_%06d.bin", texts->in->directory, i);
        if (access(path, F_OK) == 0)
            used += read_file(path, all + used, room - used);
    }
    return used +
           read_file(scratch_path(texts->in, "train.manifest.json"), all + used, room - used);
}

static void count_down(void *context, uint64_t done, uint64_t bytes)
{
    int *left = context;
    if ((*left)-- == 0)
        raise(SIGKILL);
}

/* Whether a process that resumes was killed where it told of its progress for the time `after`. */
static bool is_killed(const fixture *texts, int64_t file_tokens, int after)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        sl_tokens_written written;
        const sli_tokens_limits limits = {40, 150, file_tokens};
        const sl_tokens_writing writing = {.resume = true,
                                           .progress = count_down,
                                           .context = &after};
        _exit(sli_tokens_write(texts->vocab, texts->texts, TEXTS, texts->to, &writing, &limits,
                               &written) != SL_OK);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static void what_is_resumed_has_the_bytes_of_one_call(void **state)
{
    enum { ROOM = 1 << 18, ROUNDS = 8 };
    static char expected[ROOM], found[ROOM];
    unsigned seed = test_seed(6);
    int kills = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fixture texts;
        make_texts(&texts, *state, &seed);
        int64_t file_tokens = test_draw(&seed, (int)texts.count / 5 + 1, 2 * (int)texts.count);
        check_ok(write_texts(&texts, file_tokens, false));
        size_t bytes = collect(&texts, expected, ROOM);
        for (int i = 0; i < MOST_FILES; i++) {
            char name[32];
            snprintf(name, sizeof name, i ? "train_%06d.bin" : "train.bin", i);
            unlink(scratch_path(texts.in, name));
        }
        unlink(scratch_path(texts.in, "train.manifest.json"));
        while (is_killed(&texts, file_tokens, test_draw(&seed, 0, 12))) {
            assert_int_equal(access(texts.to, F_OK), -1);
            kills++;
        }
        assert_int_equal(collect(&texts, found, ROOM), bytes);
        assert_memory_equal(found, expected, bytes);
        check_stream(&texts, file_tokens);
        sl_vocab_destroy(&texts.vocab);
        scratch_entries(texts.in, 1);
    }
    assert_true(kills > ROUNDS);
}

/* Killed once it has recorded something. */
static void kill_late(const fixture *texts)
{
    assert_true(is_killed(texts, texts->count, 6));
    assert_int_equal(access(scratch_path(texts->in, ".train.bin.resume"), F_OK), 0);
}

static void make_long_texts(fixture *texts, scratch *in, unsigned *seed)
{
    do {
        if (texts->vocab)
            sl_vocab_destroy(&texts->vocab);
        scratch_entries(in, 1);
        make_texts(texts, in, seed);
    } while (texts->count < 600);
}

static void names_of_further_files_are_free_before_work_begins(void **state)
{
    unsigned seed = test_seed(10);
    fixture texts = {NULL};
    make_long_texts(&texts, *state, &seed);
    char next[PATH];
    snprintf(next, PATH, "%s", scratch_path(texts.in, "train_000002.bin"));
    write_file(next, "other", 5);
    write_file(scratch_path(texts.in, "train_000002.manifest.json"), "{}", 2);
    for (int resume = 0; resume < 2; resume++) {
        check_error(write_texts(&texts, texts.count / 3, resume), SL_ERR_INVALID,
                    "train_000002.bin: it would be read after these tokens");
        assert_int_equal(scratch_entries(texts.in, 0), TEXTS + 2);
    }
    check_ok(write_texts(&texts, 1 << 20, false)); /* a further part of the stream, not needed */
    unlink(scratch_path(texts.in, "train_000002.manifest.json"));
    unlink(next);
    check_ok(write_texts(&texts, texts.count / 3, false));
    check_stream(&texts, texts.count / 3);
    sl_vocab_destroy(&texts.vocab);
}

/* Puts a file there once the work has begun. */
static void put_in_the_way(void *context, uint64_t done, uint64_t bytes)
{
    if (done > bytes / 2)
        write_file(context, "other", 5);
}

/* A next file that appears in the way is moved, and the work goes on. */
static void any_error_leaves_what_is_done(void **state)
{
    unsigned seed = test_seed(12);
    sl_tokens_written written;
    fixture texts = {NULL};
    make_long_texts(&texts, *state, &seed);
    const sli_tokens_limits limits = {40, 150, texts.count - 1};
    char next[PATH];
    snprintf(next, PATH, "%s", scratch_path(texts.in, "train_000001.bin"));
    const sl_tokens_writing disturbed = {.progress = put_in_the_way, .context = next},
                            resumed = {.resume = true};
    check_error(sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &disturbed, &limits,
                                 &written),
                SL_ERR_INVALID, "train_000001.bin: it would be read after these tokens");
    unlink(next);
    check_ok(
        sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &resumed, &limits, &written));
    assert_true(written.resumed_bytes > 0);
    check_stream(&texts, texts.count - 1);
    sl_vocab_destroy(&texts.vocab);
}

/* Tells how much was done last. */
static void note_done(void *context, uint64_t done, uint64_t bytes)
{
    *(uint64_t *)context = done;
}

static void kill_from(void *context, uint64_t done, uint64_t bytes)
{
    if (done >= *(uint64_t *)context)
        raise(SIGKILL);
}

/* Much of the text is recorded when it is found to be none, also by another process than this one,
 * and in several files. */
static void a_text_that_is_none_is_mended_and_the_others_stay(void **state)
{
    enum { WORDS = 400, BYTES = 4 * WORDS };
    char bad[BYTES], all[1 << 16];
    unsigned seed = test_seed(13);
    sl_tokens_written written;
    for (int round = 0; round < 4; round++) {
        fixture texts = {NULL};
        make_long_texts(&texts, *state, &seed);
        for (int i = 0; i < BYTES; i++)
            bad[i] = i < WORDS ? "a text "[i % 7] : " a\xFF\xFF\xFF\xFF\xFF\xFF"[i % 8];
        uint64_t before = read_file(texts.paths[0], all, sizeof all) +
                          read_file(texts.paths[1], all, sizeof all),
                 last = 0, kill = before + 300;
        write_file(texts.paths[2], bad, BYTES);
        const sli_tokens_limits limits = {40, 1, round % 2 ? 1 << 20 : 250};
        if (round >= 2) {
            pid_t child = fork();
            assert_true(child >= 0);
            const sl_tokens_writing killed = {.progress = kill_from, .context = &kill};
            if (child == 0)
                _exit(sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &killed, &limits,
                                       &written) != SL_OK);
            assert_int_equal(waitpid(child, NULL, 0), child);
        }
        const sl_tokens_writing writing = {.resume = true, .progress = note_done, .context = &last};
        check_error(sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &writing, &limits,
                                     &written),
                    SL_ERR_FORMAT, "text2: expected text in UTF-8, but of its 1600 bytes");
        assert_in_range(last, before + WORDS, before + 3 * WORDS); /* not at its end */
        write_file(texts.paths[2], "mended", 6);
        check_ok(sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &writing, &limits,
                                  &written));
        assert_int_equal(written.resumed_bytes, before);
        size_t bytes = collect(&texts, all, sizeof all / 2);
        assert_int_equal(scratch_entries(texts.in, 0), TEXTS + written.files + 1);
        char again[sizeof all / 2];
        check_ok(
            sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, NULL, &limits, &written));
        assert_int_equal(collect(&texts, again, sizeof again), bytes);
        assert_memory_equal(all, again, bytes);
        sl_vocab_destroy(&texts.vocab);
    }
}

static void no_work_is_begun_with_an_empty_text(void **state)
{
    unsigned seed = test_seed(11);
    fixture texts;
    make_texts(&texts, *state, &seed);
    write_file(texts.paths[TEXTS - 1], "", 0);
    check_error(write_texts(&texts, texts.count, false), SL_ERR_FORMAT,
                "text2: expected text, but the file is empty");
    assert_int_equal(scratch_entries(texts.in, 0), TEXTS);
    sl_vocab_destroy(&texts.vocab);
}

static void what_has_changed_is_not_resumed(void **state)
{
    unsigned seed = test_seed(7);
    fixture texts;
    do {
        scratch_entries(*state, 1);
        make_texts(&texts, *state, &seed);
    } while (texts.count < 600);
    kill_late(&texts);
    sl_vocab *own = texts.vocab;
    texts.vocab = make_vocab("cl100k", "");
    check_error(write_texts(&texts, texts.count, true), SL_ERR_INVALID,
                "train.bin: what was written of it is by another tokenizer");
    sl_vocab_destroy(&texts.vocab);
    texts.vocab = own;
    texts.texts[0] = texts.paths[2];
    check_error(write_texts(&texts, texts.count, true), SL_ERR_INVALID,
                "text2: it is not the text whose tokens were being written to");
    texts.texts[0] = texts.paths[0];
    check_ok(write_texts(&texts, texts.count, true)); /* the refusals have destroyed nothing */
    check_stream(&texts, texts.count);
    unlink(texts.to);
    kill_late(&texts);
    check_ok(write_texts(&texts, texts.count, false));
    check_stream(&texts, texts.count);
    assert_int_equal(scratch_entries(texts.in, 0), TEXTS + 2); /* nothing of the killed one */
    sl_vocab_destroy(&texts.vocab);
}

static void change_byte(const char *path, long at)
{
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, file), byte ^ 1);
    assert_int_equal(fclose(file), 0);
}

static void what_is_complete_is_not_written_again(void **state)
{
    unsigned seed = test_seed(8);
    struct stat before, after;
    fixture texts;
    make_texts(&texts, *state, &seed);
    check_ok(write_texts(&texts, texts.count / 2 + 1, false));
    assert_int_equal(stat(texts.to, &before), 0);
    check_ok(write_texts(&texts, texts.count / 2 + 1, true));
    assert_int_equal(stat(texts.to, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    change_byte(texts.to, 1024);
    check_ok(write_texts(&texts, texts.count / 2 + 1, true));
    check_stream(&texts, texts.count / 2 + 1); /* a damaged token is made again */
    assert_int_equal(stat(texts.to, &before), 0);
    write_file(texts.paths[1], "another text", 12);
    check_ok(write_texts(&texts, texts.count / 2 + 1, true));
    assert_int_equal(stat(texts.to, &after), 0);
    assert_true(before.st_ino != after.st_ino);
    unlink(scratch_path(texts.in, "train_000001.bin"));
    check_ok(write_texts(&texts, 20, true));
    assert_int_equal(access(scratch_path(texts.in, "train_000001.bin"), F_OK), 0);
    sl_vocab_destroy(&texts.vocab);
}

/* As a kill leaves it after the manifest was written. */
static void leave_record(const fixture *texts)
{
    sli_manifest manifest;
    check_ok(sli_manifest_read(strdup(scratch_path(texts->in, "train.manifest.json")), &manifest));
    json_t *file = json_array_get(json_object_get(manifest.json, "files"), 0);
    json_object_set_new(file, "temporary", json_string(".train.bin.0123456789abcdef.tmp"));
    check_ok(sli_manifest_write(scratch_path(texts->in, ".train.bin.resume"), manifest.json));
    sli_manifest_clear(&manifest);
}

static void a_record_of_what_is_complete_goes(void **state)
{
    unsigned seed = test_seed(14);
    struct stat before, after;
    fixture texts;
    make_texts(&texts, *state, &seed);
    check_ok(write_texts(&texts, texts.count, false));
    assert_int_equal(stat(texts.to, &before), 0);
    leave_record(&texts);
    check_ok(write_texts(&texts, texts.count, true));
    assert_int_equal(stat(texts.to, &after), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_int_equal(scratch_entries(texts.in, 0), TEXTS + 2);
    for (int resume = 0; resume < 2; resume++) {
        leave_record(&texts);
        write_file(texts.paths[0], resume ? "another" : "one more", 7);
        check_ok(write_texts(&texts, texts.count, resume)); /* of other texts: anew */
        assert_int_equal(scratch_entries(texts.in, 0), TEXTS + 2);
    }
    sl_vocab_destroy(&texts.vocab);
}

int token_writer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_next_file_begins_where_one_is_full, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(a_file_of_other_tokens_is_not_replaced, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(tokens_of_another_tokenizer_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(a_tokenizer_has_one_checksum_in_all_its_forms,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(files_are_held_to_their_manifest, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(hostile_manifests_are_refused, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_is_resumed_has_the_bytes_of_one_call, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(names_of_further_files_are_free_before_work_begins,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(any_error_leaves_what_is_done, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(a_text_that_is_none_is_mended_and_the_others_stay,
                                        scratch_create, scratch_remove),
        cmocka_unit_test_setup_teardown(no_work_is_begun_with_an_empty_text, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_has_changed_is_not_resumed, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_is_complete_is_not_written_again, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(a_record_of_what_is_complete_goes, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
