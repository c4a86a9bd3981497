/* The language model of a text as a task. */
#ifndef SLI_TRAIN_LOOP_LANGUAGE_H
#define SLI_TRAIN_LOOP_LANGUAGE_H

#include "sluice/app/train.h"

typedef struct sli_language {
    const sl_model_options *model;
    const sl_corpus *corpus; /* NULL: only `tokens` */
    const sl_tokens *tokens[SL_SPLITS];
    int64_t bptt;
    int64_t shard_rows; /* of a batch for training, which has the rows of all shards */
    bool whole_rows;    /* a shorter last block is not trained */
    char data[SL_SPLITS][96];
} sli_language;

/* The task of a language, which is borrowed. */
sl_train_task sli_language_task(sli_language *language);

#endif
