#include "core/error.h"
#include "text/vocab.h"

#include "core/memory.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>
#define XXH_INLINE_ALL /* most tokens have a few bytes: a call would take longer than the hash */
#include <xxhash.h>

enum { FIRST_SLOTS = 1 << 12, FIRST_TOKENS = 1 << 10 };

/* ---- Hashing ---------------------------------------------------------------------------- */

/* Keyed by a seed of the table's own: who writes a text cannot choose tokens that collide. */
static uint32_t hash_of(const sli_token_table *table, const char *text, size_t bytes)
{
    return (uint32_t)XXH3_64bits_withSeed(text, bytes, table->seed);
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
    if (sodium_init() < 0)
        return sl_error(SL_ERR_INTERNAL, "libsodium cannot be initialized");
    randombytes_buf(&table->seed, sizeof table->seed);
    table->starts = calloc(FIRST_TOKENS, sizeof *table->starts);
    if (make_slots(FIRST_SLOTS, &table->slots) != SL_OK || !table->starts) {
        sli_token_table_free(table);
        return sli_no_memory(NULL, "a table of tokens");
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
    return slot_of(table, hash_of(table, text, bytes), text, bytes)->id;
}

static sl_status grow_slots(sli_token_table *table)
{
    size_t count = table->mask + 1, doubled = count * 2;
    sli_token_slot *slots;
    if (make_slots(doubled, &slots) != SL_OK)
        return sli_no_memory(NULL, "more than %d different tokens", table->count);
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
    if (memchr(text, 0, bytes) || u8_check((const uint8_t *)text, bytes))
        return sl_error(SL_ERR_INVALID, "a token must be UTF-8, without zeros");
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
    if (!table->any_bytes)
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
    uint32_t hash = hash_of(table, text, bytes);
    *id = slot_of(table, hash, text, bytes)->id;
    if (*id >= 0)
        return SL_OK;
    SL_TRY(insert_token(table, hash, text, bytes));
    *id = table->count - 1;
    return SL_OK;
}
