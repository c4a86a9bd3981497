/* Tensors of an open checkpoint one at a time, in any order: for a part that memory does not hold.
 * Checksums are of whole files, so they are not compared here: sli_checkpoint_verify_part comes
 * first. */
#ifndef SLI_IO_CHECKPOINT_PIECES_H
#define SLI_IO_CHECKPOINT_PIECES_H

#include "io/checkpoint/reader.h"

typedef struct sli_checkpoint_pieces sli_checkpoint_pieces;

/* The part's, which must be there. Borrows the reader. */
sl_status sli_checkpoint_pieces_create(const sl_checkpoint_reader *reader, const char *part,
                                       sli_checkpoint_pieces **out);
void sli_checkpoint_pieces_destroy(sli_checkpoint_pieces **pieces);

/* Reads all of a tensor, which the part must have, to `to`, which has its bytes. */
sl_status sli_checkpoint_pieces_read(const sli_checkpoint_pieces *pieces, const char *tensor,
                                     void *to);

#endif
