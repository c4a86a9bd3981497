/* A claim: one process at a time writes a file, from the start of its work until its end. */
#ifndef SLI_CORE_CLAIM_H
#define SLI_CORE_CLAIM_H

#include "sluice/status.h"

typedef struct sli_claim sli_claim;

/* Claims the file that `path` leads to, symbolic links followed, which need not exist. The claim is
 * a locked file beside it, .run.NAME.0123456789abcdef.tmp, which goes with the claim; the next
 * claim removes one whose process has died. On file systems without locks every claim is granted.
 * Errors, which begin with `path`: SL_ERR_CONFLICT where another process has claimed it, or claims
 * it at the same time; those of sli_replace_file_create (core/replace.h). */
sl_status sli_claim_create(const char *path, sli_claim **out);

/* NULL is allowed. */
void sli_claim_destroy(sli_claim **claim);

#endif
