/* A batch's logits in a file, for a comparison with another program. */
#ifndef SLI_CLI_LOGITS_H
#define SLI_CLI_LOGITS_H

#include "sluice/pipe.h"
#include "sluice/text.h"

/* Writes to the safetensors file `path`, of the first of `batches`: what the model sees, `inputs`
 * I64 [N, T], what follows, `targets` I64 [N, T], and `logits` F32 [N, T, V], V tokens each.
 * Errors: those of sl_pipe_forward and sl_safetensors_save. */
sl_status cli_logits_write(const char *path, sl_pipe *pipe, const sl_batches *batches);

#endif
