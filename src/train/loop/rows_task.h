/* Rows of ids as the data of a task. */
#ifndef SLI_TRAIN_LOOP_ROWS_TASK_H
#define SLI_TRAIN_LOOP_ROWS_TASK_H

#include "train/loop/length_groups.h"

typedef struct sli_rows_task {
    const sl_model_options *model;
    char *paths[SL_SPLITS];   /* NULL: there is no such split */
    sl_rows *rows[SL_SPLITS]; /* the same */
    char data[SL_SPLITS][128];
    int64_t documents;         /* for training, which were packed; 0: they are not */
    sli_length_groups *groups; /* of training rows; NULL: they come as sl_train_sample says */
} sli_rows_task;

/* Whether data are rows of ids: a file of JSON lines, or a directory with train.jsonl. */
sl_status sli_data_is_rows(const char *data, bool *out);

/* Reads the splits of options->data that are there; one file is for training alone. `vocab`, of
 * text (NULL: there are ids alone), must fit the model. Ids are those of `model`, or where that has
 * no tokens yet, it gets as many as the vocabulary has or the training rows need. To be cleared,
 * also after an error. */
sl_status sli_rows_task_read(const sl_train_options *options, const sl_vocab *vocab,
                             sl_model_options *model, sli_rows_task *out);
void sli_rows_task_clear(sli_rows_task *rows);

/* The most tokens of a row of any split. */
int64_t sli_rows_task_longest(const sli_rows_task *rows);

/* What some rows have, of a batch for training or of an evaluation: tokens, the length that they
 * are padded to, and the squares of the lengths of their documents, padding being one. Errors:
 * SL_ERR_MEMORY. */
typedef struct sli_rows_size {
    int64_t tokens, longest;
    double squares;
} sli_rows_size;
sl_status sli_rows_task_measure(const sli_rows_task *task, const sl_train_rows *rows,
                                sli_rows_size *out);

/* Creates SL_DOCUMENTS_INPUT of some rows of a batch for training; *out is NULL where they are not
 * packed. */
sl_status sli_rows_task_load_documents(const sli_rows_task *task, const sl_train_rows *rows,
                                       sl_device *device, sl_tensor **out);

/* The task, which borrows `rows`. */
sl_train_task sli_rows_task_make(sli_rows_task *rows);

#endif
