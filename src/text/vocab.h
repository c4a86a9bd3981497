/* What is inside a vocabulary: a table of tokens, whose number is their id. */
#ifndef SLI_TEXT_VOCAB_H
#define SLI_TEXT_VOCAB_H

#include "sluice/app/text.h"

/* ---- The table (token_table.c) ------------------------------------------------------------ */

/* A set of tokens, numbered in the order in which they were added: a hash table with open
 * addressing over one array of their bytes. */
typedef struct sli_token_slot {
    uint32_t hash;
    int32_t id; /* -1: free */
} sli_token_slot;

typedef struct sli_token_table {
    sli_token_slot *slots; /* [mask + 1], a power of two, at most half of them taken */
    size_t mask;
    size_t *starts; /* [count + 1] where each token begins in bytes; a 0 stands after each */
    size_t starts_room, bytes_room;
    int32_t count;
    char *bytes;
    uint64_t seed;  /* of the hash; random */
    bool any_bytes; /* tokens need not be words: zeros and white space are taken too */
} sli_token_table;

/* An empty table. Errors: SL_ERR_MEMORY. */
sl_status sli_token_table_init(sli_token_table *table);
void sli_token_table_free(sli_token_table *table); /* leaves zeros; allowed on zeros */

/* The token's number, or -1 where it is not in the table. */
int32_t sli_token_table_find(const sli_token_table *table, const char *text, size_t bytes);

/* The token's number; it is put in (copied) where it was not: `*id` is then the old count.
 * Errors: SL_ERR_INVALID where a new token is empty, is not UTF-8, or has a zero or ASCII white
 * space, unless the table takes any bytes; SL_ERR_MEMORY. */
sl_status sli_token_table_add(sli_token_table *table, const char *text, size_t bytes, int32_t *id);

/* The token with number `id`, from 0 to count - 1. Valid until the next addition. */
sl_token sli_token_table_get(const sli_token_table *table, int32_t id);

/* ---- The vocabulary ----------------------------------------------------------------------- */

struct sl_vocab {
    sli_token_table tokens; /* the first is <unk> */
};

#define SLI_UNKNOWN_TOKEN "<unk>"
enum { SLI_UNKNOWN_TOKEN_BYTES = sizeof SLI_UNKNOWN_TOKEN - 1 };

/* A vocabulary without any token, not even <unk>. Errors: SL_ERR_MEMORY. */
sl_status sli_vocab_create(sl_vocab **out);

/* ---- Its file (word_level.c) -------------------------------------------------------------- */

/* The text of a tokenizer.json, malloc'ed; and the vocabulary of such a text. Errors: SL_ERR_FORMAT
 * with one sentence, SL_ERR_MEMORY. */
sl_status sli_vocab_print(const sl_vocab *vocab, char **text);
sl_status sli_vocab_parse(const char *text, size_t bytes, sl_vocab **out);

/* The ids of a text file: its lines' tokens one after the other. Errors: SL_ERR_NOT_FOUND,
 * SL_ERR_IO, SL_ERR_MEMORY; SL_ERR_FORMAT where the file is no regular one, is empty or has no
 * token, or where more than a third of its bytes are no text: not UTF-8, or control characters. */
sl_status sli_tokens_read(const sl_vocab *vocab, const char *path, sl_tokens *out);

/* Reads a file of sl_vocab_save. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_MEMORY;
 * SL_ERR_UNSUPPORTED for a tokenizer of other rules or another kind; SL_ERR_FORMAT where ids are
 * not 0, 1, 2 and so on from <unk>, each once, or a token is one that the tokenizer cannot produce.
 */
sl_status sli_vocab_load(const char *path, sl_vocab **out);

#endif
