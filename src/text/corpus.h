/* A corpus whose tokens are kept. */
#ifndef SLI_TEXT_CORPUS_H
#define SLI_TEXT_CORPUS_H

#include "sluice/app/text.h"

/* sl_corpus_load, where the tokens of a BPE may be kept in a directory, which need not exist: they
 * are read there if they are those of this text and this tokenizer. NULL: they are not kept. */
sl_status sli_corpus_load(const char *data, const sl_vocab *vocab, const char *kept,
                          sl_corpus **out);

/* Keeps the tokens of such a corpus that were not read there. Errors: those of sli_kept_write. */
sl_status sli_corpus_keep(const sl_corpus *corpus, const char *directory);

#endif
