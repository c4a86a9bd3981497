/* Where a text may be cut into parts that can be encoded apart. */
#ifndef SLI_TEXT_TEXT_PARTS_H
#define SLI_TEXT_TEXT_PARTS_H

#include "sluice/app/text.h"

/* The last place behind `first`, and before `bytes`, where a text may be cut; 0: there is none. */
size_t sli_text_last_cut(const sl_vocab *vocab, const char *text, size_t first, size_t bytes);

#endif
