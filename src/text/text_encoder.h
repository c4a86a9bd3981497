/* Encoding texts, in which no special token is looked for, by threads that each encode parts of
 * them. The ids are those of the whole texts. */
#ifndef SLI_TEXT_TEXT_ENCODER_H
#define SLI_TEXT_TEXT_ENCODER_H

#include "core/error.h"
#include "sluice/app/text.h"

/* Its threads, and what they remember, stay from one text to the next. */
typedef struct sli_text_encoder sli_text_encoder;

/* So small that threads end at about the same time, also with a text of a few MiB. */
enum { SLI_TEXT_PART_BYTES = 1 << 15 };

/* Of at most so many threads, those that texts of so many bytes have work for: one for each whole
 * part, and one that reads and one that writes. */
int sli_text_encoder_threads(int most, uint64_t bytes);

/* Parts have about so many bytes. The vocabulary is borrowed. Errors: SL_ERR_MEMORY. */
sl_status sli_text_encoder_create(const sl_vocab *vocab, size_t part_bytes, int threads,
                                  sli_text_encoder **out);
void sli_text_encoder_destroy(sli_text_encoder **encoder); /* NULL is allowed */

/* The ids of a text in memory that may continue another. Errors: as sl_tokens_encode. */
sl_status sli_text_encoder_run(sli_text_encoder *encoder, const char *text, size_t bytes,
                               bool continues, sl_tokens *out);

/* ---- Texts that are not in memory --------------------------------------------------------- */

/* What is read of a text at a time: it ends where the text may be cut. */
typedef struct sli_text_block {
    char *text; /* [bytes], malloc'ed; NULL: all texts have ended */
    size_t bytes;
    int64_t number;    /* of the text, as its reader counts */
    bool begins, ends; /* its text */
} sli_text_block;

/* A part of a block, and its tokens. Their numbers of all parts add up to those of the texts. */
typedef struct sli_text_part {
    const char *text; /* [bytes] */
    size_t bytes;
    int64_t number;    /* of the text */
    bool begins, ends; /* its text */
    sl_tokens tokens;
    int64_t first; /* where its ids stand among those of a text in memory */
    sli_error_copy error;
} sli_text_part;

/* Where texts come from, and where their tokens go. Both functions are called by any thread, each
 * for one block or part after the other, in the order of the texts, and one while the other runs.
 */
typedef struct sli_text_stream {
    sl_status (*read)(void *context, sli_text_block *out); /* into zeros */
    sl_status (*write)(void *context, const sli_text_part *part);
    void *context;
    size_t batch_bytes; /* about so much is encoded while as much is read, and as much written */
} sli_text_stream;

/* Encodes all texts. Where reading fails, what was read before is written first. Errors: those of
 * the two functions; as sl_tokens_encode. */
sl_status sli_text_encoder_stream(sli_text_encoder *encoder, const sli_text_stream *stream);

#endif
