/* A corpus whose tokens are kept. */
#ifndef SLI_TEXT_CORPUS_H
#define SLI_TEXT_CORPUS_H

#include "text/tokens.h"

/* sl_corpus_load, where the tokens of a BPE may be kept. */
sl_status sli_corpus_load(const char *data, const sl_vocab *vocab, const sli_tokenizing *tokenizing,
                          sl_corpus **out);

/* Keeps the tokens of such a corpus that were not read there. Errors: those of sli_kept_write. */
sl_status sli_corpus_keep(const sl_corpus *corpus, const char *directory);

#endif
