/* Rows of ids as the data of a task. */
#ifndef SLI_TRAIN_LOOP_ROWS_TASK_H
#define SLI_TRAIN_LOOP_ROWS_TASK_H

#include "text/kept_rows.h"
#include "text/mixture.h"
#include "text/tokens.h"
#include "train/loop/length_groups.h"

/* One of the places that rows come from. */
typedef struct sli_rows_source {
    const char *name;             /* NULL: it has none */
    char *paths[SL_SPLITS];       /* NULL: there is no such split */
    sl_rows *rows[SL_SPLITS];     /* the same */
    int64_t documents;            /* for training, which were packed; 0: they are not */
    json_t *described[SL_SPLITS]; /* what the rows are of; NULL: they are not to be kept */
    bool is_kept[SL_SPLITS];
} sli_rows_source;

typedef struct sli_rows_task {
    const sl_model_options *model;
    sl_sources named;         /* has the sources' names */
    sli_rows_source *sources; /* [count] */
    int count;
    sli_mixture mixture;       /* of the sources */
    int64_t batches_per_epoch; /* that the run trains; set before rows for training are loaded */
    char *data[SL_SPLITS];     /* what tells them from others */
    sli_length_groups *groups; /* of training rows; NULL: they come in their order */
} sli_rows_task;

/* Whether data are rows of ids: a file of JSON lines or a token file, or a directory with such ones
 * for training; or sources, which must be. Errors: those of sl_sources_parse. */
sl_status sli_data_is_rows(const char *data, bool *out);

/* Reads the splits of options->data that are there; one file is for training alone. `vocab`, of
 * text (NULL: there are ids alone), must fit the model. Ids are those of `model`, or where that has
 * no tokens yet, it gets as many as the vocabulary has or the training rows need. To be cleared,
 * also after an error. What lines of text become may be kept. (rows_sources.c) */
sl_status sli_rows_task_read(const sl_train_options *options, const sl_vocab *vocab,
                             const sli_tokenizing *tokenizing, sl_model_options *model,
                             sli_rows_task *out);

/* Keeps the rows that were not read there, and removes those of data that the run does not have.
 * Errors: those of sli_kept_rows_write and sli_kept_rows_remove_others. (rows_sources.c) */
sl_status sli_rows_task_keep(const sli_rows_task *rows, const char *kept);
void sli_rows_task_clear(sli_rows_task *rows);

/* Refuses rows of more tokens than the model has positions: those of a text or of token files are
 * as long as the options say. (rows_sources.c) */
sl_status sli_check_row_length(const sl_train_options *options);

/* The most tokens of a row of any split. (rows_sources.c) */
int64_t sli_rows_task_longest(const sli_rows_task *rows);

/* The batches of a split for evaluation that have a source's rows, of `rows` each: from *first on
 * there are *count. */
void sli_rows_task_batches(const sli_rows_task *task, sl_split split, int source, int64_t rows,
                           int64_t *first, int64_t *count);

/* What some rows have, of a batch for training or of an evaluation that is cut into `micros`
 * micro-batches: tokens, how many there are with the padding of each micro-batch to its longest
 * row, and the squares of the lengths of their documents, padding being one. Errors: SL_ERR_MEMORY.
 */
typedef struct sli_rows_size {
    int64_t tokens, padded;
    double squares;
} sli_rows_size;
sl_status sli_rows_task_measure(const sli_rows_task *task, const sl_train_rows *rows, int micros,
                                sli_rows_size *out);

/* What each source has of some rows of a batch for training. */
typedef struct sli_source_part {
    int64_t rows, targets;
    double loss; /* the sum over the targets, row by row */
} sli_source_part;

/* Adds to `parts` [task->count] what each source has of some rows, with their `losses`
 * [rows->count] (NULL: none). Errors: SL_ERR_MEMORY. */
sl_status sli_rows_task_divide(const sli_rows_task *task, const sl_train_rows *rows,
                               const double *losses, sli_source_part *parts);

/* How often a source has been passed after so many samples of the run. */
double sli_rows_task_epochs(const sli_rows_task *task, int source, int64_t samples);

/* What a batch has beside its input and its targets. */
typedef struct sli_rows_extra {
    sl_tensor *documents; /* SL_DOCUMENTS_INPUT; NULL: the rows are not packed */
    int64_t *lengths;     /* [rows] */
} sli_rows_extra;

/* Replaces what `out` has, zeros at first, by that of some rows. To be cleared, also after an
 * error. Errors: SL_ERR_MEMORY. */
sl_status sli_rows_task_load_extra(const sli_rows_task *task, const sl_train_rows *rows,
                                   sl_device *device, sli_rows_extra *out);
void sli_rows_extra_clear(sli_rows_extra *extra);

/* Some rows of a batch as they are loaded, [rows, columns] each. */
typedef struct sli_row_block {
    int64_t rows, columns;
    int32_t *ids, *targets;
    int32_t *memory; /* [room], of both */
    size_t room;
} sli_row_block;

/* Fills a block, which is zeros or has other rows. Errors: SL_ERR_MEMORY; SL_ERR_FORMAT for an id
 * of a file that is over the vocabulary. */
sl_status sli_rows_task_gather(const sli_rows_task *task, const sl_train_rows *rows,
                               sli_row_block *block);
void sli_row_block_clear(sli_row_block *block);

/* Creates the tensors of a block. After an error the caller destroys what is there. */
sl_status sli_row_block_load(const sli_row_block *block, sl_device *input_device,
                             sl_device *target_device, sl_tensor **input, sl_tensor **targets);

/* The task, which borrows `rows`. */
sl_train_task sli_rows_task_make(sli_rows_task *rows);

#endif
