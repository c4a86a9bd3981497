/* Weights files beyond the public functions (sluice/train.h): the model's options in their
 * metadata (weights.c), the vocabulary beside them (weights_vocab.c). */
#ifndef SLI_TRAIN_CHECKPOINT_WEIGHTS_H
#define SLI_TRAIN_CHECKPOINT_WEIGHTS_H

#include "io/checkpoint/format.h"
#include "sluice/train.h"

/* Refuses a file whose metadata, where it has them, contradict `model` in what shapes do not show:
 * nhead, mask, activation, pre_norm, tie. */
sl_status sli_weights_check_model(const char *path, const sl_model_options *model);

/* Fails as sl_weights_save would for a path that cannot be written or a disk without room; leaves
 * nothing behind. */
sl_status sli_weights_check_save(const sl_pipe *pipe, const char *path);

/* ---- A model's options as metadata: what shapes alone do not say ------------------------ */

enum { SLI_MODEL_METADATA = 11, SLI_MODEL_METADATA_BYTES = 40 };

typedef struct sli_model_metadata {
    sl_metadata rows[SLI_MODEL_METADATA]; /* [count] point into `text` */
    size_t count;
    char text[SLI_MODEL_METADATA][SLI_MODEL_METADATA_BYTES];
} sli_model_metadata;

/* `vocab_checksum` NULL: nothing is said of a vocabulary. Errors: SL_ERR_MEMORY. */
sl_status sli_model_metadata_write(const sl_model_options *model, const char *vocab_checksum,
                                   sli_model_metadata *out);

/* The checksum of the vocabulary that the weights were saved with; NULL where the file says
 * nothing. */
const char *sli_model_metadata_vocab(const sl_checkpoint_reader *from);

/* ---- The vocabulary --------------------------------------------------------------------- */

/* Before weights are saved at `path` with this vocabulary: brings it to disk, and takes none away
 * that weights need which are there. Does little where the older vocabulary is the same. */
sl_status sli_weights_vocab_begin(const char *path, const sl_vocab *vocab);

/* After: gives it its name. */
sl_status sli_weights_vocab_end(const char *path);

/* Refuses a vocabulary that is not the one that the weights at `path`, a file, index or directory,
 * say they were saved with. */
sl_status sli_weights_vocab_check(const char *path, const sl_vocab *vocab);

#endif
