#include "text/utf8.h"

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
