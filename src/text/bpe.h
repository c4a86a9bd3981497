/* What is inside a byte-level BPE: tokens of any bytes, and which pairs of them merge. */
#ifndef SLI_TEXT_BPE_H
#define SLI_TEXT_BPE_H

#include "text/splitters.h"
#include "text/vocab.h"

enum { SLI_BPE_MOST_TOKEN_BYTES = 1024 }; /* so that its ways to be made of two are few */

/* A pair of tokens, and the token that it makes. */
typedef struct sli_merge {
    int32_t left, right, made;
    uint32_t rank; /* a lower one merges first; SLI_NO_MERGE: a free slot */
} sli_merge;

#define SLI_NO_MERGE UINT32_MAX

struct sl_bpe {
    sli_token_table tokens;
    int32_t of_byte[256];
    sli_merge *merges; /* [mask + 1], a hash table with open addressing, at most half full */
    size_t mask, merge_count;
    bool *whole; /* [tokens.count] a piece of its bytes is this token */
    const sli_splitter *split;
};

/* A tokenizer without tokens. Errors: SL_ERR_MEMORY. */
sl_status sli_bpe_create(const sli_splitter *split, sl_bpe **out);

/* The token `id` must be the next one, with bytes that no other has. Errors: SL_ERR_FORMAT, with
 * what is wrong with it, SL_ERR_MEMORY. */
sl_status sli_bpe_add_token(sl_bpe *bpe, int32_t id, const char *text, size_t bytes);

/* Finds the tokens of single bytes. Errors: SL_ERR_FORMAT where one is missing. */
sl_status sli_bpe_find_bytes(sl_bpe *bpe);

/* Adds a merge. *is_new is false, and nothing changes, where the pair has one. */
sl_status sli_bpe_add_merge(sl_bpe *bpe, const sli_merge *merge, bool *is_new);

/* Ends the making. Where all_whole is false, a token is that of a piece if merging makes it. */
sl_status sli_bpe_finish(sl_bpe *bpe, bool all_whole);

/* ---- Its files (bpe_files.c) -------------------------------------------------------------- */

/* A text, called `name` in errors. */
typedef struct sli_named_text {
    const char *name, *text;
    size_t bytes;
} sli_named_text;

/* Of GPT-2's two files, and of a rank file. Errors: SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_bpe_parse_vocab(const sli_named_text *vocab, const sli_named_text *merges,
                              const sli_splitter *split, sl_bpe **out);
sl_status sli_bpe_parse_ranks(const sli_named_text *ranks, const sli_splitter *split, sl_bpe **out);

#endif
