#include "text/vocab.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1 << 12, FIRST_TOKENS = 1 << 10 };

/* ---- Hashing ---------------------------------------------------------------------------- */

static uint64_t load_8(const char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t load_4(const char *at)
{
    uint32_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t mix_bits(uint64_t word)
{
    word *= 0x9E3779B97F4A7C15u;
    return word ^ (word >> 32);
}

/* Eight bytes at a time; most tokens have fewer, and take one round. */
static uint32_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = bytes, tail = 0;
    for (; bytes >= 8; bytes -= 8, text += 8)
        hash = mix_bits(hash ^ load_8(text));
    if (bytes >= 4)
        tail = load_4(text) | load_4(text + bytes - 4) << 32;
    else if (bytes > 0)
        tail = (uint64_t)(unsigned char)text[0] | (uint64_t)(unsigned char)text[bytes / 2] << 8 |
               (uint64_t)(unsigned char)text[bytes - 1] << 16;
    return (uint32_t)mix_bits(mix_bits(hash ^ tail) + hash);
}

/* ---- The table -------------------------------------------------------------------------- */

static sl_status make_slots(size_t count, sli_token_slot **out)
{
    *out = calloc(count, sizeof **out);
    if (!*out)
        return SL_ERR_MEMORY;
    for (size_t i = 0; i < count; i++)
        (*out)[i] = (sli_token_slot){0, -1};
    return SL_OK;
}

sl_status sli_token_table_init(sli_token_table *table)
{
    *table = (sli_token_table){.mask = FIRST_SLOTS - 1, .starts_room = FIRST_TOKENS};
    table->starts = calloc(FIRST_TOKENS, sizeof *table->starts);
    if (make_slots(FIRST_SLOTS, &table->slots) != SL_OK || !table->starts) {
        sli_token_table_free(table);
        return sl_error(SL_ERR_MEMORY, "no memory for a table of tokens");
    }
    return SL_OK;
}

void sli_token_table_free(sli_token_table *table)
{
    free(table->slots);
    free(table->starts);
    free(table->bytes);
    *table = (sli_token_table){0};
}

sl_token sli_token_table_get(const sli_token_table *table, int32_t id)
{
    size_t start = table->starts[id];
    return (sl_token){table->bytes + start, table->starts[id + 1] - start - 1};
}

/* The slot that holds the token, or the free one where it belongs. */
static sli_token_slot *slot_of(const sli_token_table *table, uint32_t hash, const char *text,
                               size_t bytes)
{
    for (size_t i = hash & table->mask;; i = (i + 1) & table->mask) {
        sli_token_slot *slot = &table->slots[i];
        if (slot->id < 0)
            return slot;
        if (slot->hash != hash)
            continue;
        sl_token token = sli_token_table_get(table, slot->id);
        if (token.bytes == bytes && memcmp(token.text, text, bytes) == 0)
            return slot;
    }
}

int32_t sli_token_table_find(const sli_token_table *table, const char *text, size_t bytes)
{
    return slot_of(table, hash_of(text, bytes), text, bytes)->id;
}

static sl_status grow_slots(sli_token_table *table)
{
    size_t count = table->mask + 1, doubled = count * 2;
    sli_token_slot *slots;
    if (make_slots(doubled, &slots) != SL_OK)
        return sl_error(SL_ERR_MEMORY, "no memory for more than %d different tokens", table->count);
    for (size_t i = 0; i < count; i++) {
        if (table->slots[i].id < 0)
            continue;
        size_t j = table->slots[i].hash & (doubled - 1);
        while (slots[j].id >= 0)
            j = (j + 1) & (doubled - 1);
        slots[j] = table->slots[i];
    }
    free(table->slots);
    table->slots = slots;
    table->mask = doubled - 1;
    return SL_OK;
}

/* White space among ASCII, as Python's str.split has it. */
static bool is_ascii_space(unsigned char c)
{
    return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
}

static sl_status check_token(const char *text, size_t bytes)
{
    if (bytes == 0)
        return sl_error(SL_ERR_INVALID, "a token must not be empty");
    for (size_t i = 0; i < bytes; i++)
        if (is_ascii_space((unsigned char)text[i]))
            return sl_error(SL_ERR_INVALID,
                            "a token must not contain white space, got 0x%02X at byte %zu of %zu",
                            (unsigned)(unsigned char)text[i], i, bytes);
    return SL_OK;
}

static sl_status insert_token(sli_token_table *table, uint32_t hash, const char *text, size_t bytes)
{
    size_t start = table->starts[table->count];
    SL_TRY(check_token(text, bytes));
    if ((size_t)table->count >= (table->mask + 1) / 2)
        SL_TRY(grow_slots(table));
    SL_TRY(sli_array_reserve(&table->starts, &table->starts_room, (size_t)table->count + 2,
                             sizeof *table->starts, INT32_MAX, "different tokens"));
    SL_TRY(sli_array_reserve(&table->bytes, &table->bytes_room, start + bytes + 1, 1, SIZE_MAX / 2,
                             "bytes of tokens"));
    *slot_of(table, hash, text, bytes) = (sli_token_slot){hash, table->count};
    memcpy(table->bytes + start, text, bytes);
    table->bytes[start + bytes] = '\0';
    table->starts[++table->count] = start + bytes + 1;
    return SL_OK;
}

sl_status sli_token_table_add(sli_token_table *table, const char *text, size_t bytes, int32_t *id)
{
    uint32_t hash = hash_of(text, bytes);
    *id = slot_of(table, hash, text, bytes)->id;
    if (*id >= 0)
        return SL_OK;
    SL_TRY(insert_token(table, hash, text, bytes));
    *id = table->count - 1;
    return SL_OK;
}
