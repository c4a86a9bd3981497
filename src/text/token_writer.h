/* Writing token files with other limits than sl_tokens_write has. */
#ifndef SLI_TEXT_TOKEN_WRITER_H
#define SLI_TEXT_TOKEN_WRITER_H

#include "sluice/app/text.h"

/* What of texts is read, written and recorded at a time, and how many tokens a file may have. */
typedef struct sli_tokens_limits {
    uint64_t block_bytes;  /* of a text */
    uint64_t record_bytes; /* of texts between two records */
    int64_t file_tokens;
} sli_tokens_limits;

sl_status sli_tokens_write(const sl_vocab *vocab, const char *const *texts, int count,
                           const char *path, const sl_tokens_writing *writing,
                           const sli_tokens_limits *limits, sl_tokens_written *out);

#endif
