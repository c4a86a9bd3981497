/* What is inside a vocabulary: tokens whose number is their id. */
#ifndef SLI_TEXT_VOCAB_H
#define SLI_TEXT_VOCAB_H

#include "core/checksum.h"
#include "sluice/text.h"
#include "text/token_table.h"

struct sl_vocab {
    sli_token_table tokens; /* the first is <unk> */
};

#define SLI_UNKNOWN_TOKEN "<unk>"
enum { SLI_UNKNOWN_TOKEN_BYTES = sizeof SLI_UNKNOWN_TOKEN - 1 };

/* The file that sl_vocab_save writes, as malloc'ed text without an end. */
sl_status sli_vocab_text(const sl_vocab *vocab, char **text, size_t *bytes);

/* That file's checksum. Errors: SL_ERR_MEMORY. */
sl_status sli_vocab_checksum(const sl_vocab *vocab, char text[SLI_CHECKSUM_BYTES]);

#endif
