/* Small tokenizers as texts, for tests: the 256 bytes, then tokens of the test's own. */
#ifndef TESTS_TEXT_BPE_TEXTS_H
#define TESTS_TEXT_BPE_TEXTS_H

#include <sodium.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { BPE_TEXT_BYTES = 1 << 16 };

/* The character that stands for a byte, in UTF-8. */
static inline void write_byte_character(FILE *to, int byte)
{
    static const struct {
        int first, last, code;
    } moved[] = {{0, 32, 256}, {127, 160, 289}, {173, 173, 323}};
    int code = byte;
    for (int i = 0; i < 3; i++)
        if (byte >= moved[i].first && byte <= moved[i].last)
            code = moved[i].code + byte - moved[i].first;
    if (code == '"' || code == '\\')
        fprintf(to, "\\%c", code);
    else if (code < 128)
        fputc(code, to);
    else
        fprintf(to, "%c%c", 0xC0 | code >> 6, 0x80 | (code & 0x3F));
}

/* A vocab.json: the bytes are their own ids; then come `tokens`, words with a blank after each, of
 * characters that stand for themselves. */
static inline size_t write_vocab(char text[BPE_TEXT_BYTES], const char *tokens)
{
    FILE *to = fmemopen(text, BPE_TEXT_BYTES, "w");
    for (int byte = 0; byte < 256; byte++) {
        fputs(byte ? ", \"" : "{\"", to);
        write_byte_character(to, byte);
        fprintf(to, "\": %d", byte);
    }
    for (int id = 256; *tokens; tokens += strcspn(tokens, " ") + 1)
        fprintf(to, ", \"%.*s\": %d", (int)strcspn(tokens, " "), tokens, id++);
    fputs("}\n", to);
    size_t bytes = (size_t)ftell(to);
    fclose(to);
    return bytes;
}

/* The same of SentencePiece's kind, where bytes are called <0x00> to <0xFF>. */
static inline size_t write_character_vocab(char text[BPE_TEXT_BYTES], const char *tokens)
{
    FILE *to = fmemopen(text, BPE_TEXT_BYTES, "w");
    for (int byte = 0; byte < 256; byte++)
        fprintf(to, "%s\"<0x%02X>\": %d", byte ? ", " : "{", (unsigned)byte, byte);
    for (int id = 256; *tokens; tokens += strcspn(tokens, " ") + 1)
        fprintf(to, ", \"%.*s\": %d", (int)strcspn(tokens, " "), tokens, id++);
    fputs("}\n", to);
    size_t bytes = (size_t)ftell(to);
    fclose(to);
    return bytes;
}

/* The same as a rank file. */
static inline size_t write_ranks(char text[BPE_TEXT_BYTES], const char *tokens)
{
    FILE *to = fmemopen(text, BPE_TEXT_BYTES, "w");
    char written[256];
    for (int byte = 0; byte < 256; byte++) {
        unsigned char value = (unsigned char)byte;
        fprintf(to, "%s %d\n",
                sodium_bin2base64(written, sizeof written, &value, 1,
                                  sodium_base64_VARIANT_ORIGINAL),
                byte);
    }
    for (int id = 256; *tokens; tokens += strcspn(tokens, " ") + 1)
        fprintf(to, "%s %d\n",
                sodium_bin2base64(written, sizeof written, (const unsigned char *)tokens,
                                  strcspn(tokens, " "), sodium_base64_VARIANT_ORIGINAL),
                id++);
    size_t bytes = (size_t)ftell(to);
    fclose(to);
    return bytes;
}

#endif
