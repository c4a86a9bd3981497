/* A model as a GGUF file: gguf_model.c has its sizes and tensors, gguf_tokenizer.c its tokenizer.
 */
#ifndef SLI_TRAIN_CHECKPOINT_GGUF_H
#define SLI_TRAIN_CHECKPOINT_GGUF_H

#include "io/gguf/gguf.h"
#include "sluice/app/train.h"

/* Adds a vocabulary (NULL: none) of a model with `ntokens` rows, and the ids of its config. Errors:
 * SL_ERR_UNSUPPORTED for one of words, for a template of more tokens than a file can name, and for
 * a token with a byte 0; SL_ERR_MEMORY. */
sl_status sli_gguf_add_tokenizer(sli_gguf *file, const sl_model_options *model,
                                 const sl_vocab *vocab);

#endif
