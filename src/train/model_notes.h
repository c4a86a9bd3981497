/* A model's options as a weights file's metadata: what shapes alone do not say. */
#ifndef SLI_TRAIN_MODEL_NOTES_H
#define SLI_TRAIN_MODEL_NOTES_H

#include "io/safetensors_set.h"
#include "sluice/model.h"

enum { SLI_MODEL_NOTES = 9, SLI_NOTE_BYTES = 32 };

typedef struct sli_model_notes {
    sl_safetensors_note notes[SLI_MODEL_NOTES]; /* point into `text` */
    char text[SLI_MODEL_NOTES][SLI_NOTE_BYTES];
} sli_model_notes;

void sli_model_notes_write(const sl_model_options *model, sli_model_notes *out);

/* SL_ERR_FORMAT where one is missing or makes no sense. `path` is the set's, for messages. */
sl_status sli_model_notes_read(const sli_safetensors_set *from, const char *path,
                               sl_model_options *out);

/* Refuses a file whose notes, where it has them, contradict `model` in what shapes do not show:
 * nhead, mask, activation, pre_norm. */
sl_status sli_model_notes_check(const sli_safetensors_set *from, const char *path,
                                const sl_model_options *model);

#endif
