/* The tokens of a text that a run has read, kept in a directory of its own, so that it reads them
 * when it goes on. They are token files with a manifest that says of which lines of the text. */
#ifndef SLI_TEXT_KEPT_TOKENS_H
#define SLI_TEXT_KEPT_TOKENS_H

#include "text/token_manifest.h"
#include "text/tokens.h"

/* A text as manifests have it: path, bytes and checksum. Reads all of the file. Errors:
 * SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_MEMORY. */
sl_status sli_kept_identify(const char *path, json_t **out);

/* What tokens are of: such a file, with the range. Errors: SL_ERR_MEMORY. */
sl_status sli_kept_describe(const json_t *file, sli_text_range range, json_t **source);

/* The tokens of this source by this tokenizer; out->ids is NULL where they are not kept, or not
 * whole: their checksums are compared. Errors: SL_ERR_MEMORY, SL_ERR_IO. */
sl_status sli_kept_read(const char *directory, sl_split split, const sl_vocab *vocab,
                        const json_t *source, sl_tokens *out);

/* Keeps them, in place of those of another text or tokenizer, and of what a run that was cut off
 * has left. Errors: SL_ERR_INVALID where the file is not one that this function has written, or a
 * damaged manifest does not say; those of writing it. */
sl_status sli_kept_write(const char *directory, sl_split split, const sl_vocab *vocab,
                         json_t *source, const sl_tokens *tokens);

/* Removes the record of a run that was killed when it had kept them, if there is one. Errors:
 * SL_ERR_MEMORY, SL_ERR_IO. */
sl_status sli_kept_remove_record(const char *directory, sl_split split);

#endif
