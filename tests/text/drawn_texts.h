/* Drawn texts, and the tokenizers that cut them, for tests. */
#ifndef TESTS_TEXT_DRAWN_TEXTS_H
#define TESTS_TEXT_DRAWN_TEXTS_H

#include "support/check.h"
#include "text/bpe.h"
#include "text/bpe_texts.h"

/* The 256 bytes, some words, and `more` lines of ranks with blanks in their tokens. */
static inline sl_vocab *make_vocab(const char *splitter, const char *more)
{
    static char ranks[BPE_TEXT_BYTES];
    sli_bpe *bpe;
    sl_vocab *vocab = NULL;
    size_t bytes = write_ranks(ranks, "\n\n Wo rd Word !\n ...\n aa \r\n ");
    strcpy(ranks + bytes, more);
    const sli_named_text file = {"R", ranks, strlen(ranks)};
    check_ok(sli_bpe_parse_ranks(&file, sli_splitter_find(splitter), &bpe));
    check_ok(sli_vocab_of_bpe(bpe, &vocab));
    return vocab;
}

/* A text of pieces that patterns treat in their own ways, at the ends of lines above all: of Latin,
 * Cyrillic and Han letters, with an accent that composes, spaces of Unicode, bytes that are no
 * character, and <tag>. */
static inline size_t draw_text(unsigned *seed, char *text, int pieces)
{
    static const char *const of[] = {"\n",
                                     "\n",
                                     "\n ",
                                     " \n",
                                     "\r\n",
                                     "  ",
                                     "\t",
                                     "a",
                                     " Word",
                                     "'s",
                                     "1",
                                     " 12",
                                     "!",
                                     "...\n",
                                     "\xC3\xA9",
                                     "\xC2\xA0",
                                     "/",
                                     "\xFF",
                                     "Z",
                                     " ",
                                     "\xD0\xB6",
                                     " \xD0\xB6",
                                     "\xE4\xB8\xAD",
                                     "\xE3\x80\x80",
                                     "\xE3\x80\x82",
                                     "\xCC\x81",
                                     "\xE2\x96\x81",
                                     "\xE4\xB8",
                                     "<tag>",
                                     " <tag>",
                                     "<tag>\n"};
    size_t used = 0;
    for (int i = 0; i < pieces; i++) {
        const char *piece = of[test_draw(seed, 0, (int)(sizeof of / sizeof *of) - 1)];
        memcpy(text + used, piece, strlen(piece));
        used += strlen(piece);
    }
    return used;
}

#endif
