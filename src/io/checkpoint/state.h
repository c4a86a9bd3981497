/* The file state.json of a checkpoint:
 *
 *   {"format": "sluice checkpoint", "format_version": 1, "version": "0.1.0",
 *    "id": "93c1…",                          of this checkpoint; every tensor file says it as well
 *    "files": [{"name": "model.safetensors", "part": "model", "bytes": 96, "xxh128": "…"}, …],
 *    "run": {…},                             what the caller gave
 *    "xxh128": "…"}                          of all the other members as they stand there, but for
 *                                            the blanks outside of strings
 */
#ifndef SLI_IO_CHECKPOINT_STATE_H
#define SLI_IO_CHECKPOINT_STATE_H

#include "core/checksum.h"
#include "sluice/checkpoint.h"

#define SLI_CHECKPOINT_STATE "state.json"
/* The key of a tensor file's metadata that holds the id. */
#define SLI_CHECKPOINT_ID_KEY "sluice.checkpoint"

#define SLI_CHECKPOINT_CHECKSUM_KEY "xxh128"

struct json_t;

enum { SLI_CHECKPOINT_ID_BYTES = 17 };

typedef struct sli_checkpoint_state {
    char *strings; /* all but `run` */
    const char *id, *version;
    char *run;                      /* without blanks */
    sl_checkpoint_file_info *files; /* [count] */
    size_t count;
    const char *parts[SL_CHECKPOINT_MOST_PARTS]; /* [part_count] that they belong to */
    size_t part_count;
} sli_checkpoint_state;

/* Prints one; `*text` is malloc'ed. `files` (borrowed) is the array above. Errors: SL_ERR_INVALID
 * where `run` is no JSON object. */
sl_status sli_checkpoint_state_print(const char *id, const char *run, struct json_t *files,
                                     char **text);

/* Reads one. Errors: SL_ERR_FORMAT with one sentence. */
sl_status sli_checkpoint_state_parse(const char *text, size_t length, sli_checkpoint_state *out);
void sli_checkpoint_state_clear(sli_checkpoint_state *state);

#endif
