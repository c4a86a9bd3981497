/* Writing token files: the ids of texts however they are cut, in one file or several, the manifest
 * beside them, and what is left of a writer that was killed. */
#include "io/scratch.h"

#include "support/check.h"
#include "text/bpe.h"
#include "text/bpe_texts.h"
#include "text/rows.h"
#include "text/text_parts.h"
#include "text/token_manifest.h"
#include "text/token_writer.h"

#include <signal.h>
#include <sys/wait.h>

/* The 256 bytes, some words, and `more` lines of ranks with blanks in their tokens. */
static sl_vocab *make_vocab(const char *splitter, const char *more)
{
    static char ranks[BPE_TEXT_BYTES];
    sli_bpe *bpe;
    sl_vocab *vocab = NULL;
    size_t bytes = write_ranks(ranks, "\n\n Wo rd Word !\n ...\n aa \r\n ");
    strcpy(ranks + bytes, more);
    const sli_named_text file = {"R", ranks, strlen(ranks)};
    check_ok(sli_bpe_parse_ranks(&file, sli_splitter_find(splitter), &bpe));
    check_ok(sli_vocab_of_bpe(bpe, &vocab));
    return vocab;
}

/* A text of pieces that patterns treat in their own ways, at the ends of lines above all: of Latin,
 * Cyrillic and Han letters, with an accent that composes, spaces of Unicode, bytes that are no
 * character, and <tag>. */
static size_t draw_text(unsigned *seed, char *text, int pieces)
{
    static const char *const of[] = {"\n",
                                     "\n",
                                     "\n ",
                                     " \n",
                                     "\r\n",
                                     "  ",
                                     "\t",
                                     "a",
                                     " Word",
                                     "'s",
                                     "1",
                                     " 12",
                                     "!",
                                     "...\n",
                                     "\xC3\xA9",
                                     "\xC2\xA0",
                                     "/",
                                     "\xFF",
                                     "Z",
                                     " ",
                                     "\xD0\xB6",
                                     " \xD0\xB6",
                                     "\xE4\xB8\xAD",
                                     "\xE3\x80\x80",
                                     "\xE3\x80\x82",
                                     "\xCC\x81",
                                     "\xE2\x96\x81",
                                     "\xE4\xB8",
                                     "<tag>",
                                     " <tag>",
                                     "<tag>\n"};
    size_t used = 0;
    for (int i = 0; i < pieces; i++) {
        const char *piece = of[test_draw(seed, 0, (int)(sizeof of / sizeof *of) - 1)];
        memcpy(text + used, piece, strlen(piece));
        used += strlen(piece);
    }
    return used;
}

/* The ids of all, from parts that are encoded side by side. */
static void check_parts(const sl_vocab *vocab, const char *text, size_t bytes, size_t part_bytes,
                        const sl_tokens *whole)
{
    sl_tokens parts;
    check_ok(sli_text_encode_parts(vocab, text, bytes, false, part_bytes, 3, &parts));
    assert_int_equal(parts.count, whole->count);
    assert_int_equal(parts.line_count, whole->line_count);
    assert_int_equal(parts.invalid_bytes, whole->invalid_bytes);
    assert_memory_equal(parts.ids, whole->ids, (size_t)whole->count * sizeof *whole->ids);
    sl_tokens_free(&parts);
}

enum { PIECES = 400, MOST_DRAWN = 8 * PIECES };

/* A drawn text's ids, of the whole and by parts and blocks. */
static void check_cutting(scratch *in, const sl_vocab *vocab, unsigned *seed)
{
    static char text[MOST_DRAWN];
    char from[600], to[600];
    snprintf(from, sizeof from, "%s", scratch_path(in, "text"));
    snprintf(to, sizeof to, "%s", scratch_path(in, "to.bin"));
    const char *texts[] = {from};
    sl_tokens whole;
    sl_tokens_written written;
    sli_token_file opened;
    size_t bytes = draw_text(seed, text, PIECES);
    FREED int32_t *ids = malloc(MOST_DRAWN * sizeof *ids);
    assert_non_null(ids);
    write_file(from, text, bytes);
    check_ok(sl_tokens_encode(vocab, text, bytes, false, &whole));
    check_parts(vocab, text, bytes, (size_t)test_draw(seed, 1, 60), &whole);
    const sli_tokens_limits limits = {.block_bytes = (uint64_t)test_draw(seed, 1, 60),
                                      .record_bytes = UINT64_MAX,
                                      .file_tokens = INT32_MAX};
    check_ok(sli_tokens_write(vocab, texts, 1, to, NULL, &limits, &written));
    assert_int_equal(written.tokens, whole.count);
    assert_int_equal(written.invalid_bytes, whole.invalid_bytes);
    check_ok(sli_token_file_open(to, SL_TOKENS_BY_HEADER, &opened));
    check_ok(sli_token_file_read(&opened, 0, whole.count, 1000, ids));
    assert_memory_equal(ids, whole.ids, (size_t)whole.count * sizeof *ids);
    sli_token_file_clear(&opened);
    sl_tokens_free(&whole);
}

/* The same tokenizer with an added token that any text means. */
static sl_vocab *with_added_token(const sl_vocab *plain, const char *content, const char *flag)
{
    char *printed, *list, *text = NULL;
    size_t bytes = 0;
    sl_vocab *made = NULL;
    check_ok(sli_vocab_print(plain, &printed));
    list = strstr(printed, "\"added_tokens\": [");
    assert_non_null(list);
    list += strlen("\"added_tokens\": [");
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    fprintf(to, "%.*s{\"id\": 267, \"content\": \"%s\", \"special\": false, \"%s\": true}%s",
            (int)(list - printed), printed, content, flag, list);
    fclose(to);
    check_ok(sli_vocab_parse(text, bytes, &made));
    free(text);
    free(printed);
    return made;
}

static const char with_blanks[] = "IAo= 264\nCiA= 265\nICA= 266\n";

static void texts_are_cut_where_no_token_lies_across(void **state)
{
    static const char *const added[][2] = {{"<tag>", "normalized"},   {"<tag>", "single_word"},
                                           {"<tag>", "lstrip"},       {"<tag>", "rstrip"},
                                           {"! <tag>", "normalized"}, {"a\\n", "single_word"}};
    unsigned seed = test_seed(1);
    for (int i = 0; sl_splitters[i]; i++) {
        SCOPED(sl_vocab) *vocab = make_vocab(sl_splitters[i], with_blanks);
        for (int round = 0; round < 30; round++)
            check_cutting(*state, vocab, &seed);
        for (size_t j = 0; j < sizeof added / sizeof *added; j++) {
            SCOPED(sl_vocab) *more = with_added_token(vocab, added[j][0], added[j][1]);
            for (int round = 0; round < 5; round++)
                check_cutting(*state, more, &seed);
        }
    }
}

/* A place is found in a text of any language, with any ends of lines, and beside an added token. */
static void texts_of_all_kinds_are_cut(void **state)
{
    static const char *const texts[] = {"one two", "  x = y\r\n",
                                        "\xD0\xB6\xD0\xB6 \xD0\xB6\xD0\xB6",
                                        "\xE4\xB8\xAD\xE4\xB8\xAD\n\xE4\xB8\xAD\xE4\xB8\xAD",
                                        "{\"a\": b, \"c\": d}"};
    for (int i = 0; sl_splitters[i]; i++) {
        SCOPED(sl_vocab) *plain = make_vocab(sl_splitters[i], with_blanks);
        SCOPED(sl_vocab) *more = with_added_token(plain, "<tag>", "normalized");
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            assert_true(sli_text_last_cut(plain, texts[j], 0, strlen(texts[j])) > 0);
            assert_true(sli_text_last_cut(more, texts[j], 0, strlen(texts[j])) > 0);
        }
    }
}

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
        check_ok(sli_vocab_checksum(ranks, checksum));
        check_ok(sli_vocab_checksum(json, again));
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

/* A next file that is found in the way is moved, and the work goes on; so is a text that is no
 * text.
 */
static void any_error_leaves_what_is_done(void **state)
{
    static const char no_text[] = "\xFF\xFF\xFF\xFF";
    unsigned seed = test_seed(10);
    sl_tokens_written written;
    fixture texts;
    do {
        scratch_entries(*state, 1);
        make_texts(&texts, *state, &seed);
    } while (texts.count < 600);
    const sli_tokens_limits limits = {40, 150, texts.count - 1};
    const sl_tokens_writing writing = {.resume = true};
    char next[PATH];
    snprintf(next, PATH, "%s", scratch_path(texts.in, "train_000001.bin"));
    write_file(next, "other", 5);
    write_file(scratch_path(texts.in, "train_000001.manifest.json"), "{}", 2);
    for (int resume = 0; resume < 2; resume++)
        check_error(sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to,
                                     resume ? &writing : NULL, &limits, &written),
                    SL_ERR_INVALID, "train_000001.bin: it would be read after these tokens");
    unlink(next);
    unlink(scratch_path(texts.in, "train_000001.manifest.json"));
    check_ok(
        sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &writing, &limits, &written));
    assert_true(written.resumed_bytes > 0);
    check_stream(&texts, texts.count - 1);
    scratch_entries(texts.in, 1);
    sl_vocab_destroy(&texts.vocab);
    do {
        scratch_entries(*state, 1);
        make_texts(&texts, *state, &seed);
    } while (texts.count < 600);
    write_file(texts.paths[TEXTS - 1], no_text, strlen(no_text));
    const sli_tokens_limits usual = {40, 150, INT32_MAX};
    check_error(sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, NULL, &usual, &written),
                SL_ERR_FORMAT, "text2: expected text in UTF-8");
    write_file(texts.paths[TEXTS - 1], "a text", 6);
    check_ok(
        sli_tokens_write(texts.vocab, texts.texts, TEXTS, texts.to, &writing, &usual, &written));
    assert_true(written.resumed_bytes > 0);
    sl_vocab_destroy(&texts.vocab);
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

int token_writer_tests(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(texts_are_cut_where_no_token_lies_across, scratch_create,
                                        scratch_remove),
        cmocka_unit_test(texts_of_all_kinds_are_cut),
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
        cmocka_unit_test_setup_teardown(any_error_leaves_what_is_done, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(no_work_is_begun_with_an_empty_text, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_has_changed_is_not_resumed, scratch_create,
                                        scratch_remove),
        cmocka_unit_test_setup_teardown(what_is_complete_is_not_written_again, scratch_create,
                                        scratch_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
