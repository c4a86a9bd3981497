/* A model as it lies on disk, in one file or in several:
 *
 *     model.safetensors                  a file
 *     model.safetensors.index.json       Hugging Face's index, the files of which lie beside it
 *     DIR                                a checkpoint, of which the part "model" is read, or a
 *                                        directory with one of the above
 */
#ifndef SLI_IO_SAFETENSORS_SET_H
#define SLI_IO_SAFETENSORS_SET_H

#include "sluice/safetensors.h"

typedef struct sli_safetensors_set sli_safetensors_set;

/* Opens them and checks all headers, and that the index names each tensor's file. Errors as
 * sl_safetensors_open and sl_checkpoint_open; SL_ERR_FORMAT for an index that does not fit. */
sl_status sli_safetensors_set_open(const char *path, sli_safetensors_set **out);
void sli_safetensors_set_close(sli_safetensors_set **set); /* NULL is allowed */

/* The files that have tensors; paths live as long as the set. */
size_t sli_safetensors_set_files(const sli_safetensors_set *set);
const char *sli_safetensors_set_file(const sli_safetensors_set *set, size_t index);

/* As of one file: each of the tensors, the one of that name or NULL, the value of a key of the
 * first file's metadata or NULL. */
size_t sli_safetensors_set_count(const sli_safetensors_set *set);
const sl_safetensors_info *sli_safetensors_set_get(const sli_safetensors_set *set, size_t index);
const sl_safetensors_info *sli_safetensors_set_find(const sli_safetensors_set *set,
                                                    const char *name);
const char *sli_safetensors_set_metadata(const sli_safetensors_set *set, const char *key);

/* The checksum that a checkpoint states for its other file of that name; NULL where the set is no
 * checkpoint, or has no such file. */
const char *sli_safetensors_set_checksum(const sli_safetensors_set *set, const char *file);

#endif
