/* Beyond the public functions on readers: see sluice/safetensors.h. */
#ifndef SLI_IO_SAFETENSORS_READER_H
#define SLI_IO_SAFETENSORS_READER_H

#include "sluice/safetensors.h"

/* Bytes before the first tensor's, and of the whole file when it was opened. */
uint64_t sli_safetensors_head_bytes(const sl_safetensors_reader *reader);
uint64_t sli_safetensors_file_bytes(const sl_safetensors_reader *reader);

/* A set of files keeps so many of them open; of the others it releases the descriptor, and each
 * read opens the file again. */
enum { SLI_SAFETENSORS_MOST_OPEN = 16 };
void sli_safetensors_release(sl_safetensors_reader *reader);

/* A descriptor to read from, to be given back. Errors: SL_ERR_NOT_FOUND and SL_ERR_IO where a
 * released file cannot be opened again, or is another one by then. */
sl_status sli_safetensors_acquire(const sl_safetensors_reader *reader, int *descriptor);
void sli_safetensors_give_back(const sl_safetensors_reader *reader, int descriptor);

/* As sl_safetensors_read, for bytes offset … offset + bytes - 1 of the tensor. */
sl_status sli_safetensors_read_bytes(const sl_safetensors_reader *reader,
                                     const sl_safetensors_info *info, uint64_t offset,
                                     uint64_t bytes, void *to);

/* Reads bytes of the file as they are. Errors: SL_ERR_IO. */
sl_status sli_safetensors_read_raw(int descriptor, uint64_t offset, void *to, uint64_t bytes);

/* The file's metadata, [*count], which live as long as the reader. */
const sl_metadata *sli_safetensors_all_metadata(const sl_safetensors_reader *reader, size_t *count);

#endif
