/* Low-rank adapters of a model: which layers have them, and what adapter_config.json says. */
#ifndef SLI_MODELS_LORA_H
#define SLI_MODELS_LORA_H

#include "sluice/model.h"

#define SLI_ADAPTER_CONFIG_FILE "adapter_config.json"
#define SLI_ADAPTER_PREFIX      "base_model.model." /* of tensors, before the parameters' names */

/* Freezes all parameters of a decoder and gives its targets adapters, whose parameters are named
 * "….q_proj.lora_A.weight". Errors: SL_ERR_INVALID for numbers out of range, another family, a
 * target that no layer has, and a rank above a layer's widths. */
sl_status sli_model_add_lora(const sl_model_options *options, sl_module *model);

/* What they are, where 0 is the default. */
int64_t sli_lora_rank(const sl_lora_options *lora);
float sli_lora_alpha(const sl_lora_options *lora);

/* The layers that have adapters: from *first on, before *end. Errors: SL_ERR_INVALID for some that
 * the model does not have. */
sl_status sli_lora_layers(const sl_model_options *options, int64_t *first, int64_t *end);

/* The targets as PEFT says them: names with commas between them, where all-linear is the name of
 * every linear layer. */
sl_status sli_lora_names(const sl_model_options *options, sl_module *model,
                         char names[SL_LORA_TARGETS_BYTES]);

/* Is this the name of an adapter's parameter? */
bool sli_is_lora_name(const char *name);

/* Prints the adapter_config.json that PEFT writes; *text is malloc'ed. Errors: as
 * sli_model_add_lora, SL_ERR_MEMORY. */
sl_status sli_adapter_config_print(const sl_model_options *model, char **text);

/* Reads one. Errors, each one sentence about "it": SL_ERR_FORMAT naming the member,
 * SL_ERR_UNSUPPORTED for what sluice does not serve, SL_ERR_MEMORY. */
sl_status sli_adapter_config_parse(const char *text, size_t bytes, sl_lora_options *out);

#endif
