/* An open checkpoint, as the functions that read it see it. */
#ifndef SLI_IO_CHECKPOINT_READER_H
#define SLI_IO_CHECKPOINT_READER_H

#include "io/checkpoint_state.h"

#include <stdbool.h>

struct sl_checkpoint_reader {
    char *path;
    sli_checkpoint_state state;
    sl_safetensors_reader **shards; /* [state.count]; NULL for files without tensors */
};

/* Whether file `index` has tensors of the part. */
bool sli_checkpoint_is_shard(const sl_checkpoint_reader *reader, size_t index, const char *part);

/* "PATH/NAME"; malloc'ed. */
sl_status sli_checkpoint_path(const char *path, const char *name, char **out);

/* Reads file `index` from its first byte to its last and compares its checksum. Where it has
 * tensors, place(context, info) says where to put each one's bytes; NULL: nowhere. `place` may be
 * NULL. */
typedef void *(*sli_checkpoint_place)(void *context, const sl_safetensors_info *info);
sl_status sli_checkpoint_stream(const sl_checkpoint_reader *reader, size_t index,
                                sli_checkpoint_place place, void *context);

#endif
