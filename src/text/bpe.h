/* What is inside a BPE: tokens of any bytes, which pairs of them merge, and what is found in a text
 * before. Of byte level, a text is its bytes; of SentencePiece's kind, its characters, and of those
 * that are no token the bytes. */
#ifndef SLI_TEXT_BPE_H
#define SLI_TEXT_BPE_H

#include "text/added_tokens.h"
#include "text/splitters.h"
#include "text/vocab.h"

#include <stdatomic.h>

enum { SLI_BPE_MOST_TOKEN_BYTES = 1024 }; /* so that its ways to be made of two are few */

/* A pair of tokens, and the token that it makes. */
typedef struct sli_merge {
    int32_t left, right, made;
    uint32_t rank; /* a lower one merges first; SLI_NO_MERGE: a free slot */
} sli_merge;

#define SLI_NO_MERGE UINT32_MAX

/* Where a text of SentencePiece's kind gets a space. */
typedef enum sli_prefix {
    SLI_PREFIX_NEVER,
    SLI_PREFIX_FIRST,     /* before its first word, if there is none */
    SLI_PREFIX_ALWAYS,    /* and before what follows an added token */
    SLI_PREFIX_NORMALIZED /* there, also before a space, and before added tokens are found in it */
} sli_prefix;

struct sli_bpe {
    sli_token_table tokens; /* those that texts are made of */
    int32_t of_byte[256];   /* -1: there is none, and texts lose such bytes */
    bool of_characters;     /* SentencePiece's kind: the token of a byte is called "<0x41>" */
    sli_prefix prefix;
    bool strips;       /* a text of ids loses a space that it begins with */
    int32_t unknown;   /* its unk_token, which no text has; -1: it names none */
    char bytes[256];   /* what the tokens of bytes stand for */
    sli_merge *merges; /* [mask + 1], a hash table with open addressing, at most half full */
    size_t mask, merge_count;
    atomic_bool *whole; /* [tokens.count] a piece of its bytes is known to be this token; set by any
                           thread that encodes */
    bool all_whole;
    const sli_splitter *split;
    sli_added_tokens added;
    const sli_added_token *
        *behind; /* [behind_count] added ones with the ids from tokens.count on */
    int32_t behind_count;
    int32_t *around; /* special ids that stand before a text [before], and then behind it [after] */
    size_t before, after;
};

/* A tokenizer without tokens. Errors: SL_ERR_MEMORY. */
sl_status sli_bpe_create(const sli_splitter *split, sli_bpe **out);
void sli_bpe_destroy(sli_bpe **bpe);

/* The token `id` must be the next one, with bytes that no other has. Errors: SL_ERR_FORMAT, with
 * what is wrong with it, SL_ERR_MEMORY. */
sl_status sli_bpe_add_token(sli_bpe *bpe, int32_t id, const char *text, size_t bytes);

/* Finds the tokens of single bytes. Of byte level some `may_miss`. Errors: SL_ERR_FORMAT where one
 * is missing that may not. */
sl_status sli_bpe_find_bytes(sli_bpe *bpe, bool may_miss);

/* Adds a merge. *is_new is false, and nothing changes, where the pair has one. */
sl_status sli_bpe_add_merge(sli_bpe *bpe, const sli_merge *merge, bool *is_new);

/* A copy [merge_count], malloc'ed, in the order of ranks, and where these are equal, as of a rank
 * file, of the parts; NULL: there is no memory. */
sli_merge *sli_bpe_sorted_merges(const sli_bpe *bpe);

/* Gives the added tokens that are none of the others their ids, which must follow. Errors:
 * SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_bpe_place_added(sli_bpe *bpe);

/* Ends the making. Where all_whole is false, a token is that of a piece if merging makes it. */
sl_status sli_bpe_finish(sli_bpe *bpe, bool all_whole);

int32_t sli_bpe_size(const sli_bpe *bpe);

/* The bytes of an id, and the id of such bytes (-1: there is none). */
sl_token sli_bpe_token(const sli_bpe *bpe, int32_t id);
int32_t sli_bpe_id(const sli_bpe *bpe, const char *text, size_t bytes);

/* The ids of a text, as sl_tokens_encode has them; one that `continues` another gets no space
 * before it. Takes n log n steps for any n bytes. Errors: SL_ERR_UNSUPPORTED for a piece of 2 GiB,
 * SL_ERR_MEMORY. */
sl_status sli_bpe_encode(const sli_bpe *bpe, const char *text, size_t bytes, bool special,
                         bool continues, sl_tokens *out);

/* The same of one text after the other, by one thread: it remembers the ids of short pieces. */
typedef struct sli_bpe_encoder sli_bpe_encoder;

sl_status sli_bpe_encoder_create(const sli_bpe *bpe, sli_bpe_encoder **out);
void sli_bpe_encoder_destroy(sli_bpe_encoder **encoder); /* NULL is allowed */
sl_status sli_bpe_encoder_run(sli_bpe_encoder *encoder, const char *text, size_t bytes,
                              bool special, bool continues, sl_tokens *out);

/* Writes over a text of a file what it stands for. False where that is nothing; the text is then as
 * it was. */
bool sli_bpe_read_written(const sli_bpe *bpe, char *text, size_t *bytes);

/* ---- White space as SentencePiece has it (bpe_spaces.c) ----------------------------------- */

#define SLI_WRITTEN_SPACE "\xE2\x96\x81" /* U+2581 */

/* Writes spaces over those of a file, and gives the text's bytes, which are no more than before. */
size_t sli_read_spaces(char *text, size_t bytes);

bool sli_begins_with_space(const uint8_t *text, const uint8_t *end);

/* A copy [*bytes], malloc'ed, of a text in which U+2581 becomes a space; with `prefix` one is put
 * before it. Errors: SL_ERR_MEMORY. */
sl_status sli_copy_spaces(const uint8_t *begin, const uint8_t *end, bool prefix, uint8_t **copy,
                          size_t *bytes);

/* The pieces are words with all spaces before them; words with one, where each further space is a
 * piece; the whole text. */
extern const sli_splitter sli_before_words, sli_before_spaces, sli_nowhere;

/* Chooses how a text is split that the tokenizer does not split: where no token reaches across. */
void sli_bpe_split_where_none_reaches(sli_bpe *bpe);

/* ---- Bytes as characters (byte_characters.c) ---------------------------------------------- */

/* Writes over a text of characters that stand for bytes these bytes. False where one stands for
 * none; the text is then as it was. */
bool sli_bytes_of_characters(char *text, size_t *bytes);

/* The character that stands for a byte. */
uint32_t sli_character_of_byte(uint8_t byte);

/* ---- Its files (bpe_files.c) -------------------------------------------------------------- */

/* A text, called `name` in errors. */
typedef struct sli_named_text {
    const char *name, *text;
    size_t bytes;
} sli_named_text;

/* Of GPT-2's two files, and of a rank file. Errors: SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_bpe_parse_vocab(const sli_named_text *vocab, const sli_named_text *merges,
                              const sli_splitter *split, sli_bpe **out);
sl_status sli_bpe_parse_ranks(const sli_named_text *ranks, const sli_splitter *split,
                              sli_bpe **out);

/* Of SentencePiece's own file (sentencepiece.c). Errors: SL_ERR_FORMAT; SL_ERR_UNSUPPORTED for a
 * model of another kind, and for rules that are not read; SL_ERR_MEMORY. */
sl_status sli_bpe_parse_sentencepiece(const char *text, size_t bytes, sli_bpe **out);

/* Adds the tokens of an object of tokens and ids, written in characters that stand for bytes. An
 * added token may have others, which then stand for themselves. */
sl_status sli_bpe_read_tokens(const sli_json *json, sli_json_value object, sli_bpe *bpe);

/* Adds the merge of two tokens, as these are written. *expected is NULL, or what they should be. */
sl_status sli_bpe_read_merge(sli_bpe *bpe, uint32_t rank, sl_token left, sl_token right,
                             const char **expected);

#endif
