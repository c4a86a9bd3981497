/* What is inside a vocabulary: a table of tokens, whose number is their id. */
#ifndef SLI_TEXT_VOCAB_H
#define SLI_TEXT_VOCAB_H

#include "core/checksum.h"
#include "core/json.h"
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

typedef struct sli_bpe sli_bpe; /* text/bpe.h */

struct sl_vocab {
    sli_token_table tokens; /* words, the first of which is <unk>; of a BPE none */
    sli_bpe *bpe;           /* NULL: it has words */
    char *settings;         /* its tokenizer_config.json; NULL: it has none */
};

#define SLI_UNKNOWN_TOKEN "<unk>"
enum { SLI_UNKNOWN_TOKEN_BYTES = sizeof SLI_UNKNOWN_TOKEN - 1 };

/* A vocabulary without any token, not even <unk>. Errors: SL_ERR_MEMORY. */
sl_status sli_vocab_create(sl_vocab **out);

/* ---- Its file (vocab_files.c) ------------------------------------------------------------- */

/* The text of a tokenizer.json, malloc'ed; and the vocabulary of such a text, or of SentencePiece's
 * file. Errors: SL_ERR_FORMAT with one sentence, SL_ERR_UNSUPPORTED for another kind of tokenizer
 * or other rules, which are printed, SL_ERR_MEMORY. */
sl_status sli_vocab_print(const sl_vocab *vocab, char **text);
sl_status sli_vocab_parse(const char *text, size_t bytes, sl_vocab **out);

/* What its `settings` say of a tokenizer of SentencePiece's file, which does not say it itself:
 * whether a text begins and ends with the tokens for that (add_bos_token, add_eos_token). Errors:
 * SL_ERR_MEMORY. */
sl_status sli_vocab_use_settings(sl_vocab *vocab);

#define SLI_SENTENCEPIECE_FILE "tokenizer.model"
bool sli_is_sentencepiece(const char *text, size_t bytes);

/* The members of a tokenizer.json, and of its model; those that are not there are NULL. */
typedef enum sli_tokenizer_member {
    SLI_TOKENIZER_MODEL,
    SLI_TOKENIZER_NORMALIZER,
    SLI_TOKENIZER_PRE_TOKENIZER,
    SLI_TOKENIZER_POST_PROCESSOR,
    SLI_TOKENIZER_DECODER,
    SLI_TOKENIZER_ADDED_TOKENS,
    SLI_MODEL_TYPE, /* the first of the model */
    SLI_MODEL_VOCAB,
    SLI_MODEL_MERGES,
    SLI_MODEL_IGNORE_MERGES,
    SLI_MODEL_BYTE_FALLBACK,
    SLI_MODEL_UNK_TOKEN,
    SLI_MODEL_DROPOUT,
    SLI_MODEL_SUBWORD_PREFIX,
    SLI_MODEL_WORD_SUFFIX,
    SLI_TOKENIZER_MEMBERS
} sli_tokenizer_member;

/* Of kind WordLevel (word_level.c), and of kind BPE (bpe_json.c). They check the JSON of the
 * model's tokens and merges; that of its other members is known to be valid. */
sl_status sli_words_print(const sl_vocab *vocab, char **text);
sl_status sli_words_parse(const sli_json *json, const sli_json_value *members, sl_vocab *vocab);
sl_status sli_bpe_print(const sli_bpe *bpe, char **text);
sl_status sli_bpe_parse(const sli_json *json, const sli_json_value *members, sli_bpe **out);

/* A tokenizer as a vocabulary, which then owns it, and which is made of it even after an error. */
sl_status sli_vocab_of_bpe(sli_bpe *bpe, sl_vocab **out);

#endif
