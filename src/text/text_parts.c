/* A text may be cut where every pattern ends a piece, in the part as in the whole text:
 *
 *     word| word      before a blank alone between what is no white space
 *     word\n|word     behind a line end that stands alone so, before a letter
 *
 * No pattern has a blank behind something else in a piece, and none a line end before a letter. Of
 * more white space GPT-2's pattern leaves the last character to what follows, but takes it all at
 * the end of a text. A text of SentencePiece's kind may be cut between a word and a space, if no
 * token reaches across. Added tokens that any text means must have no white space, and take none.
 */
#include "text/text_parts.h"

#include "text/bpe.h"

#include <unistr.h>

enum { WRITTEN_SPACE = 0x2581, MOST_CHARACTER_BYTES = 4 };

static bool is_seen(ucs4_t code)
{
    return code < 0x80 ? code > ' ' && code < 0x7F
                       : !sli_is_white_space(code) && code != WRITTEN_SPACE;
}

/* The character at the place; a blank where there is none. */
static ucs4_t character_at(const char *text, size_t place, size_t bytes)
{
    ucs4_t code = ' ';
    if (place < bytes && u8_mbtoucr(&code, (const uint8_t *)text + place, bytes - place) <= 0)
        code = ' ';
    return code;
}

/* Whether a character that is seen ends before the place. */
static bool ends_seen(const char *text, size_t place)
{
    ucs4_t code;
    size_t begin = place - 1;
    while (begin > 0 && place - begin < MOST_CHARACTER_BYTES && (text[begin] & 0xC0) == 0x80)
        begin--;
    return u8_mbtoucr(&code, (const uint8_t *)text + begin, place - begin) ==
               (int)(place - begin) &&
           is_seen(code);
}

static bool may_cut_words(const char *text, size_t place, size_t bytes)
{
    return place < bytes && text[place] == ' ' && ends_seen(text, place);
}

static bool may_cut_pieces(const char *text, size_t place, size_t bytes)
{
    if (place < bytes && text[place] == ' ')
        return is_seen(character_at(text, place + 1, bytes)) && ends_seen(text, place);
    return place >= 2 && text[place - 1] == '\n' &&
           sli_is_letter(character_at(text, place, bytes)) && ends_seen(text, place - 1);
}

size_t sli_text_last_cut(const sl_vocab *vocab, const char *text, size_t first, size_t bytes)
{
    const sli_bpe *bpe = vocab->bpe;
    if (bpe && (bpe->added.reaches || bpe->split == &sli_nowhere))
        return 0;
    bool of_characters = bpe && bpe->of_characters;
    if (of_characters && (bpe->added.has_ordinary[0] || bpe->added.has_ordinary[1]))
        return 0; /* what is behind one gets a space, but not at the beginning of a part */
    bool (*may_cut)(const char *, size_t, size_t) = of_characters ? may_cut_words : may_cut_pieces;
    for (size_t place = bytes; place > first && place > 0; place--)
        if (may_cut(text, place, bytes))
            return place;
    return 0;
}
