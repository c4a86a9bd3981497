/* A model's options as a weights file's metadata: what shapes alone do not say. */
#ifndef SLI_TRAIN_CHECKPOINT_MODEL_NOTES_H
#define SLI_TRAIN_CHECKPOINT_MODEL_NOTES_H

#include "io/safetensors/set.h"
#include "sluice/model.h"

enum { SLI_MODEL_NOTES = 10, SLI_NOTE_BYTES = 40 };

typedef struct sli_model_notes {
    sl_metadata metadata[SLI_MODEL_NOTES]; /* [count] point into `text` */
    size_t count;
    char text[SLI_MODEL_NOTES][SLI_NOTE_BYTES];
} sli_model_notes;

/* `vocab_checksum` NULL: nothing is said of a vocabulary. */
void sli_model_notes_write(const sl_model_options *model, const char *vocab_checksum,
                           sli_model_notes *out);

/* SL_ERR_FORMAT where one is missing or makes no sense, or the file's tensors cannot be the
 * model's. `path` is the set's, for messages. */
sl_status sli_model_notes_read(const sli_safetensors_set *from, const char *path,
                               sl_model_options *out);

/* Refuses a file whose metadata, where it has them, contradict `model` in what shapes do not show:
 * nhead, mask, activation, pre_norm. */
sl_status sli_model_notes_check(const sli_safetensors_set *from, const char *path,
                                const sl_model_options *model);

/* The checksum of the vocabulary that the weights were saved with, as the file says; NULL where it
 * says nothing. */
const char *sli_model_notes_vocab(const sli_safetensors_set *from);

#endif
