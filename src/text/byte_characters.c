/* Bytes as characters, as GPT-2 writes them in files: those that print stand for themselves, the 68
 * others are U+0100 and following, in their order. */
#include "text/bpe.h"

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
static int byte_of_character(uint32_t code)
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

/* Reads a character of UTF-8, of which those that stand for a byte have 1 or 2 bytes. -1: it is
 * none of them. */
static int read_character(const uint8_t *text, const uint8_t *end, int *length)
{
    bool has_two = *text >= 0xC2 && *text <= 0xDF && end - text >= 2 && (text[1] & 0xC0) == 0x80;
    *length = has_two ? 2 : 1;
    if (*text >= 0x80 && !has_two)
        return -1;
    return byte_of_character(has_two ? (uint32_t)(*text & 0x1F) << 6 | (text[1] & 0x3F) : *text);
}

bool sli_bytes_of_characters(char *text, size_t *bytes)
{
    for (int writes = 0; writes < 2; writes++) {
        const uint8_t *from = (const uint8_t *)text, *end = from + *bytes;
        char *to = text;
        for (int length; from < end; from += length) {
            int byte = read_character(from, end, &length);
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
