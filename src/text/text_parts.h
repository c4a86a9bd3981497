/* Cutting a text for a BPE into parts that can be encoded apart. */
#ifndef SLI_TEXT_TEXT_PARTS_H
#define SLI_TEXT_TEXT_PARTS_H

#include "sluice/app/text.h"

/* The last place behind `first`, and before `bytes`, where a text may be cut; 0: there is none. */
size_t sli_text_last_cut(const sl_vocab *vocab, const char *text, size_t first, size_t bytes);

/* The ids of a text in which no special token is looked for, and which may continue another, by
 * threads that each encode parts of about so many bytes. The ids are those of the whole. Errors: as
 * sl_tokens_encode. */
sl_status sli_text_encode_parts(const sl_vocab *vocab, const char *text, size_t bytes,
                                bool continues, size_t part_bytes, int threads, sl_tokens *out);

enum { SLI_TEXT_PART_BYTES = 1 << 20 }; /* short words come again often enough within a part */

#endif
