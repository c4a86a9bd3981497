/* Rows of several documents: each document goes into the fullest row that has room for it, the
 * longest document first ("best fit decreasing": Johnson, "Near-optimal bin packing algorithms",
 * 1973), which needs at most 11/9 of the fewest rows that there can be, and four more. */
#include "text/rows.h"

#include "core/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A document, or a part of one that is longer than a row. */
typedef struct piece {
    int64_t begin, length; /* tokens of the rows that are packed */
    int64_t next;          /* of the same packed row; -1: none */
} piece;

typedef struct bin {
    int64_t room, first, last; /* pieces */
    int64_t next;              /* of the bins with as much room; -1: none */
} bin;

typedef struct packing {
    int64_t length;
    sli_large_array piece_array, bin_array; /* which the next two are */
    piece *pieces;                          /* [piece_count] */
    bin *bins;                              /* [bin_count]; at most one for each piece */
    int64_t piece_count, bin_count;
    int64_t *with_room; /* [length + 1] the newest bin of so much room; -1: none */
    uint64_t *is_there; /* a bit for each of them that is not -1 */
} packing;

static void clear_packing(packing *job)
{
    sli_large_array_free(&job->piece_array);
    sli_large_array_free(&job->bin_array);
    free(job->with_room);
    free(job->is_there);
}

static int64_t count_pieces(const sl_rows *rows, int64_t length)
{
    int64_t count = 0;
    for (int64_t i = 0; i < rows->count; i++)
        count += (sli_rows_length(rows, i) + length - 1) / length;
    return count;
}

/* The longest first, equal ones as they come. */
static int compare_pieces(const void *a, const void *b)
{
    const piece *one = a, *other = b;
    if (one->length != other->length)
        return one->length > other->length ? -1 : 1;
    return one->begin < other->begin ? -1 : 1;
}

static void list_pieces(const sl_rows *rows, packing *job)
{
    int64_t count = 0;
    for (int64_t i = 0; i < rows->count; i++)
        for (int64_t begin = rows->begins[i]; begin < rows->begins[i + 1]; begin += job->length) {
            int64_t left = rows->begins[i + 1] - begin;
            job->pieces[count++] = (piece){begin, left < job->length ? left : job->length, -1};
        }
    qsort(job->pieces, (size_t)count, sizeof *job->pieces, compare_pieces);
}

static sl_status create_packing(const sl_rows *rows, int64_t length, packing *job)
{
    size_t rooms = (size_t)length + 1;
    *job = (packing){.length = length, .piece_count = count_pieces(rows, length)};
    size_t pieces = (size_t)job->piece_count;
    SL_TRY(sli_large_array_reserve(&job->piece_array, pieces * sizeof(piece), "documents"));
    SL_TRY(sli_large_array_reserve(&job->bin_array, pieces * sizeof(bin), "packed rows"));
    job->pieces = job->piece_array.data;
    job->bins = job->bin_array.data;
    job->with_room = malloc(rooms * sizeof *job->with_room);
    job->is_there = calloc(rooms / 64 + 1, sizeof *job->is_there);
    if (!job->with_room || !job->is_there)
        return sli_no_memory(NULL, "packing %" PRId64 " rows", rows->count);
    for (size_t i = 0; i < rooms; i++)
        job->with_room[i] = -1;
    list_pieces(rows, job);
    return SL_OK;
}

/* The least room of a bin that has at least `length`; -1: none has. */
static int64_t find_room(const packing *job, int64_t length)
{
    int64_t word = length / 64, words = job->length / 64;
    uint64_t bits = job->is_there[word] & ~UINT64_C(0) << length % 64;
    while (bits == 0 && word < words)
        bits = job->is_there[++word];
    return bits ? word * 64 + __builtin_ctzll(bits) : -1;
}

static int64_t take_bin(packing *job, int64_t room)
{
    int64_t found = job->with_room[room];
    job->with_room[room] = job->bins[found].next;
    if (job->with_room[room] < 0)
        job->is_there[room / 64] &= ~(UINT64_C(1) << room % 64);
    return found;
}

static void put_bin(packing *job, int64_t index)
{
    int64_t room = job->bins[index].room;
    job->bins[index].next = job->with_room[room];
    job->with_room[room] = index;
    job->is_there[room / 64] |= UINT64_C(1) << room % 64;
}

static void fill_bins(packing *job)
{
    for (int64_t i = 0; i < job->piece_count; i++) {
        int64_t room = find_room(job, job->pieces[i].length);
        int64_t index = room >= 0 ? take_bin(job, room) : job->bin_count++;
        bin *filled = &job->bins[index];
        if (room < 0)
            *filled = (bin){.room = job->length, .first = i};
        else
            job->pieces[filled->last].next = i;
        filled->last = i;
        filled->room -= job->pieces[i].length;
        put_bin(job, index);
    }
}

/* ---- The rows --------------------------------------------------------------------------- */

static sl_status create_rows(const sl_rows *rows, int64_t count, sl_rows **out)
{
    sl_rows *made = *out = calloc(1, sizeof **out);
    if (!made)
        return sli_no_memory(NULL, "packed rows");
    SL_TRY(sli_rows_reserve(made, count, rows->begins[rows->count], true));
    made->begins[0] = 0;
    made->count = count;
    made->largest = rows->largest;
    made->has_targets = rows->has_targets;
    return SL_OK;
}

static void copy_piece(const sl_rows *rows, const piece *from, int64_t begin, sl_rows *out)
{
    size_t bytes = (size_t)from->length * sizeof *out->ids;
    memcpy(out->ids + begin, rows->ids + from->begin, bytes);
    memcpy(out->targets + begin, rows->targets + from->begin, bytes);
    for (int64_t i = 0; i < from->length; i++)
        out->numbers[begin + i] = (int32_t)i;
}

static void copy_rows(const sl_rows *rows, const packing *job, sl_rows *out)
{
    int64_t end = 0;
    for (int64_t row = 0; row < job->bin_count; row++) {
        for (int64_t i = job->bins[row].first; i >= 0; i = job->pieces[i].next) {
            copy_piece(rows, &job->pieces[i], end, out);
            end += job->pieces[i].length;
        }
        out->begins[row + 1] = end;
        int64_t length = end - out->begins[row];
        out->longest = length > out->longest ? length : out->longest;
    }
}

sl_status sli_rows_pack(const sl_rows *rows, int64_t length, sl_rows **out)
{
    packing job;
    *out = NULL;
    sl_status status;
    SL_TRY_OR_FAIL(create_packing(rows, length, &job));
    fill_bins(&job);
    SL_TRY_OR_FAIL(create_rows(rows, job.bin_count, out));
    copy_rows(rows, &job, *out);
    sli_rows_finish(*out);
fail:
    if (status != SL_OK)
        sl_rows_destroy(out);
    clear_packing(&job);
    return status;
}

void sli_rows_count_documents(const sl_rows *rows, double *tokens, double *squares)
{
    int64_t count = rows->begins[rows->count];
    for (int64_t i = 0; i < count; i++)
        if (i + 1 == count || rows->numbers[i + 1] == 0)
            *squares += (double)(rows->numbers[i] + 1) * (rows->numbers[i] + 1);
    *tokens += (double)count;
}
