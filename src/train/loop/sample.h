/* What the model says while it is trained. */
#ifndef SLI_TRAIN_LOOP_SAMPLE_H
#define SLI_TRAIN_LOOP_SAMPLE_H

#include "train/loop/run.h"

/* The prompt and how it goes on. Every rank of the first replica calls this; its first rank has the
 * tokenizer. *out is NULL where nothing is asked for, and on other replicas. Errors:
 * SL_ERR_NOT_FOUND without a tokenizer, SL_ERR_INVALID for a prompt without tokens, SL_ERR_MEMORY.
 */
sl_status sli_sampler_create(const sli_run *run, sli_sampler **out);
void sli_sampler_destroy(sli_sampler **sampler); /* NULL is allowed */

/* After a step: where it is due, lets the model go on with the prompt, as `sluice generate` would
 * from a checkpoint of this step, and tells the reporters. Nothing that a step depends on changes.
 * A model whose output is not finite says nothing, and the run goes on. */
sl_status sli_run_sample(const sli_run *run);

#endif
