/* Files of vocabularies: which kind a file is, by what it holds, and tokenizer.json, which both
 * kinds of vocabularies have. */
#include "text/vocab.h"

#include "core/error.h"
#include "core/file.h"
#include "core/replace.h"
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_FILE_BYTES = 64 << 20, MOST_TYPE = 64 };

/* ---- tokenizer.json ----------------------------------------------------------------------- */

static const char *const member_names[SLI_TOKENIZER_MEMBERS] = {
    [SLI_TOKENIZER_MODEL] = "model",
    [SLI_TOKENIZER_NORMALIZER] = "normalizer",
    [SLI_TOKENIZER_PRE_TOKENIZER] = "pre_tokenizer",
    [SLI_TOKENIZER_POST_PROCESSOR] = "post_processor",
    [SLI_TOKENIZER_DECODER] = "decoder",
    [SLI_TOKENIZER_ADDED_TOKENS] = "added_tokens",
    [SLI_MODEL_TYPE] = "type",
    [SLI_MODEL_VOCAB] = "vocab",
    [SLI_MODEL_MERGES] = "merges",
    [SLI_MODEL_IGNORE_MERGES] = "ignore_merges",
    [SLI_MODEL_BYTE_FALLBACK] = "byte_fallback",
    [SLI_MODEL_UNK_TOKEN] = "unk_token",
    [SLI_MODEL_DROPOUT] = "dropout",
    [SLI_MODEL_SUBWORD_PREFIX] = "continuing_subword_prefix",
    [SLI_MODEL_WORD_SUFFIX] = "end_of_word_suffix"};

/* The model's members, each of which is walked through once: they may be most of a long text. */
static sl_status find_model_members(const sli_json *json, sli_json_value *members)
{
    enum { FIRST = SLI_MODEL_TYPE };
    if (!sli_json_is(members[SLI_TOKENIZER_MODEL], '{'))
        return sl_error(SL_ERR_FORMAT, "it has no object \"model\", as a tokenizer.json has");
    SL_TRY(sli_json_find_members(json, members[SLI_TOKENIZER_MODEL], member_names + FIRST,
                                 SLI_TOKENIZER_MEMBERS - FIRST, members + FIRST));
    for (int i = FIRST; i < SLI_TOKENIZER_MEMBERS; i++)
        if (members[i].begin && i != SLI_MODEL_VOCAB && i != SLI_MODEL_MERGES)
            SL_TRY(sli_json_check(json, members[i]));
    return SL_OK;
}

static sl_status parse_text(const sli_json *json, sl_vocab *vocab)
{
    sli_json_value root, members[SLI_TOKENIZER_MEMBERS] = {{NULL, NULL}};
    SL_TRY(sli_json_root(json, &root));
    SL_TRY(sli_json_find_members(json, root, member_names, SLI_MODEL_TYPE, members));
    SL_TRY(find_model_members(json, members));
    sli_json_value type = members[SLI_MODEL_TYPE];
    if (type.begin && sli_json_equals(type, "WordLevel"))
        return sli_words_parse(json, members, vocab);
    if (!type.begin || sli_json_equals(type, "BPE"))
        return sli_bpe_parse(json, members, &vocab->bpe);
    return sl_error(SL_ERR_UNSUPPORTED,
                    "its model must be of type BPE, or of sluice's WordLevel, got %.*s",
                    (int)(type.end - type.begin < MOST_TYPE ? type.end - type.begin : MOST_TYPE),
                    type.begin);
}

sl_status sli_vocab_parse(const char *text, size_t bytes, sl_vocab **out)
{
    const sli_json json = {"it", text, bytes};
    SL_TRY(sli_vocab_create(out));
    sl_status status = sli_is_sentencepiece(text, bytes)
                           ? sli_bpe_parse_sentencepiece(text, bytes, &(*out)->bpe)
                           : parse_text(&json, *out);
    if (status != SL_OK)
        sl_vocab_destroy(out);
    return status;
}

sl_status sli_vocab_print(const sl_vocab *vocab, char **text)
{
    return vocab->bpe ? sli_bpe_print(vocab->bpe, text) : sli_words_print(vocab, text);
}

sl_status sl_vocab_save(const sl_vocab *vocab, const char *path)
{
    char *text;
    SL_TRY(sl_error_context(sli_vocab_print(vocab, &text), "%s: ", path));
    sl_status status = sli_file_write(path, text, strlen(text));
    free(text);
    return status;
}

/* ---- Opening ------------------------------------------------------------------------------ */

sl_status sli_vocab_of_bpe(sli_bpe *bpe, sl_vocab **out)
{
    sl_status status;
    SL_TRY_OR_FAIL(sli_vocab_create(out));
    (*out)->bpe = bpe;
    return SL_OK;
fail:
    sli_bpe_destroy(&bpe);
    return status;
}

static sl_status read_whole(const char *path, sli_named_text *out)
{
    char *text;
    SL_TRY(sli_file_read(path, MOST_FILE_BYTES, &text, &out->bytes));
    *out = (sli_named_text){path, text, out->bytes};
    return SL_OK;
}

static sl_status parse_file(const sli_named_text *file, const char *splitter, sl_vocab **out)
{
    sli_bpe *bpe;
    const char *suffix = strrchr(file->name, '.');
    bool is_whole = file->text[strspn(file->text, " \t\r\n")] == '{' ||
                    (suffix && strcmp(suffix, ".json") == 0) ||
                    sli_is_sentencepiece(file->text, file->bytes);
    if (is_whole && splitter)
        return sl_error(SL_ERR_INVALID,
                        "%s: it says itself how text is split, so no splitter can be named",
                        file->name);
    if (is_whole)
        return sl_error_context(sli_vocab_parse(file->text, file->bytes, out), "%s: ", file->name);
    if (!splitter)
        return sl_error(SL_ERR_INVALID,
                        "%s: a file of ranks does not say how text is split: a splitter must be "
                        "named, one of %s",
                        file->name, sli_splitter_names);
    SL_TRY(sli_bpe_parse_ranks(file, sli_splitter_find(splitter), &bpe));
    return sli_vocab_of_bpe(bpe, out);
}

static sl_status open_file(const char *path, const char *splitter, sl_vocab **out)
{
    sli_named_text file = {0};
    SL_TRY(read_whole(path, &file));
    sl_status status = parse_file(&file, splitter, out);
    free((char *)file.text);
    return status;
}

static sl_status open_pair(const char *vocab_path, const char *merges_path, const char *splitter,
                           sl_vocab **out)
{
    sli_named_text vocab = {0}, merges = {0};
    sli_bpe *bpe = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(read_whole(vocab_path, &vocab));
    SL_TRY_OR_FAIL(read_whole(merges_path, &merges));
    SL_TRY_OR_FAIL(sli_bpe_parse_vocab(&vocab, &merges,
                                       sli_splitter_find(splitter ? splitter : "gpt2"), &bpe));
    status = sli_vocab_of_bpe(bpe, out);
fail:
    free((char *)vocab.text);
    free((char *)merges.text);
    return status;
}

static sl_status read_settings(const char *path, sl_vocab *vocab)
{
    size_t bytes;
    sl_status status = sli_file_read(path, MOST_FILE_BYTES, &vocab->settings, &bytes);
    return status == SL_ERR_NOT_FOUND ? SL_OK : status;
}

static sl_status open_directory(const char *path, const char *splitter, sl_vocab **out)
{
    enum { JSON, VOCAB, MODEL, MERGES, SETTINGS, FILES };
    static const char *const names[FILES] = {"tokenizer.json", "vocab.json", SLI_SENTENCEPIECE_FILE,
                                             "merges.txt", "tokenizer_config.json"};
    char *paths[FILES] = {NULL};
    bool exists[FILES];
    sl_status status;
    for (int i = 0; i < FILES; i++) {
        SL_TRY_OR_FAIL(sli_path_join(path, names[i], &paths[i]));
        exists[i] = access(paths[i], F_OK) == 0;
    }
    exists[VOCAB] = exists[VOCAB] && exists[MERGES];
    int found = exists[JSON] ? JSON : exists[VOCAB] ? VOCAB : MODEL;
    if (!exists[found])
        SL_TRY_OR_FAIL(sl_error(SL_ERR_NOT_FOUND,
                                "%s: it has no tokenizer: neither tokenizer.json, nor vocab.json "
                                "with merges.txt, nor tokenizer.model",
                                path));
    SL_TRY_OR_FAIL(found == VOCAB ? open_pair(paths[VOCAB], paths[MERGES], splitter, out)
                                  : open_file(paths[found], splitter, out));
    SL_TRY_OR_FAIL(read_settings(paths[SETTINGS], *out));
    if (found == MODEL)
        status = sli_vocab_use_settings(*out);
fail:
    for (int i = 0; i < FILES; i++)
        free(paths[i]);
    if (status != SL_OK)
        sl_vocab_destroy(out);
    return status;
}

sl_status sl_vocab_open(const char *path, const char *splitter, sl_vocab **out)
{
    struct stat info;
    *out = NULL;
    if (splitter && !sli_splitter_find(splitter))
        return sl_error(SL_ERR_INVALID, "a splitter is one of %s, got \"%s\"", sli_splitter_names,
                        splitter);
    if (stat(path, &info) != 0)
        return sli_io_error(path, "cannot be opened");
    return S_ISDIR(info.st_mode) ? open_directory(path, splitter, out)
                                 : open_file(path, splitter, out);
}
