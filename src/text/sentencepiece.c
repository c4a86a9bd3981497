/* SentencePiece's own file of a BPE with byte fallback, as Llama 2's tokenizer.model is: a message
 * of protobuf (sentencepiece_model.proto), of which these fields count here:
 *
 *   1  pieces, in the order of their ids: 1 text, 2 score, 3 type
 *   2  trainer_spec: 3 model_type, 24 treat_whitespace_as_suffix, 35 byte_fallback, 41 bos_id
 *   3  normalizer_spec: 2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces,
 *      5 escape_whitespaces
 *
 * It has no merges: two neighbours merge if they make an ordinary piece, the one with the highest
 * score first. What the other fields say has been done when the pieces were made. */
#include "text/bpe.h"

#include "core/error.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistr.h>

/* ---- Protobuf ----------------------------------------------------------------------------- */

typedef struct message {
    const uint8_t *at, *end;
} message;

enum { WIRE_VARINT, WIRE_FIXED64, WIRE_BYTES, WIRE_FIXED32 = 5 };

typedef struct field {
    uint64_t number, value; /* value: of a varint, or the bits of a fixed one */
    unsigned wire;
    message bytes; /* of WIRE_BYTES */
} field;

static bool read_varint(message *unread, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64 && unread->at < unread->end; shift += 7) {
        uint8_t byte = *unread->at++;
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static bool read_fixed(message *unread, size_t bytes, uint64_t *out)
{
    *out = 0;
    if ((size_t)(unread->end - unread->at) < bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        *out |= (uint64_t)unread->at[i] << 8 * i;
    unread->at += bytes;
    return true;
}

/* The message's next field. Errors: SL_ERR_FORMAT where it ends within one. */
static sl_status read_field(message *unread, field *out)
{
    uint64_t key;
    bool is_whole = read_varint(unread, &key);
    *out = (field){.number = key >> 3, .wire = (unsigned)(key & 7)};
    if (is_whole && out->wire == WIRE_VARINT)
        is_whole = read_varint(unread, &out->value);
    else if (is_whole && out->wire == WIRE_FIXED64)
        is_whole = read_fixed(unread, 8, &out->value);
    else if (is_whole && out->wire == WIRE_FIXED32)
        is_whole = read_fixed(unread, 4, &out->value);
    else if (is_whole && out->wire == WIRE_BYTES) {
        is_whole =
            read_varint(unread, &out->value) && out->value <= (uint64_t)(unread->end - unread->at);
        out->bytes = (message){unread->at, unread->at + (is_whole ? out->value : 0)};
        unread->at = out->bytes.end;
    } else
        is_whole = false;
    return is_whole ? SL_OK
                    : sl_error(SL_ERR_FORMAT, "it is no whole file of SentencePiece: a field is "
                                              "cut off, or of a type that protobuf has not");
}

/* ---- The file ----------------------------------------------------------------------------- */

enum {
    PIECE_ORDINARY = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER_DEFINED,
    PIECE_UNUSED,
    PIECE_BYTE
};

typedef struct model_piece {
    message text;
    float score;
    uint64_t type;
    uint32_t rank; /* of the merges that make it: the place of its score among all */
} model_piece;

enum { MODEL_UNIGRAM = 1, MODEL_BPE };

typedef struct model_file {
    model_piece *pieces; /* [count] */
    size_t room, count;
    uint64_t model_type, space_is_suffix, falls_back, begin_id;
    uint64_t has_map, adds_prefix, removes_spaces, escapes_spaces;
} model_file;

/* Where a field of a message goes that is a number. */
typedef struct number_field {
    uint64_t number, *value;
} number_field;

static sl_status read_numbers(message unread, const number_field *wanted, size_t count)
{
    field found;
    while (unread.at < unread.end) {
        SL_TRY(read_field(&unread, &found));
        for (size_t i = 0; i < count; i++)
            if (wanted[i].number == found.number)
                *wanted[i].value = found.value; /* of bytes their count */
    }
    return SL_OK;
}

static sl_status read_piece(message unread, model_file *file)
{
    model_piece made = {.type = PIECE_ORDINARY};
    field found;
    while (unread.at < unread.end) {
        SL_TRY(read_field(&unread, &found));
        if (found.number == 1 && found.wire == WIRE_BYTES)
            made.text = found.bytes;
        if (found.number == 2 && found.wire == WIRE_FIXED32) {
            uint32_t bits = (uint32_t)found.value;
            memcpy(&made.score, &bits, sizeof made.score);
        }
        if (found.number == 3 && found.wire == WIRE_VARINT)
            made.type = found.value;
    }
    SL_TRY(sli_array_reserve(&file->pieces, &file->room, file->count + 1, sizeof *file->pieces,
                             INT32_MAX - 1, "pieces"));
    file->pieces[file->count++] = made;
    return SL_OK;
}

static sl_status read_file(message unread, model_file *file)
{
    const number_field trainer[] = {{3, &file->model_type},
                                    {24, &file->space_is_suffix},
                                    {35, &file->falls_back},
                                    {41, &file->begin_id}},
                       normalizer[] = {{2, &file->has_map},
                                       {3, &file->adds_prefix},
                                       {4, &file->removes_spaces},
                                       {5, &file->escapes_spaces}};
    field found;
    while (unread.at < unread.end) {
        SL_TRY(read_field(&unread, &found));
        if (found.wire != WIRE_BYTES)
            continue;
        if (found.number == 1)
            SL_TRY(read_piece(found.bytes, file));
        else if (found.number == 2)
            SL_TRY(read_numbers(found.bytes, trainer, sizeof trainer / sizeof *trainer));
        else if (found.number == 3)
            SL_TRY(read_numbers(found.bytes, normalizer, sizeof normalizer / sizeof *normalizer));
    }
    return SL_OK;
}

/* ---- What is refused ---------------------------------------------------------------------- */

static sl_status check_kind(const model_file *file)
{
    static const char *const kinds[] = {"none", "unigram", "BPE", "words", "characters"};
    const struct {
        bool is_refused;
        const char *what;
    } rules[] = {
        {!file->falls_back, "it has no byte_fallback"},
        {file->space_is_suffix, "its words end with white space (treat_whitespace_as_suffix)"},
        {file->has_map, "it changes characters (precompiled_charsmap)"},
        {file->removes_spaces, "it removes white space (remove_extra_whitespaces)"},
        {!file->escapes_spaces, "its pieces have spaces (escape_whitespaces is false)"},
    };
    if (file->model_type != MODEL_BPE)
        return sl_error(SL_ERR_UNSUPPORTED,
                        "of SentencePiece's kinds BPE alone is read, and it is of %s",
                        file->model_type < 5 ? kinds[file->model_type] : "another kind");
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].is_refused)
            return sl_error(SL_ERR_UNSUPPORTED, "%s, which sluice does not read", rules[i].what);
    return SL_OK;
}

static sl_status check_piece(const model_piece *piece, size_t id)
{
    size_t bytes = (size_t)(piece->text.end - piece->text.at);
    if (piece->type == PIECE_USER_DEFINED || piece->type == PIECE_UNUSED)
        return sl_error(SL_ERR_UNSUPPORTED, "its piece %zu is %s, which sluice does not read", id,
                        piece->type == PIECE_UNUSED ? "unused" : "user-defined");
    if (piece->type < PIECE_ORDINARY || piece->type > PIECE_BYTE || isnan(piece->score))
        return sl_error(SL_ERR_FORMAT,
                        "its piece %zu must have a type of 1 to 6 and a score, got %llu and %g", id,
                        (unsigned long long)piece->type, (double)piece->score);
    bool has_zero = bytes > 0 && memchr(piece->text.at, 0, bytes),
         has_space = bytes > 0 && memchr(piece->text.at, ' ', bytes);
    if (has_zero || (has_space && piece->type == PIECE_ORDINARY) ||
        (bytes > 0 && u8_check(piece->text.at, bytes)))
        return sl_error(SL_ERR_FORMAT, "its piece %zu must be UTF-8 without spaces and zeros", id);
    return SL_OK;
}

/* ---- Tokens ------------------------------------------------------------------------------- */

static sl_status add_token(sli_bpe *bpe, const model_piece *piece, int32_t id)
{
    char text[2 * SLI_BPE_MOST_TOKEN_BYTES];
    const sl_token written = {(const char *)piece->text.at,
                              (size_t)(piece->text.end - piece->text.at)};
    size_t bytes = written.bytes;
    if (bytes > 0 && bytes <= sizeof text) {
        memcpy(text, written.text, bytes);
        bytes = sli_read_spaces(text, bytes);
    }
    SL_TRY(sli_bpe_add_token(bpe, id, text, bytes));
    if (piece->type == PIECE_UNKNOWN)
        bpe->unknown = id;
    if (piece->type != PIECE_UNKNOWN && piece->type != PIECE_CONTROL)
        return SL_OK;
    const sli_added_token added = {.id = id, .special = true, .content = written};
    return sli_added_tokens_add(&bpe->added, &added);
}

static sl_status add_tokens(sli_bpe *bpe, const model_file *file)
{
    for (size_t i = 0; i < file->count; i++) {
        SL_TRY(check_piece(&file->pieces[i], i));
        SL_TRY(add_token(bpe, &file->pieces[i], (int32_t)i));
    }
    SL_TRY(sli_added_tokens_finish(&bpe->added, bpe->prefix == SLI_PREFIX_NORMALIZED));
    return sli_bpe_find_bytes(bpe, false);
}

/* ---- Merges ------------------------------------------------------------------------------- */

static int by_score(const void *left, const void *right)
{
    const model_piece *const *a = left, *const *b = right;
    return ((*a)->score < (*b)->score) - ((*a)->score > (*b)->score);
}

/* Pieces of one score have one rank: of their pairs the leftmost merges first. */
static sl_status rank_pieces(model_file *file)
{
    model_piece **sorted = malloc((file->count + 1) * sizeof(model_piece *));
    if (!sorted)
        return sli_no_memory(NULL, "%zu pieces", file->count);
    for (size_t i = 0; i < file->count; i++)
        sorted[i] = &file->pieces[i];
    if (file->count > 0)
        qsort(sorted, file->count, sizeof *sorted, by_score);
    for (size_t i = 0; i < file->count; i++)
        sorted[i]->rank =
            i > 0 && sorted[i]->score >= sorted[i - 1]->score ? sorted[i - 1]->rank : (uint32_t)i;
    free(sorted);
    return SL_OK;
}

static int32_t find_ordinary(const sli_bpe *bpe, const model_file *file, const char *text,
                             size_t bytes)
{
    int32_t id = sli_token_table_find(&bpe->tokens, text, bytes);
    return id >= 0 && file->pieces[id].type == PIECE_ORDINARY ? id : -1;
}

/* Every way in which a piece is made of two. SentencePiece also merges characters that are no
 * pieces, but its files have a piece for each character of a longer one. */
static sl_status add_splits(sli_bpe *bpe, const model_file *file, int32_t id)
{
    sl_token token = sli_token_table_get(&bpe->tokens, id);
    const uint8_t *text = (const uint8_t *)token.text;
    size_t length;
    bool is_new; /* always: a pair makes one token */
    for (size_t at = 0; at < token.bytes; at += length) {
        sli_merge merge = {.made = id, .rank = file->pieces[id].rank};
        length = (size_t)u8_mblen(text + at, token.bytes - at);
        if (length < token.bytes && find_ordinary(bpe, file, token.text + at, length) < 0)
            return sl_error(SL_ERR_FORMAT, "each character of its piece %d must be a piece", id);
        merge.left = at > 0 ? find_ordinary(bpe, file, token.text, at) : -1;
        merge.right = find_ordinary(bpe, file, token.text + at, token.bytes - at);
        if (merge.left >= 0 && merge.right >= 0)
            SL_TRY(sli_bpe_add_merge(bpe, &merge, &is_new));
    }
    return SL_OK;
}

static sl_status add_merges(sli_bpe *bpe, model_file *file)
{
    SL_TRY(rank_pieces(file));
    for (size_t i = 0; i < file->count; i++)
        if (file->pieces[i].type == PIECE_ORDINARY)
            SL_TRY(add_splits(bpe, file, (int32_t)i));
    return SL_OK;
}

/* ---- All of it ---------------------------------------------------------------------------- */

/* A text of its tokenizer begins with its bos_id, where that is a control piece, as transformers
 * has it. */
static sl_status place_begin(sli_bpe *bpe, const model_file *file)
{
    if (file->begin_id >= file->count || file->pieces[file->begin_id].type != PIECE_CONTROL)
        return SL_OK;
    bpe->around = malloc(sizeof *bpe->around);
    if (!bpe->around)
        return sli_no_memory(NULL, "the id of a text's beginning");
    bpe->around[bpe->before++] = (int32_t)file->begin_id;
    return SL_OK;
}

static sl_status build(model_file *file, sli_bpe *bpe)
{
    SL_TRY(check_kind(file));
    bpe->of_characters = true;
    bpe->prefix = file->adds_prefix ? SLI_PREFIX_NORMALIZED : SLI_PREFIX_NEVER;
    bpe->strips = file->adds_prefix;
    SL_TRY(add_tokens(bpe, file));
    SL_TRY(add_merges(bpe, file));
    SL_TRY(sli_bpe_place_added(bpe));
    SL_TRY(sli_bpe_finish(bpe, false));
    return place_begin(bpe, file);
}

static bool flag_of(const json_t *settings, const char *name, bool initial)
{
    const json_t *flag = json_object_get(settings, name);
    return json_is_boolean(flag) ? json_is_true(flag) : initial;
}

sl_status sli_vocab_use_settings(sl_vocab *vocab)
{
    sli_bpe *bpe = vocab->bpe;
    json_t *settings = vocab->settings ? json_loads(vocab->settings, 0, NULL) : NULL;
    bool begins = flag_of(settings, "add_bos_token", true),
         ends = flag_of(settings, "add_eos_token", false);
    int32_t end = ends ? sl_vocab_end(vocab) : -1;
    json_decref(settings);
    if (!bpe->of_characters)
        return SL_OK;
    bpe->before = begins ? bpe->before : 0;
    if (end < 0)
        return SL_OK;
    int32_t *grown = realloc(bpe->around, (bpe->before + 1) * sizeof *grown);
    if (!grown)
        return sli_no_memory(NULL, "the id of a text's end");
    bpe->around = grown;
    bpe->around[bpe->before] = end;
    bpe->after = 1;
    return SL_OK;
}

bool sli_is_sentencepiece(const char *text, size_t bytes)
{
    size_t first = 0;
    while (first < bytes && text[first] != '\0' && strchr(" \t\r\n", text[first]))
        first++;
    /* A piece's key is a line end, with which JSON may begin, but no line of base64. */
    return bytes > 0 && *text == (1 << 3 | WIRE_BYTES) && (first == bytes || text[first] != '{');
}

sl_status sli_bpe_parse_sentencepiece(const char *text, size_t bytes, sli_bpe **out)
{
    /* the defaults of the fields that are not there */
    model_file file = {.model_type = MODEL_UNIGRAM,
                       .begin_id = 1,
                       .adds_prefix = 1,
                       .removes_spaces = 1,
                       .escapes_spaces = 1};
    const uint8_t *begin = (const uint8_t *)text;
    SL_TRY(sli_bpe_create(NULL, out));
    sl_status status;
    SL_TRY_OR_FAIL(read_file((message){begin, begin + bytes}, &file));
    status = build(&file, *out);
fail:
    free(file.pieces);
    if (status != SL_OK)
        sli_bpe_destroy(out);
    return status;
}
