/* Warnings on standard error: a command does what it was asked to, but hardly what was meant. */
#ifndef SLI_CLI_WARNINGS_H
#define SLI_CLI_WARNINGS_H

#include "sluice/train.h"

/* Where a replica's batch has fewer rows than `chunks` asks micro-batches of it. */
void cli_warn_chunks(const sl_train_options *options, int replicas);

/* Where more than half of a text is <unk>; `path` is the text's, `vocabulary` names its
 * vocabulary. */
void cli_warn_unknown_text(const sl_tokens *tokens, const char *path, const char *vocabulary);

/* The same for the three texts of a run. */
void cli_warn_unknown_corpus(const sl_corpus *corpus, const char *init);

/* Where the vocabulary does not have words of the prompt. Errors: SL_ERR_MEMORY. */
sl_status cli_warn_unknown_words(const sl_vocab *vocab, const char *prompt);

#endif
