/* Conversations as ids: the templates of models that follow instructions. */
#ifndef SLI_TEXT_CHAT_H
#define SLI_TEXT_CHAT_H

#include "sluice/app/text.h"

/* The ids of a row, and which of them count in the loss. */
typedef struct sli_scored_ids {
    int32_t *ids;
    bool *scored; /* [count] */
    size_t count, ids_room, scored_room;
} sli_scored_ids;

void sli_scored_ids_free(sli_scored_ids *row); /* leaves zeros */

sl_status sli_scored_ids_add(sli_scored_ids *row, int32_t id, bool scored);

/* Adds the ids of `prefix` and `text` as one text; those of the prefix alone do not count. */
sl_status sli_scored_ids_add_text(sli_scored_ids *row, const sl_vocab *vocab, const char *prefix,
                                  const char *text, size_t bytes, bool scored);

typedef enum sli_chat_kind { SLI_CHATML, SLI_CHAT_LLAMA3 } sli_chat_kind;

enum { SLI_CHAT_MARKS = 4 };

/* How a tokenizer's conversations look.
 *
 *   CHATML   <|im_start|>ROLE, line end, CONTENT<|im_end|>, line end
 *   LLAMA3   <|begin_of_text|> once, then <|start_header_id|>ROLE<|end_header_id|>, two line ends,
 *            CONTENT without white space at its ends<|eot_id|> */
typedef struct sli_chat {
    const sl_vocab *vocab;
    sli_chat_kind kind;
    int32_t marks[SLI_CHAT_MARKS]; /* the ids of those above, in their order */
    char *system;                  /* what stands where the first message is no system's; NULL */
} sli_chat;

/* Finds it by the chat_template in the tokenizer's tokenizer_config.json. Errors: SL_ERR_NOT_FOUND
 * where there is none; SL_ERR_UNSUPPORTED for another one, whose begin is shown; SL_ERR_MEMORY. */
sl_status sli_chat_find(const sl_vocab *vocab, sli_chat *out);
void sli_chat_clear(sli_chat *chat); /* leaves zeros */

/* Begins a conversation whose first message is of a role. */
sl_status sli_chat_begin(const sli_chat *chat, const char *first_role, sli_scored_ids *row);

/* Adds a message; `scored`: what stands behind the role counts, its end included. */
sl_status sli_chat_add(const sli_chat *chat, const char *role, const char *content, size_t bytes,
                       bool scored, sli_scored_ids *row);

#endif
