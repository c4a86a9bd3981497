/* Bytes as characters, as GPT-2 writes them in files: those that print stand for themselves, the 68
 * others are U+0100 and following, in their order. */
#include "text/bpe.h"

#include <unistr.h>

static bool prints(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
}

uint32_t sli_character_of_byte(uint8_t byte)
{
    uint32_t others = 0;
    for (int before = 0; before < byte; before++)
        others += !prints(before);
    return prints(byte) ? byte : 256 + others;
}

/* -1: the character stands for none. */
static int byte_of_character(ucs4_t code)
{
    static const struct {
        uint8_t first, count;
    } others[] = {{0, 33}, {127, 34}, {173, 1}};
    if (code < 256)
        return prints((int)code) ? (int)code : -1;
    code -= 256;
    for (int i = 0; i < 3; code -= others[i++].count)
        if (code < others[i].count)
            return (int)(others[i].first + code);
    return -1;
}

bool sli_bytes_of_characters(char *text, size_t *bytes)
{
    for (int writes = 0; writes < 2; writes++) {
        const uint8_t *from = (const uint8_t *)text, *end = from + *bytes;
        char *to = text;
        for (int length; from < end; from += length) {
            ucs4_t code;
            length = u8_mbtoucr(&code, from, (size_t)(end - from));
            int byte = length < 0 ? -1 : byte_of_character(code);
            if (byte < 0)
                return false;
            if (writes)
                *to = (char)byte;
            to++;
        }
        if (writes)
            *bytes = (size_t)(to - text);
    }
    return true;
}
