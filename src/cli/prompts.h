/* Prompts of a text, and many of a file, which are gone on with at once. */
#ifndef SLI_CLI_PROMPTS_H
#define SLI_CLI_PROMPTS_H

#include "cli/cli.h"
#include "sluice/app/inference.h"

/* The ids of a prompt, to be freed with sl_tokens_free. Errors: SL_ERR_INVALID for one without a
 * token. */
sl_status cli_prompt_encode(const cli_saved_model *model, const char *text, sl_tokens *out);

typedef struct cli_prompts_options {
    const char *path; /* JSON lines, if it is called ….jsonl; else a prompt a line; the first
                         process reads it */
    bool json;        /* print JSON lines */
    int64_t tokens;   /* to add at most */
    const sl_generate_options *generation;
} cli_prompts_options;

/* Goes on with each prompt in every process, and prints the texts in their order as they are
 * complete. Errors, with file and line: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_INVALID;
 * those of sl_chat_encode and sl_generate_texts. */
sl_status cli_prompts_run(const cli_prompts_options *options, const cli_saved_model *model);

#endif
