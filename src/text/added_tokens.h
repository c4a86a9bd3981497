/* Tokens that are found in a text before it is split into pieces, such as <|endoftext|>. */
#ifndef SLI_TEXT_ADDED_TOKENS_H
#define SLI_TEXT_ADDED_TOKENS_H

#include "sluice/app/text.h"

/* As Hugging Face's tokenizers has them (AddedToken). */
typedef struct sli_added_token {
    int32_t id;
    bool special;        /* text means it only where the caller says so */
    bool single_word;    /* no letter, digit or _ beside it */
    bool lstrip, rstrip; /* it takes the white space on that side */
    bool normalized;     /* it is looked for in the composed text, behind those that are not */
    sl_token content;
} sli_added_token;

typedef struct sli_added_tokens {
    sli_added_token *all; /* [count] by `normalized`, first byte, falling length and bytes */
    size_t count, room;
    size_t begins[2][257]; /* of those of a first byte, by `normalized` */
    bool has_ordinary[2];  /* one that is not special, by `normalized` */
    bool reaches;          /* of these, one that has a blank or a line end, or takes white space */
    char *bytes;           /* of their contents */
    size_t prefix;         /* spaces before those that are `normalized`: 0 or 1 */
} sli_added_tokens;

/* Adds a token, whose content must live until sli_added_tokens_finish copies it. With a prefix, a
 * normalized text has a space before such a token, which is part of it. Errors: SL_ERR_MEMORY. */
sl_status sli_added_tokens_add(sli_added_tokens *added, const sli_added_token *token);
sl_status sli_added_tokens_finish(sli_added_tokens *added, bool prefix);
void sli_added_tokens_free(sli_added_tokens *added); /* leaves zeros */

/* The one with that content; NULL: there is none. */
const sli_added_token *sli_added_tokens_find(const sli_added_tokens *added, const char *text,
                                             size_t bytes);

typedef struct sli_added_match {
    const uint8_t *begin, *end;
    int32_t id;
} sli_added_match;

/* The next added token of one kind in a text at or behind `start`, of those that begin at a place
 * the longest; special ones only where the caller says so. False: there is none. */
bool sli_added_tokens_next(const sli_added_tokens *added, bool normalized, bool special,
                           const uint8_t *text, const uint8_t *start, const uint8_t *end,
                           sli_added_match *out);

#endif
