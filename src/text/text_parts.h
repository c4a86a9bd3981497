/* Cutting a text for a BPE into parts that can be encoded apart. */
#ifndef SLI_TEXT_TEXT_PARTS_H
#define SLI_TEXT_TEXT_PARTS_H

#include "sluice/app/text.h"

/* The last place behind `first`, and before `bytes`, where a text may be cut; 0: there is none. */
size_t sli_text_last_cut(const sl_vocab *vocab, const char *text, size_t first, size_t bytes);

/* Encodes texts in which no special token is looked for, one after the other, by threads that each
 * encode parts of them. The ids are those of the whole texts. Its threads, and what they remember,
 * stay from one text to the next. */
typedef struct sli_text_encoder sli_text_encoder;

/* Parts have about so many bytes. The vocabulary is borrowed. Errors: SL_ERR_MEMORY. */
sl_status sli_text_encoder_create(const sl_vocab *vocab, size_t part_bytes, int threads,
                                  sli_text_encoder **out);
void sli_text_encoder_destroy(sli_text_encoder **encoder); /* NULL is allowed */

/* The ids of a text that may continue another. Errors: as sl_tokens_encode. */
sl_status sli_text_encoder_run(sli_text_encoder *encoder, const char *text, size_t bytes,
                               bool continues, sl_tokens *out);

/* So small that threads end at about the same time, also with a text of a few MiB. */
enum { SLI_TEXT_PART_BYTES = 1 << 17 };

#endif
