/* Token ids of texts, of a directory of text files, one for each split, and of one file that is
 * divided into splits. */
#include "sluice/app/text.h"
#include "text/vocab.h"

#include "core/error.h"
#include "core/memory.h"
#include "text/line_reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- Token ids -------------------------------------------------------------------------- */

/* Where tokens go: to the ids, as a finished vocabulary or one that is still being counted has
 * them. */
typedef struct token_sink {
    const sl_vocab *vocab;
    sl_vocab_builder *builder; /* NULL where there is a vocabulary */
    sl_tokenizer *tokenizer;
    sl_tokens tokens;
    size_t room;  /* of tokens.ids */
    size_t bytes; /* of the lines, without their ends */
} token_sink;

/* The lines that begin in these hundredths of a file's bytes. */
typedef struct text_range {
    unsigned from, to;
} text_range;

static const text_range whole = {0, 100};

void sl_tokens_free(sl_tokens *tokens)
{
    free(tokens->ids);
    *tokens = (sl_tokens){0};
}

static sl_status reserve_ids(token_sink *sink, int64_t count)
{
    return sli_array_reserve(&sink->tokens.ids, &sink->room, (size_t)count,
                             sizeof *sink->tokens.ids, SIZE_MAX / sizeof *sink->tokens.ids,
                             "token ids");
}

static sl_status add_line(token_sink *sink, const char *line, size_t bytes)
{
    sl_token token;
    sink->tokens.line_count++;
    sink->bytes += bytes;
    SL_TRY(sl_tokenizer_start(sink->tokenizer, line, bytes));
    while (sl_tokenizer_next(sink->tokenizer, &token)) {
        int32_t id;
        if (sink->builder)
            SL_TRY(sl_vocab_builder_add(sink->builder, token.text, token.bytes, &id));
        else
            id = sl_vocab_id(sink->vocab, token.text, token.bytes);
        if ((size_t)sink->tokens.count == sink->room) /* a call for each token would be slower */
            SL_TRY(reserve_ids(sink, sink->tokens.count + 1));
        sink->tokens.ids[sink->tokens.count++] = id;
    }
    return SL_OK;
}

static sl_status open_sink(token_sink *sink, size_t text_bytes)
{
    SL_TRY(sl_tokenizer_create(&sink->tokenizer));
    return reserve_ids(sink, (int64_t)(text_bytes / 4) + 16); /* English: 5 bytes a token */
}

static void count_unknown(sl_tokens *tokens)
{
    tokens->unknown_count = 0;
    for (int64_t i = 0; i < tokens->count; i++)
        tokens->unknown_count += tokens->ids[i] == SL_VOCAB_UNKNOWN;
}

/* Hands the ids over, without the room behind them, or frees them after an error. */
static sl_status close_sink(token_sink *sink, sl_status status, sl_tokens *out)
{
    if (status == SL_OK)
        sink->tokens.invalid_bytes = sl_tokenizer_invalid_bytes(sink->tokenizer);
    sl_tokenizer_destroy(&sink->tokenizer);
    if (status != SL_OK)
        sl_tokens_free(&sink->tokens);
    int32_t *fitting =
        sink->tokens.ids
            ? realloc(sink->tokens.ids, ((size_t)sink->tokens.count + 1) * sizeof *fitting)
            : NULL;
    if (fitting)
        sink->tokens.ids = fitting;
    count_unknown(&sink->tokens);
    *out = sink->tokens;
    return status;
}

sl_status sl_tokens_encode(const sl_vocab *vocab, const char *text, size_t bytes, sl_tokens *out)
{
    token_sink sink = {.vocab = vocab};
    sl_status status = open_sink(&sink, bytes);
    if (status == SL_OK)
        status = add_line(&sink, text, bytes);
    return close_sink(&sink, status, out);
}

/* A file of another kind, or a text in another encoding, of which most tokens would be none. */
static sl_status check_is_text(const token_sink *sink, const char *path)
{
    int64_t invalid = sl_tokenizer_invalid_bytes(sink->tokenizer);
    int64_t controls = sl_tokenizer_control_characters(sink->tokenizer);
    if ((size_t)(invalid + controls) <= sink->bytes / 3)
        return SL_OK;
    return sl_error(SL_ERR_FORMAT,
                    "%s: expected text in UTF-8, but of its %zu bytes %lld are not UTF-8 and %lld "
                    "are control characters",
                    path, sink->bytes, (long long)invalid, (long long)controls);
}

/* The first byte of the file behind so many hundredths of it. */
static uint64_t bytes_of(uint64_t file_bytes, unsigned hundredths)
{
    return file_bytes / 100 * hundredths + file_bytes % 100 * hundredths / 100;
}

static sl_status add_file(token_sink *sink, sli_line_reader *reader, const char *path,
                          text_range range)
{
    const char *line;
    size_t bytes;
    uint64_t all = sli_line_reader_file_bytes(reader), at = 0;
    uint64_t first = bytes_of(all, range.from), end = bytes_of(all, range.to);
    SL_TRY(open_sink(sink, end - first));
    while (range.to == whole.to || at < end) { /* a file may grow */
        SL_TRY(sli_line_reader_next(reader, &line, &bytes));
        if (!line)
            break;
        if (at >= first)
            SL_TRY(add_line(sink, line, bytes));
        at += bytes + 1;
    }
    if (sink->tokens.line_count == 0 && at > 0)
        return sl_error(SL_ERR_FORMAT,
                        "%s: no line begins there: a text with so few lines needs a directory with "
                        "a file for each split",
                        path);
    if (sink->tokens.line_count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but the file is empty", path);
    if (sink->tokens.count == 0)
        return sl_error(SL_ERR_FORMAT, "%s: expected text, but none of its %lld lines has a token",
                        path, (long long)sink->tokens.line_count);
    return check_is_text(sink, path);
}

/* `name`: of the range, in errors. */
static sl_status read_file(token_sink *sink, const char *path, const char *name, text_range range,
                           sl_tokens *out)
{
    sli_line_reader *reader = NULL;
    sl_status status = sli_line_reader_open(path, &reader);
    if (status == SL_OK)
        status = add_file(sink, reader, name, range);
    sli_line_reader_close(&reader);
    return close_sink(sink, status, out);
}

sl_status sli_tokens_read(const sl_vocab *vocab, const char *path, sl_tokens *out)
{
    token_sink sink = {.vocab = vocab};
    return read_file(&sink, path, path, whole, out);
}

/* ---- Finding the files ------------------------------------------------------------------ */

typedef struct naming {
    const char *prefix, *suffix;
} naming;

static const naming namings[] = {{"wiki.", ".tokens"}, {"", ".txt"}}; /* in order of preference */
enum { NAMINGS = sizeof namings / sizeof *namings };

const char *sl_split_name(sl_split split)
{
    static const char *const names[SL_SPLITS] = {"train", "valid", "test"};
    return names[split];
}

static sl_status name_file(const char *directory, const naming *as, sl_split split, char **out)
{
    const char *name = sl_split_name(split);
    size_t bytes = strlen(directory) + strlen(as->prefix) + strlen(name) + strlen(as->suffix) + 2;
    *out = malloc(bytes);
    if (!*out)
        return sli_no_memory(directory, "the name of a file");
    snprintf(*out, bytes, "%s/%s%s%s", directory, as->prefix, name, as->suffix);
    return SL_OK;
}

static sl_status check_data(const char *data, bool *is_file)
{
    static const char expected[] = "expected a directory of text files, or a file of text";
    struct stat about;
    if (stat(data, &about) != 0)
        return sli_io_error(data, expected);
    *is_file = S_ISREG(about.st_mode);
    if (!*is_file && !S_ISDIR(about.st_mode))
        return sl_error(SL_ERR_INVALID, "%s: %s, got a pipe or a device", data, expected);
    return SL_OK;
}

/* *out is the first naming by which there is any file. */
static sl_status find_naming(const char *directory, const naming **out)
{
    struct stat about;
    char *path;
    for (int i = 0; i < NAMINGS; i++) {
        for (int split = 0; split < SL_SPLITS; split++) {
            SL_TRY(name_file(directory, &namings[i], (sl_split)split, &path));
            bool exists = stat(path, &about) == 0;
            free(path);
            *out = &namings[i];
            if (exists)
                return SL_OK;
        }
    }
    return sl_error(SL_ERR_NOT_FOUND,
                    "%s: has neither wiki.{train,valid,test}.tokens nor {train,valid,test}.txt",
                    directory);
}

static sl_status find_file(const char *directory, sl_split split, char **out)
{
    const naming *as;
    struct stat about;
    SL_TRY(find_naming(directory, &as));
    SL_TRY(name_file(directory, as, split, out));
    if (stat(*out, &about) == 0)
        return SL_OK;
    sl_status status = sl_error(SL_ERR_NOT_FOUND,
                                "%s: cannot be found, though other splits' files "
                                "are there: %s",
                                *out, strerror(errno));
    free(*out);
    *out = NULL;
    return status;
}

/* A split's text: a file, or a part of one. */
typedef struct split_source {
    char *path, *name; /* the name says which part */
    text_range range;
} split_source;

static void source_clear(split_source *source)
{
    free(source->path);
    free(source->name);
    *source = (split_source){0};
}

static sl_status name_source(const char *data, sl_split split, bool is_file, split_source *out)
{
    static const text_range parts[SL_SPLITS] = {{0, 90}, {90, 95}, {95, 100}};
    static const char *const names[SL_SPLITS] = {" (the first 90%)", " (the next 5%)",
                                                 " (the last 5%)"};
    out->range = is_file ? parts[split] : whole;
    if (is_file)
        out->path = strdup(data);
    else
        SL_TRY(find_file(data, split, &out->path));
    size_t bytes = out->path ? strlen(out->path) + strlen(names[split]) + 1 : 0;
    out->name = bytes ? malloc(bytes) : NULL;
    if (!out->name)
        return sli_no_memory(data, "the name of a file");
    snprintf(out->name, bytes, "%s%s", out->path, is_file ? names[split] : "");
    return SL_OK;
}

/* Clears *out after an error. */
static sl_status find_source(const char *data, sl_split split, split_source *out)
{
    bool is_file = false;
    *out = (split_source){0};
    SL_TRY(check_data(data, &is_file));
    sl_status status = name_source(data, split, is_file, out);
    if (status != SL_OK)
        source_clear(out);
    return status;
}

sl_status sl_split_path(const char *data, sl_split split, char **out)
{
    split_source source;
    *out = NULL;
    SL_TRY(find_source(data, split, &source));
    *out = source.path;
    source.path = NULL;
    source_clear(&source);
    return SL_OK;
}

/* ---- Reading them ----------------------------------------------------------------------- */

static sl_status read_source(token_sink *sink, const split_source *source, sl_tokens *out)
{
    return read_file(sink, source->path, source->name, source->range, out);
}

sl_status sl_split_read(const sl_vocab *vocab, const char *data, sl_split split, sl_tokens *out)
{
    split_source source;
    token_sink sink = {.vocab = vocab};
    *out = (sl_tokens){0};
    SL_TRY(find_source(data, split, &source));
    sl_status status = read_source(&sink, &source, out);
    source_clear(&source);
    return status;
}

struct sl_corpus {
    const sl_vocab *vocab;
    sl_vocab *own_vocab; /* the same, where the corpus made it */
    split_source sources[SL_SPLITS];
    sl_tokens tokens[SL_SPLITS];
};

/* Numbers the training text's tokens as they come, and gives them their ids when the counts are
 * known, so that the file is read once. */
static sl_status read_training_text(sl_corpus *corpus)
{
    sl_tokens *tokens = &corpus->tokens[SL_SPLIT_TRAIN];
    int32_t *final_ids = NULL;
    sl_vocab_builder *builder = NULL;
    sl_status status;
    SLI_TRY_OR_FAIL(sl_vocab_builder_create(&builder));
    SLI_TRY_OR_FAIL(
        read_source(&(token_sink){.builder = builder}, &corpus->sources[SL_SPLIT_TRAIN], tokens));
    final_ids = malloc((size_t)sl_vocab_builder_size(builder) * sizeof *final_ids);
    SLI_TRY_OR_FAIL(final_ids ? SL_OK : sli_no_memory("sl_corpus_load", "the numbers of tokens"));
    SLI_TRY_OR_FAIL(sl_vocab_builder_finish(builder, final_ids, &corpus->own_vocab));
    corpus->vocab = corpus->own_vocab;
    for (int64_t i = 0; i < tokens->count; i++)
        tokens->ids[i] = final_ids[tokens->ids[i]];
    count_unknown(tokens);
fail:
    free(final_ids);
    sl_vocab_builder_destroy(&builder);
    return status;
}

static sl_status load_splits(sl_corpus *corpus, const char *data)
{
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(find_source(data, (sl_split)split, &corpus->sources[split]));
    if (!corpus->vocab)
        SL_TRY(read_training_text(corpus));
    for (int split = 0; split < SL_SPLITS; split++)
        if (!corpus->tokens[split].ids)
            SL_TRY(read_source(&(token_sink){.vocab = corpus->vocab}, &corpus->sources[split],
                               &corpus->tokens[split]));
    return SL_OK;
}

sl_status sl_corpus_load(const char *data, const sl_vocab *vocab, sl_corpus **out)
{
    *out = NULL;
    sl_corpus *corpus = calloc(1, sizeof *corpus);
    if (!corpus)
        return sli_no_memory("sl_corpus_load", "a corpus");
    corpus->vocab = vocab;
    sl_status status = load_splits(corpus, data);
    if (status != SL_OK)
        sl_corpus_destroy(&corpus);
    *out = corpus;
    return status;
}

void sl_corpus_destroy(sl_corpus **corpus)
{
    if (!corpus || !*corpus)
        return;
    for (int split = 0; split < SL_SPLITS; split++) {
        sl_tokens_free(&(*corpus)->tokens[split]);
        source_clear(&(*corpus)->sources[split]);
    }
    sl_vocab_destroy(&(*corpus)->own_vocab);
    free(*corpus);
    *corpus = NULL;
}

const sl_vocab *sl_corpus_vocab(const sl_corpus *corpus)
{
    return corpus->vocab;
}

const sl_tokens *sl_corpus_tokens(const sl_corpus *corpus, sl_split split)
{
    return &corpus->tokens[split];
}

const char *sl_corpus_name(const sl_corpus *corpus, sl_split split)
{
    return corpus->sources[split].name;
}
