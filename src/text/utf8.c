#include "text/utf8.h"

#include "core/error.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>
#include <uninorm.h>
#include <unistr.h>

int sli_broken_bytes(const uint8_t *at, const uint8_t *end)
{
    int length = 1, wanted = at[0] < 0xC2 || at[0] > 0xF4 ? 1
                             : at[0] < 0xE0               ? 2
                                                          : 3 + (at[0] > 0xEF);
    uint8_t low = at[0] == 0xE0   ? 0xA0
                  : at[0] == 0xF0 ? 0x90
                                  : 0x80,
            high = at[0] == 0xED   ? 0x9F
                   : at[0] == 0xF4 ? 0x8F
                                   : 0xBF;
    while (length < wanted && at + length < end && at[length] >= low && at[length] <= high) {
        low = 0x80;
        high = 0xBF;
        length++;
    }
    return length;
}

sl_status sli_text_repair(const uint8_t *begin, const uint8_t *end, uint8_t **copy, size_t *bytes,
                          int64_t *invalid)
{
    enum { MOST_GROWTH = 3 };
    const uint8_t *at = begin;
    uint8_t *to = malloc(MOST_GROWTH * (size_t)(end - at) + 1);
    *copy = to;
    if (!to)
        return sli_no_memory(NULL, "a copy of %zu bytes", (size_t)(end - at));
    while (at < end) {
        const uint8_t *broken = u8_check(at, (size_t)(end - at)), *stop = broken ? broken : end;
        memcpy(to, at, (size_t)(stop - at));
        to += stop - at;
        at = stop;
        if (!broken)
            break;
        int length = sli_broken_bytes(at, end);
        to += u8_uctomb(to, SLI_REPLACEMENT, 4);
        at += length;
        *invalid += length;
    }
    *bytes = (size_t)(to - *copy);
    return SL_OK;
}

static sl_status append(uint8_t **text, size_t *room, size_t *bytes, const uint8_t *more,
                        size_t count)
{
    SL_TRY(sli_array_reserve(text, room, *bytes + count, 1, SIZE_MAX / 16, "bytes"));
    if (more && count > 0)
        memcpy(*text + *bytes, more, count);
    *bytes += count;
    return SL_OK;
}

/* ASCII stays as it is, but for a character before what may compose with it. */
sl_status sli_text_compose(const uint8_t *begin, const uint8_t *end, uint8_t **copy, size_t *bytes)
{
    const uint8_t *at = begin;
    size_t room = 0;
    *copy = NULL;
    *bytes = 0;
    while (at < end) {
        const uint8_t *wide = at, *stop;
        while (wide < end && *wide < 0x80)
            wide++;
        for (stop = wide; stop < end && *stop >= 0x80;)
            stop++;
        const uint8_t *from = wide > at && wide < end ? wide - 1 : wide;
        size_t length = 0;
        SL_TRY(append(copy, &room, bytes, at, (size_t)(from - at)));
        uint8_t *composed = u8_normalize(UNINORM_NFC, from, (size_t)(stop - from), NULL, &length);
        if (!composed && stop > from)
            return sli_no_memory(NULL, "a copy of %zu bytes", (size_t)(stop - from));
        sl_status status = append(copy, &room, bytes, composed, length);
        free(composed);
        SL_TRY(status);
        at = stop;
    }
    return SL_OK;
}
