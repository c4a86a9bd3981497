/* Hugging Face's index of a model in several files, NAME.safetensors.index.json:
 *
 *   {"metadata": {"total_size": 4096}, "weight_map": {"0.weight": "NAME-00001-of-00002.…", …}} */
#ifndef SLI_IO_SAFETENSORS_INDEX_H
#define SLI_IO_SAFETENSORS_INDEX_H

#include "sluice/safetensors.h"

#include <stdbool.h>

typedef struct sli_index_entry {
    const char *tensor, *file;
} sli_index_entry;

typedef struct sli_checkpoint_index {
    char *strings;            /* of the entries */
    sli_index_entry *entries; /* [count], in the order of the tensors' names */
    size_t count;
} sli_checkpoint_index;

/* Reads one. Errors: SL_ERR_FORMAT with one sentence. */
sl_status sli_checkpoint_index_parse(const char *text, size_t length, sli_checkpoint_index *out);
void sli_checkpoint_index_clear(sli_checkpoint_index *index);

/* The files that it names, each once, in the order of their names: *files [*count], to be freed;
 * the strings live as long as the index. */
sl_status sli_checkpoint_index_files(const sli_checkpoint_index *index, const char ***files,
                                     size_t *count);

/* The file that holds the tensor, or NULL; it lives as long as the index. */
const char *sli_checkpoint_index_file(const sli_checkpoint_index *index, const char *tensor);

/* SL_ERR_FORMAT where the index does not say of each tensor of the file that it is in it. */
sl_status sli_checkpoint_index_compare(const sli_checkpoint_index *index, const char *file,
                                       const sl_safetensors_reader *reader);

#endif
