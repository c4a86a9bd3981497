/* A model's config.json, and what it must have in common with the model's tensors.
 *
 *   {"model_type": "sluice_transformer", "ntokens": 28782, "emsize": 200, …}
 *
 * The member "model_type" names the family, which says what the others mean: family.h. */
#ifndef SLI_MODELS_CONFIG_H
#define SLI_MODELS_CONFIG_H

#include "io/checkpoint/format.h"
#include "sluice/model.h"

#define SLI_CONFIG_FILE "config.json"

/* Prints one; *text is malloc'ed. `dtype` is that of most tensors beside it, f32 or bf16. Errors:
 * SL_ERR_MEMORY. */
sl_status sli_config_print(const sl_model_options *model, sl_dtype dtype, char **text);

/* Reads one; members that change no numbers are ignored. Errors, each one sentence about "it":
 * SL_ERR_FORMAT naming the member, SL_ERR_UNSUPPORTED for another family and for a member's value
 * that sluice does not serve, SL_ERR_MEMORY. */
sl_status sli_config_parse(const char *text, size_t bytes, sl_model_options *out);

/* Forgets the ids of special tokens where `knows` says of one that the vocabulary has no such
 * token.
 */
void sli_config_drop_unknown_token_ids(sl_model_options *model,
                                       bool (*knows)(const void *vocab, int64_t id),
                                       const void *vocab);

/* Refuses a config of a model that is far larger than the tensors of `reader`, before such a model
 * is made: tensors that are missing or too many are named when they are read. Errors:
 * SL_ERR_FORMAT.
 */
sl_status sli_config_check_size(const sl_model_options *model, const sl_checkpoint_reader *reader);

/* Refuses a model that differs from `wanted` in what shapes of tensors do not show. Errors:
 * SL_ERR_INVALID naming the option and both values. */
sl_status sli_config_compare(const sl_model_options *model, const sl_model_options *wanted);

#endif
