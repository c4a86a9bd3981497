/* The files of a model's directory that have no tensors. */
#include "models/config.h"
#include "models/lora.h"
#include "text/vocab.h"
#include "train/checkpoint/checkpoints.h"

#include <stdlib.h>
#include <string.h>

/* One that is not NULL. */
static void add_text(sli_model_texts *out, const char *name, const char *text)
{
    if (text)
        out->files[out->count++] = (sl_checkpoint_file){name, text, strlen(text)};
}

sl_status sli_adapter_texts_make(const sl_model_options *model, sli_model_texts *out)
{
    SL_TRY(sli_adapter_config_print(model, &out->adapter));
    add_text(out, SLI_ADAPTER_CONFIG_FILE, out->adapter);
    return SL_OK;
}

sl_status sli_model_texts_make(const sl_model_options *model, const sl_vocab *vocab,
                               const sl_model_saving *settings, sli_model_texts *out)
{
    *out = (sli_model_texts){.count = 0};
    if (model)
        SL_TRY(sli_config_print(model, settings->type == SL_SAVED_BF16 ? SL_BF16 : SL_F32,
                                &out->config));
    if (vocab)
        SL_TRY(sli_vocab_print(vocab, &out->tokenizer));
    add_text(out, SLI_CONFIG_FILE, out->config);
    add_text(out, SLI_TOKENIZER_FILE, out->tokenizer);
    add_text(out, SLI_TOKENIZER_SETTINGS_FILE, vocab ? vocab->settings : NULL);
    add_text(out, SLI_GENERATION_FILE, settings->generation);
    return SL_OK;
}

void sli_model_texts_clear(sli_model_texts *texts)
{
    free(texts->config);
    free(texts->tokenizer);
    free(texts->adapter);
    *texts = (sli_model_texts){.count = 0};
}
