/* The families of models: what the members of their config.json mean. */
#ifndef SLI_MODELS_FAMILY_H
#define SLI_MODELS_FAMILY_H

#include "core/json.h"
#include "sluice/model.h"

/* `parse` fills `out`, which has its family and is otherwise 0; errors are those of
 * sli_config_parse. `print` gives an object without model_type; NULL: there is no memory. */
typedef struct sli_family {
    sl_status (*parse)(const json_t *config, sl_model_options *out);
    json_t *(*print)(const sl_model_options *model);
} sli_family;

extern const sli_family sli_family_tutorials, sli_family_gpt2, sli_family_llama;

/* A number that a model is made of: from 1 to `most`. */
typedef struct sli_model_size {
    const char *name;
    int64_t value, most;
} sli_model_size;

/* `who`: the function, in errors (SL_ERR_INVALID). */
sl_status sli_check_sizes(const char *who, const sli_model_size *sizes, size_t count);

/* Tokens of a row, where nothing else is said. */
int64_t sli_decoder_context(const sl_model_options *model);

/* sli_config_compare of two of the tutorials'. */
sl_status sli_tutorials_compare(const sl_model_options *model, const sl_model_options *wanted);

/* Members of a config (config_members.c). One that is null is as if it were missing. */

/* A whole number from 1 to `most`. A missing one is *out as it was; below 1 it must be there. */
sl_status sli_config_integer(const json_t *config, const char *key, int64_t most, int64_t *out);
/* The same of a number of at least `least`. */
sl_status sli_config_number(const json_t *config, const char *key, double least, double *out);
sl_status sli_config_flag(const json_t *config, const char *key, bool *out);

/* A probability, which several keys may give: with the same value, if they are there. `keys` ends
 * with NULL. */
sl_status sli_config_dropout(const json_t *config, const char *const *keys, float *out);

/* The index in `names` (NULL-terminated) of a text; a missing one is *out as it was. */
sl_status sli_config_choice(const json_t *config, const char *key, const char *const *names,
                            int *out);

/* Refuses a flag that is there and not `served`. */
sl_status sli_config_need_flag(const json_t *config, const char *key, bool served);

/* Refuses a member that is there. */
sl_status sli_config_need_none(const json_t *config, const char *key);

/* A float with the fewest digits that read as the same. */
json_t *sli_config_float(float value);

#endif
