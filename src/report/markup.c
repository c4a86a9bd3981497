#include "report/markup.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistr.h>

static bool is_shown(ucs4_t character)
{
    bool control = character < 0x20 || (character >= 0x7F && character <= 0x9F);
    return !control && (character & 0xFFFE) != 0xFFFE; /* the latter are no characters in XML */
}

static const char *reference(ucs4_t character)
{
    switch (character) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return is_shown(character) ? NULL : "\xEF\xBF\xBD";
    }
}

void sli_markup_text(FILE *file, const char *text)
{
    size_t left = strlen(text);
    for (const uint8_t *byte = (const uint8_t *)text; left > 0;) {
        ucs4_t character; /* U+FFFD for bytes that are not UTF-8 */
        uint8_t encoded[6] = {0};
        int bytes = u8_mbtouc(&character, byte, left);
        const char *instead = reference(character);
        int length = instead ? 0 : u8_uctomb(encoded, character, sizeof encoded);
        fputs(instead ? instead : "", file);
        fwrite(encoded, 1, (size_t)length, file);
        byte += bytes;
        left -= (size_t)bytes;
    }
}

void sli_csv_text(FILE *file, const char *text)
{
    bool quoted = strpbrk(text, "\",\r\n") != NULL;
    fputs(quoted ? "\"" : "", file);
    for (; *text; text++)
        fprintf(file, *text == '"' ? "\"\"" : "%c", *text);
    fputs(quoted ? "\"" : "", file);
}

void sli_markup_number(FILE *file, double value)
{
    double size = fabs(value);
    if (isnan(value))
        fputs("–", file);
    else if (size >= 1e4 && size < 1e6)
        fprintf(file, "%.0f", value);
    else
        fprintf(file, "%.4g", value);
}

void sli_markup_bytes(FILE *file, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    sli_markup_number(file, bytes);
    fprintf(file, " %s", units[unit]);
}
