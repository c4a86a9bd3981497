/* Beyond the public functions on readers: see sluice/safetensors.h. */
#ifndef SLI_IO_SAFETENSORS_READER_H
#define SLI_IO_SAFETENSORS_READER_H

#include "sluice/safetensors.h"

/* Bytes before the first tensor's, and of the whole file when it was opened. */
uint64_t sli_safetensors_head_bytes(const sl_safetensors_reader *reader);
uint64_t sli_safetensors_file_bytes(const sl_safetensors_reader *reader);

/* Reads bytes of the file as they are. Errors: SL_ERR_IO. */
sl_status sli_safetensors_read_raw(const sl_safetensors_reader *reader, uint64_t offset, void *to,
                                   uint64_t bytes);

/* The file's metadata, whose strings live as long as the reader: *notes [*count], to be freed. */
sl_status sli_safetensors_notes(const sl_safetensors_reader *reader, sl_safetensors_note **notes,
                                size_t *count);

#endif
