/* Reading a text file into token ids. */
#ifndef SLI_TEXT_TOKENS_H
#define SLI_TEXT_TOKENS_H

#include "sluice/text.h"

/* As sl_tokens_read, but that the ids are the builder's provisional ones, and the tokens are
 * counted there. */
sl_status sli_tokens_read_counting(sl_vocab_builder *builder, const char *path, sl_tokens *out);

#endif
