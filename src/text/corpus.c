/* A text's splits: a directory of text files, one for each, and one file that is divided. */
#include "text/corpus.h"
#include "text/kept_tokens.h"
#include "text/vocab.h"

#include "core/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
    sli_text_range range;
} split_source;

static void source_clear(split_source *source)
{
    free(source->path);
    free(source->name);
    *source = (split_source){0};
}

static sl_status name_source(const char *data, sl_split split, bool is_file, split_source *out)
{
    static const sli_text_range parts[SL_SPLITS] = {{0, 90}, {90, 95}, {95, 100}};
    static const char *const names[SL_SPLITS] = {" (the first 90%)", " (the next 5%)",
                                                 " (the last 5%)"};
    out->range = is_file ? parts[split] : sli_whole_text;
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

static sl_status read_source(const sl_vocab *vocab, const split_source *source, int threads,
                             sl_tokens *out)
{
    return sli_tokens_read(vocab, source->path, source->name, source->range, threads, out);
}

sl_status sl_split_read(const sl_vocab *vocab, const char *data, sl_split split, sl_tokens *out)
{
    split_source source;
    *out = (sl_tokens){0};
    SL_TRY(find_source(data, split, &source));
    sl_status status = read_source(vocab, &source, 0, out);
    source_clear(&source);
    return status;
}

struct sl_corpus {
    const sl_vocab *vocab;
    sl_vocab *own_vocab; /* the same, where the corpus made it */
    split_source sources[SL_SPLITS];
    sl_tokens tokens[SL_SPLITS];
    json_t *described[SL_SPLITS]; /* of what they are; NULL: they are not to be kept */
    bool is_kept[SL_SPLITS];
};

/* Numbers the training text's tokens as they come, and gives them their ids when the counts are
 * known, so that the file is read once. */
static sl_status read_training_text(sl_corpus *corpus)
{
    sl_tokens *tokens = &corpus->tokens[SL_SPLIT_TRAIN];
    const split_source *source = &corpus->sources[SL_SPLIT_TRAIN];
    int32_t *final_ids = NULL;
    sl_vocab_builder *builder = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(sl_vocab_builder_create(&builder));
    SL_TRY_OR_FAIL(sli_tokens_count(builder, source->path, source->name, source->range, tokens));
    final_ids = malloc((size_t)sl_vocab_builder_size(builder) * sizeof *final_ids);
    SL_TRY_OR_FAIL(final_ids ? SL_OK : sli_no_memory("sl_corpus_load", "the numbers of tokens"));
    SL_TRY_OR_FAIL(sl_vocab_builder_finish(builder, final_ids, &corpus->own_vocab));
    corpus->vocab = corpus->own_vocab;
    for (int64_t i = 0; i < tokens->count; i++)
        tokens->ids[i] = final_ids[tokens->ids[i]];
    sli_tokens_count_unknown(tokens);
fail:
    free(final_ids);
    sl_vocab_builder_destroy(&builder);
    return status;
}

/* Those that are kept in the directory, of the same text and tokenizer; NULL: none are. Words are
 * found as quickly as they would be read. *file: the text of the split before, which is read again
 * only where this one is another; the caller frees it. */
static sl_status read_kept(sl_corpus *corpus, sl_split split, const char *kept, json_t **file)
{
    const split_source *source = &corpus->sources[split];
    sl_tokens *tokens = &corpus->tokens[split];
    json_t **described = &corpus->described[split];
    if (!kept || sl_vocab_has_words(corpus->vocab))
        return SL_OK;
    if (!*file || split == 0 || strcmp(source->path, corpus->sources[split - 1].path) != 0) {
        json_decref(*file);
        SL_TRY(sli_kept_identify(source->path, file));
    }
    SL_TRY(sli_kept_describe(*file, source->range, described));
    SL_TRY(sli_kept_read(kept, split, corpus->vocab, *described, tokens));
    corpus->is_kept[split] = tokens->ids != NULL;
    return SL_OK;
}

static sl_status load_splits(sl_corpus *corpus, const char *data, const sli_tokenizing *tokenizing,
                             json_t **file)
{
    for (int split = 0; split < SL_SPLITS; split++)
        SL_TRY(find_source(data, (sl_split)split, &corpus->sources[split]));
    if (!corpus->vocab)
        SL_TRY(read_training_text(corpus));
    for (int split = 0; split < SL_SPLITS; split++) {
        SL_TRY(read_kept(corpus, (sl_split)split, tokenizing->kept, file));
        if (!corpus->tokens[split].ids)
            SL_TRY(read_source(corpus->vocab, &corpus->sources[split], tokenizing->threads,
                               &corpus->tokens[split]));
    }
    return SL_OK;
}

sl_status sli_corpus_load(const char *data, const sl_vocab *vocab, const sli_tokenizing *tokenizing,
                          sl_corpus **out)
{
    *out = NULL;
    sl_corpus *corpus = calloc(1, sizeof *corpus);
    if (!corpus)
        return sli_no_memory("sl_corpus_load", "a corpus");
    corpus->vocab = vocab;
    json_t *file = NULL;
    sl_status status = load_splits(corpus, data, tokenizing, &file);
    json_decref(file);
    if (status != SL_OK)
        sl_corpus_destroy(&corpus);
    *out = corpus;
    return status;
}

sl_status sl_corpus_load(const char *data, const sl_vocab *vocab, sl_corpus **out)
{
    return sli_corpus_load(data, vocab, &(sli_tokenizing){0}, out);
}

sl_status sli_corpus_keep(const sl_corpus *corpus, const char *directory)
{
    for (int split = 0; split < SL_SPLITS; split++)
        if (corpus->is_kept[split])
            SL_TRY(sli_kept_remove_record(directory, (sl_split)split));
        else if (corpus->described[split])
            SL_TRY(sli_kept_write(directory, (sl_split)split, corpus->vocab,
                                  corpus->described[split], &corpus->tokens[split]));
    return SL_OK;
}

void sl_corpus_destroy(sl_corpus **corpus)
{
    if (!corpus || !*corpus)
        return;
    for (int split = 0; split < SL_SPLITS; split++) {
        sl_tokens_free(&(*corpus)->tokens[split]);
        json_decref((*corpus)->described[split]);
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
