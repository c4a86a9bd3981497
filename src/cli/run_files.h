/* What a command writes must not replace what it reads. */
#ifndef SLI_CLI_RUN_FILES_H
#define SLI_CLI_RUN_FILES_H

#include "sluice/train.h"

/* The vocabulary that `data` writes to `vocab`. Errors: SL_ERR_INVALID, when that is one of the
 * texts in `directory`. */
sl_status cli_check_vocab_file(const char *vocab, const char *directory);

/* The logits that `eval` writes, the weights and the text that it reads. Errors as below. */
sl_status cli_check_logits_file(const char *logits, const char *init, const char *directory);

/* The files of a training; `log_json` and `config`, which is read, may be NULL. Weights may be
 * saved where they came from. Errors: SL_ERR_INVALID, when one that is written is a text, the
 * configuration or the weights to start from, or when two would be the same; SL_ERR_MEMORY. */
sl_status cli_check_train_files(const sl_train_options *options, const char *log_json,
                                const char *config);

#endif
