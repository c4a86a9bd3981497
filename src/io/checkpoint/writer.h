/* Saving step by step: by one writer, or by several that see the same directory, as ranks that each
 * have a shard of an optimizer's state.
 *
 *     writer 0                                  writers 1, 2, …
 *     create                                    create, joining   the same path and id
 *     add        what no other writer has
 *     add_shard  its own shard                  add_shard         theirs
 *                                               destroy
 *     list_shard after all have ended, each of theirs
 *     commit
 *     destroy
 */
#ifndef SLI_IO_CHECKPOINT_WRITER_H
#define SLI_IO_CHECKPOINT_WRITER_H

#include "core/checksum.h"
#include "sluice/checkpoint.h"

typedef struct sli_checkpoint_writer sli_checkpoint_writer;

/* What a writer tells writer 0 of its shard's file. */
typedef struct sli_checkpoint_written {
    uint64_t bytes;
    char checksum[SLI_CHECKSUM_BYTES];
} sli_checkpoint_written;

/* Where the bytes of items come from whose data are not in memory. They are asked for one after the
 * other; *data lives until the next is. */
typedef struct sli_checkpoint_source {
    sl_status (*read)(void *context, const char *part, const sl_safetensors_item *item,
                      const void **data);
    void *context;
} sli_checkpoint_source;

/* sl_checkpoint_save of items without data. */
sl_status sli_checkpoint_save_from(const char *path, const sl_checkpoint_contents *contents,
                                   const sli_checkpoint_source *source);

/* An older checkpoint at `path` may be replaced, but nothing else. `joins`: as one of writers 1, 2,
 * … Errors as sl_checkpoint_save. */
sl_status sli_checkpoint_writer_create(const char *path, uint64_t id, bool joins,
                                       sli_checkpoint_writer **out);

/* Parts and files, without the state. The parts' names are borrowed until the commit. `source`
 * NULL: the items have data. */
sl_status sli_checkpoint_writer_add(sli_checkpoint_writer *writer,
                                    const sl_checkpoint_contents *contents,
                                    const sli_checkpoint_source *source);

/* What rank `rank` of `ranks` has of a part, as PART-0000R-of-0000N.safetensors with R from 1. The
 * file is on disk then. */
sl_status sli_checkpoint_writer_add_shard(sli_checkpoint_writer *writer,
                                          const sl_checkpoint_part *part, int rank, int ranks,
                                          sli_checkpoint_written *written);

/* Lists another's shard. Errors: SL_ERR_IO where its file is not there as told, as where the
 * directory is another one. */
sl_status sli_checkpoint_writer_list_shard(sli_checkpoint_writer *writer, const char *part,
                                           int rank, int ranks,
                                           const sli_checkpoint_written *written);

/* The checkpoint is complete: it takes its name. `state` as in sl_checkpoint_contents. */
sl_status sli_checkpoint_writer_commit(sli_checkpoint_writer *writer, const char *state);

/* Writer 0's removes what it did not commit; NULL is allowed. */
void sli_checkpoint_writer_destroy(sli_checkpoint_writer **writer);

#endif
