/* What is inside the training of a byte-level BPE. */
#ifndef SLI_TEXT_BPE_TRAIN_H
#define SLI_TEXT_BPE_TRAIN_H

#include "text/bpe.h"

/* The different pieces of texts, and how often each is there. */
typedef struct sli_pieces {
    sli_token_table table;
    int64_t *counts; /* [table.count] */
    size_t room;
} sli_pieces;

/* Counts the pieces of a file, whose lines are texts of their own, each with its line end.
 * *invalid: its bytes that are not UTF-8, which become U+FFFD. Errors: SL_ERR_NOT_FOUND, SL_ERR_IO,
 * SL_ERR_MEMORY; SL_ERR_FORMAT where the file is no regular one or is empty, or as
 * sli_check_is_text has it. */
sl_status sli_pieces_count(sli_pieces *pieces, const sli_splitter *split, const char *path,
                           int64_t *invalid);
sl_status sli_pieces_init(sli_pieces *pieces);
void sli_pieces_free(sli_pieces *pieces);

/* What sl_bpe_train does, but for the directory. */
sl_status sli_bpe_train(const char *const *paths, int count, const sl_bpe_training *training,
                        sl_vocab **out, sl_bpe_trained *result);

/* The tokenizer of pieces. Errors: SL_ERR_UNSUPPORTED for 4 GiB of them, SL_ERR_MEMORY. */
sl_status sli_bpe_learn(const sli_pieces *pieces, const sl_bpe_training *training,
                        const sli_splitter *split, sli_bpe **out);

#endif
