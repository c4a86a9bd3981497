/* The tokens of a text that a run has read, kept in a directory of its own, so that it reads them
 * when it goes on. They are token files with a manifest that says of which lines of the text. */
#ifndef SLI_TEXT_KEPT_TOKENS_H
#define SLI_TEXT_KEPT_TOKENS_H

#include "text/token_manifest.h"
#include "text/tokens.h"

/* What the tokens are of: a source as manifests have it, with the range. Reads all of the file.
 * Errors: SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_kept_describe(const char *path, sli_text_range range, json_t **source);

/* The tokens of this source by this tokenizer; out->ids is NULL where they are not kept, or not
 * whole. Errors: SL_ERR_MEMORY, SL_ERR_IO. */
sl_status sli_kept_read(const char *directory, sl_split split, const sl_vocab *vocab,
                        const json_t *source, sl_tokens *out);

/* Keeps them, in place of those of another text or tokenizer. Errors: SL_ERR_INVALID where the file
 * is not one that this function has written; those of writing it. */
sl_status sli_kept_write(const char *directory, sl_split split, const sl_vocab *vocab,
                         json_t *source, const sl_tokens *tokens);

#endif
