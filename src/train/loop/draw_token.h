/* Drawing the next token of a text. */
#ifndef SLI_TRAIN_DRAW_TOKEN_H
#define SLI_TRAIN_DRAW_TOKEN_H

#include "sluice/app/inference.h"

typedef struct sli_drawing sli_drawing; /* room for the logits of one token */

sl_status sli_drawing_create(int64_t ntokens, sli_drawing **out);
void sli_drawing_destroy(sli_drawing **drawing);

/* The token behind ids[0 … length - 1], which are all in the vocabulary, from its `logits`
 * [ntokens], which change. The same for the same arguments. Errors: SL_ERR_NUMERIC for logits that
 * are not finite. */
sl_status sli_draw_token(const sli_drawing *drawing, const sl_generate_options *options,
                         const int32_t *ids, int64_t length, float *logits, int32_t *out);

#endif
