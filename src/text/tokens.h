/* The ids of text files. */
#ifndef SLI_TEXT_TOKENS_H
#define SLI_TEXT_TOKENS_H

#include "core/large_array.h"
#include "sluice/app/text.h"

/* The lines that begin in these hundredths of a file's bytes. */
typedef struct sli_text_range {
    unsigned from, to;
} sli_text_range;

extern const sli_text_range sli_whole_text;

/* How the texts of a run become tokens. */
typedef struct sli_tokenizing {
    const char *kept; /* a directory, which need not exist, where what they become may be kept, and
                         is read if it is of the same texts and tokenizer; NULL: it is not kept */
    int threads;      /* of tokens, not words; 0: one for each processor that the process may use */
} sli_tokenizing;

/* The ids of a part of a text file, which is called `name` in errors: of words, its lines' tokens
 * one after the other. `threads`: as of sli_tokenizing; words are cut by one. Errors:
 * SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_MEMORY; SL_ERR_FORMAT where the file is no regular one, is
 * empty or has no token, or where more than a third of its bytes are no text: not UTF-8, or control
 * characters. */
sl_status sli_tokens_read(const sl_vocab *vocab, const char *path, const char *name,
                          sli_text_range range, int threads, sl_tokens *out);

/* The same by one thread, where the builder counts the words and their provisional numbers stand
 * for ids. */
sl_status sli_tokens_count(sl_vocab_builder *builder, const char *path, const char *name,
                           sli_text_range range, sl_tokens *out);

/* sl_tokens_encode without special tokens, of a text that may continue another. */
sl_status sli_tokens_encode_text(const sl_vocab *vocab, const char *text, size_t bytes,
                                 bool continues, sl_tokens *out);

/* Refuses a file of another kind, or a text in another encoding, of which most tokens would be
 * none: SL_ERR_FORMAT where more than a third of the bytes are not UTF-8 or control, of which the
 * numbers are those that are known so far. */
sl_status sli_check_is_text(const char *name, size_t bytes, int64_t invalid, int64_t controls);

/* In all lines since the tokenizer was made: bytes that are not UTF-8, and ASCII's control
 * characters other than white space (tokenizer.c). */
int64_t sli_tokenizer_invalid_bytes(const sl_tokenizer *tokenizer);
int64_t sli_tokenizer_control_characters(const sl_tokenizer *tokenizer);

/* Finishes the array and has the tokens, whose `count` is set, own it as their ids. */
void sli_tokens_own_ids(sl_tokens *tokens, sli_large_array *ids);

/* Sets unknown_count. */
void sli_tokens_count_unknown(sl_tokens *tokens);

#endif
