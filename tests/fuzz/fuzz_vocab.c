/* Any bytes as a tokenizer.json or SentencePiece's file, and as a config.json: each must end in one
 * sentence, or in what prints as a text that reads as the same. */
#include "fuzz/fuzz.h"

#include "models/config.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_status(sl_status status)
{
    demand(status == SL_OK || status == SL_ERR_FORMAT || status == SL_ERR_UNSUPPORTED,
           "refused for its format");
}

/* The text itself as one to be encoded. */
static void check_ids(const sl_vocab *vocab, const sl_vocab *again, const char *text, size_t bytes)
{
    for (int special = 0; special < 2; special++) {
        sl_tokens ids, others;
        demand(sl_tokens_encode(vocab, text, bytes, special, &ids) == SL_OK, "encoded");
        demand(sl_tokens_encode(again, text, bytes, special, &others) == SL_OK, "encoded again");
        demand(ids.count == others.count, "as many ids");
        for (int64_t i = 0; i < ids.count; i++)
            demand(ids.ids[i] == others.ids[i], "the same ids");
        sl_tokens_free(&ids);
        sl_tokens_free(&others);
    }
}

static void check_vocab(const char *text, size_t bytes)
{
    sl_vocab *vocab, *again;
    char *printed;
    sl_status status = sli_vocab_parse(text, bytes, &vocab);
    check_status(status);
    demand((status == SL_OK) == (vocab != NULL), "NULL after an error");
    if (status != SL_OK)
        return;
    demand(sli_vocab_print(vocab, &printed) == SL_OK, "printed");
    demand(sli_vocab_parse(printed, strlen(printed), &again) == SL_OK, "read again");
    demand(sl_vocab_size(vocab) == sl_vocab_size(again), "of the same size");
    for (int32_t id = 0; id < sl_vocab_size(vocab); id++) {
        sl_token token = sl_vocab_token(vocab, id), other = sl_vocab_token(again, id);
        demand(token.bytes == other.bytes && memcmp(token.text, other.text, token.bytes) == 0,
               "of the same tokens");
    }
    /* merges of one rank, as SentencePiece has them, are printed one after the other */
    check_ids(vocab, sli_is_sentencepiece(text, bytes) ? vocab : again, text, bytes);
    free(printed);
    sl_vocab_destroy(&vocab);
    sl_vocab_destroy(&again);
}

static void check_config(const char *text, size_t bytes)
{
    sl_model_options model, again;
    char *printed, *twice;
    sl_status status = sli_config_parse(text, bytes, &model);
    check_status(status);
    if (status != SL_OK)
        return;
    demand(sli_config_print(&model, SL_F32, &printed) == SL_OK, "printed");
    demand(sli_config_parse(printed, strlen(printed), &again) == SL_OK, "read again");
    demand(sli_config_print(&again, SL_F32, &twice) == SL_OK, "printed again");
    demand(strcmp(printed, twice) == 0, "the same config");
    free(printed);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1); /* of its own, so that reading past its end is seen */
    demand(text != NULL, "memory");
    memcpy(text, data, bytes);
    check_vocab(text, bytes);
    check_config(text, bytes);
    free(text);
    return 0;
}
