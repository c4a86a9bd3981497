/* What is inside a vocabulary: tokens whose number is their id. */
#ifndef SLI_TEXT_VOCAB_H
#define SLI_TEXT_VOCAB_H

#include "text/token_table.h"

struct sl_vocab {
    sli_token_table tokens; /* the first is <unk> */
};

#define SLI_UNKNOWN_TOKEN "<unk>"
enum { SLI_UNKNOWN_TOKEN_BYTES = sizeof SLI_UNKNOWN_TOKEN - 1 };

/* A vocabulary without any token, not even <unk>. Errors: SL_ERR_MEMORY. */
sl_status sli_vocab_create_empty(sl_vocab **out);

#endif
