/* Saving step by step: by one writer, or by several that see the same directory, as ranks that each
 * have a slice of an optimizer's state.
 *
 *     writer 0                                  writers 1, 2, …
 *     create                                    join              the same path and id
 *     add        what nobody else has
 *     write_own  its files of a shared part     write_own         theirs
 *                                               destroy
 *     list_all   after all have ended, what they say of their files
 *     commit
 *     destroy
 *
 * The writers agree on the id, and on the shared part's list of tensors, beforehand: from these
 * follow the names of all files. No one but writer 0 needs to know more of the checkpoint. */
#ifndef SLI_IO_CHECKPOINT_WRITER_H
#define SLI_IO_CHECKPOINT_WRITER_H

#include "core/checksum.h"
#include "io/checkpoint/plan.h"

typedef struct sli_checkpoint_writer sli_checkpoint_writer;

/* Of a file that is written. */
typedef struct sli_checkpoint_file {
    uint64_t bytes;
    char checksum[SLI_CHECKSUM_BYTES];
} sli_checkpoint_file;

/* Where the bytes of items come from whose data are not in memory. They are asked for one after the
 * other; *data lives until the next is. */
typedef struct sli_checkpoint_source {
    sl_status (*read)(void *context, const sl_safetensors_item *item, const void **data);
    void *context;
} sli_checkpoint_source;

/* A part that several write: the items of all of them, and how they lie in files. Of another's
 * items the data are not looked at. */
typedef struct sli_checkpoint_share {
    const sl_checkpoint_part *part;
    const sli_checkpoint_plan *plan;
    const sli_checkpoint_source *source; /* NULL: the items have data */
} sli_checkpoint_share;

/* An older checkpoint at `path` may be replaced, but nothing else. Errors as sl_checkpoint_save. */
sl_status sli_checkpoint_writer_create(const char *path, uint64_t id, sli_checkpoint_writer **out);
sl_status sli_checkpoint_writer_join(const char *path, uint64_t id, sli_checkpoint_writer **out);

/* Parts and files, without the state. The parts' names are borrowed until the commit. */
sl_status sli_checkpoint_writer_add(sli_checkpoint_writer *writer,
                                    const sl_checkpoint_contents *contents);

/* A part whose items have no data; `source` has. Its name is borrowed until the commit. */
sl_status sli_checkpoint_writer_add_from(sli_checkpoint_writer *writer,
                                         const sl_checkpoint_part *part, uint64_t shard_bytes,
                                         const sli_checkpoint_source *source);

/* Writes the files that the plan gives to writer `self`; they are on disk then. written [as many]
 * says what to tell writer 0. */
sl_status sli_checkpoint_writer_write_own(sli_checkpoint_writer *writer,
                                          const sli_checkpoint_share *share, int self,
                                          sli_checkpoint_file *written);

/* Lists all files of a shared part, of which written [plan->files] is known, with an index where
 * there are several. A file that is not there, as where the directory is another one, is an error.
 */
sl_status sli_checkpoint_writer_list_all(sli_checkpoint_writer *writer,
                                         const sli_checkpoint_share *share,
                                         const sli_checkpoint_file *written);

/* The checkpoint is complete: it takes its name. `state` as in sl_checkpoint_contents. */
sl_status sli_checkpoint_writer_commit(sli_checkpoint_writer *writer, const char *state);

/* Writer 0's removes what it did not commit; NULL is allowed. */
void sli_checkpoint_writer_destroy(sli_checkpoint_writer **writer);

#endif
