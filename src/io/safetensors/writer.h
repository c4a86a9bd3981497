/* Beyond the public functions on writers: see sluice/safetensors.h. */
#ifndef SLI_IO_SAFETENSORS_WRITER_H
#define SLI_IO_SAFETENSORS_WRITER_H

#include "core/checksum.h"
#include "sluice/safetensors.h"

uint64_t sli_safetensors_writer_bytes(const sl_safetensors_writer *writer); /* of the file */

/* The file's checksum, taken on the way, into `text` [SLI_CHECKSUM_BYTES]. All items must have been
 * put in the order in which they lie in the file, else it is an error. */
sl_status sli_safetensors_writer_checksum(const sl_safetensors_writer *writer, char *text);

#endif
