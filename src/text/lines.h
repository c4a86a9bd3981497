/* Lines of JSON that have text instead of ids. */
#ifndef SLI_TEXT_LINES_H
#define SLI_TEXT_LINES_H

#include "text/chat.h"

#include <jansson.h>

typedef struct sli_line_reading {
    const sl_vocab *vocab;
    bool mask_prompt;
    sli_chat chat; /* found by the first line that needs it; cleared by the owner */
    bool has_chat;
} sli_line_reading;

/* The ids of {"text"}, {"prompt", "completion"} or {"messages"}, added to an empty row. Errors:
 * SL_ERR_FORMAT with what is wrong with the line; those of sli_chat_find. */
sl_status sli_line_encode(sli_line_reading *reading, const json_t *line, sli_scored_ids *row);

#endif
